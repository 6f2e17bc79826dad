# SPDX-License-Identifier: Apache-2.0
"""The recorded answers of the real Triton, and of ours where they differ.

`python -m tests.tensor_differential.recording` records the first again, with the argument `ours`
the second; `tests/differential/recording.py` says what it needs.
"""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tests import peers
from tests.recorded_json import load, write
from tests.tensor_differential.cases import CASES
from tests.tensor_differential.servers import Server, our_server, real_server

GOLDEN = Path(__file__).parent / "golden.json"
OURS = Path(__file__).parent / "ours.json"


def answers(running: AbstractContextManager[Server]) -> dict[str, Any]:
    """Everything that a server answers, as it is stored: through JSON and back."""
    with running as server:
        seen = {name: ask(server) for name, ask in CASES.items()}
    stored: dict[str, Any] = json.loads(json.dumps(seen))
    return stored


def record_ours() -> int:
    """Write down where our server answers otherwise, for a person to read and to justify."""
    golden, seen = load(GOLDEN), answers(our_server())
    return write(OURS, {name: seen[name] for name in seen if seen[name] != golden[name]})


if __name__ == "__main__":
    if sys.argv[1:] == ["ours"]:
        sys.exit(record_ours())
    if peers.missing():
        sys.exit(peers.missing())
    sys.exit(write(GOLDEN, answers(real_server())))
