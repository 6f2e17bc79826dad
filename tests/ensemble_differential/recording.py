# SPDX-License-Identifier: Apache-2.0
"""The answers of both servers, taken once and kept.

`golden.json` has those of the real one, `ours.json` ours where they differ on purpose.
`python -m tests.ensemble_differential.recording` takes the first again, with the argument `ours`
the second; `tests/differential/recording.py` says what it needs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from tests import peers
from tests.ensemble_differential.case import asked
from tests.ensemble_differential.cases import CASES
from tests.ensemble_differential.servers import our_server, real_server
from tests.python_backend_differential.clients import Observation
from tests.python_backend_differential.servers import Server
from tests.recorded_json import load, write

GOLDEN = Path(__file__).parent / "golden.json"
OURS = Path(__file__).parent / "ours.json"


def answers(start: Callable[[], AbstractContextManager[Server]]) -> dict[str, Observation]:
    """Everything that a server answers."""
    with start() as server:
        return {case.name: asked(case, server) for case in CASES}


def record_real() -> int:
    """Ask the real server everything and write the answers down."""
    reason = peers.missing()
    if reason:
        sys.stderr.write(f"{reason}\n")
        return 1
    return write(GOLDEN, answers(real_server))


def record_ours() -> int:
    """Write down where our server answers otherwise, for a person to read and to justify."""
    golden = load(GOLDEN)
    seen = answers(our_server)
    return write(OURS, {name: seen[name] for name in seen if seen[name] != golden[name]})


if __name__ == "__main__":
    sys.exit(record_ours() if sys.argv[1:] == ["ours"] else record_real())
