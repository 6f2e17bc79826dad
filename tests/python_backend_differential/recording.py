# SPDX-License-Identifier: Apache-2.0
"""The answers of both servers, taken once and kept.

`golden.json` has those of the real one; `ours.json` has ours where they differ, and where the real
server cannot be asked. `python -m tests.python_backend_differential.recording` takes the first
again, with the argument `ours` the second; `tests/differential/recording.py` says what it needs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from http.client import HTTPException
from pathlib import Path

from tests import peers
from tests.python_backend_differential.case import asked
from tests.python_backend_differential.cases import CASES
from tests.python_backend_differential.clients import Observation
from tests.python_backend_differential.servers import Server, our_server, real_server
from tests.recorded_json import load, write

GOLDEN = Path(__file__).parent / "golden.json"
OURS = Path(__file__).parent / "ours.json"
REAL_LIVES = 6  # the real server dies now and then of what models do wrong


def answers(
    start: Callable[[], AbstractContextManager[Server]], lives: int = 1
) -> dict[str, Observation]:
    """Everything that a server answers; where it dies, the next one is asked for the rest."""
    seen: dict[str, Observation] = {}
    waiting = list(CASES)
    for life in range(lives):
        with start() as server:
            try:
                while waiting:
                    seen.update(asked(waiting[0], server))
                    waiting.pop(0)
            except (OSError, HTTPException):
                if life == lives - 1:
                    raise
                server.kill()
        if not waiting:
            break
    return seen


def record_real() -> int:
    """Ask the real server everything and write the answers down."""
    reason = peers.missing()
    if reason:
        sys.stderr.write(f"{reason}\n")
        return 1
    return write(GOLDEN, answers(real_server, REAL_LIVES))


def record_ours() -> int:
    """Write down where our server answers otherwise, for a person to read and to justify."""
    golden = load(GOLDEN)
    seen = answers(our_server)
    return write(OURS, {name: seen[name] for name in seen if seen[name] != golden.get(name, ())})


if __name__ == "__main__":
    sys.exit(record_ours() if sys.argv[1:] == ["ours"] else record_real())
