# SPDX-License-Identifier: Apache-2.0
"""The real server's answers, taken once and kept.

`python -m tests.differential.recording` takes them again. It needs the peers.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from tests import peers, recorded_json
from tests.differential.case import Case, Observation, observe
from tests.differential.cases import CASES
from tests.differential.exchange import exchange
from tests.differential.model_table import write_repository
from tests.recorded_suite import running

GOLDEN = Path(__file__).parent / "golden.json"


def run(case: Case, port: int) -> list[Observation]:
    """What the server at `port` answers, as it is stored: through JSON and back."""
    try:
        answers = exchange(port, case.request, case.answers)
    except OSError as error:
        raise ConnectionError(f"{case.name}: {error}") from error
    seen = [observe(answer, case.view) for answer in answers]
    stored: list[Observation] = json.loads(json.dumps(seen))
    return stored


@contextlib.contextmanager
def real_server() -> Iterator[int]:
    """The real Triton with the compared models on loopback; gives its HTTP port."""
    with running(write_repository, is_real=True, options=("--load-model=*",)) as server:
        yield server.http


def main() -> int:
    """Ask the real server everything and write the answers down."""
    reason = peers.missing()
    if reason:
        sys.stderr.write(f"{reason}\n")
        return 1
    with real_server() as port:
        golden = {case.name: run(case, port) for case in CASES if not case.only_ours}
    return recorded_json.write(GOLDEN, golden)


if __name__ == "__main__":
    sys.exit(main())
