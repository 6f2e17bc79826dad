# SPDX-License-Identifier: Apache-2.0
"""The outcomes of the original's clients on its server, taken once and kept.

`recorded/real.json` has them; `recorded/ours.json` has ours where they do not agree, and where the
real server cannot be asked. `python -m tests.client_differential.record` takes the first again,
with the argument `ours` the second. PEERS_DIR names the folder where the original is.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests import peers
from tests.client_differential.outcome import NEVER, agree
from tests.client_differential.servers import asked, our_python, serving
from tests.recorded_json import load, write

RECORDED = Path(__file__).parent / "recorded"
REAL = RECORDED / "real.json"
OURS = RECORDED / "ours.json"


def outcomes(clients: Path, server: Path) -> dict[str, Any]:
    """What the clients of one interpreter get from the server of another, of everything."""
    with serving(server) as servers:
        return asked(clients, servers)


def record_real() -> int:
    """Ask the original everything and write the outcomes down.

    On a busy machine it may lose a call: only one that does not return twice never does.
    """
    reason = peers.missing()
    if reason:
        sys.stderr.write(f"{reason}\n")
        return 1
    with serving(peers.python()) as servers:
        found, again = (asked(peers.python(), servers) for _ in range(2))
    return write(REAL, {n: again[n] if found[n] == NEVER else found[n] for n in found})


def record_ours() -> int:
    """Write down where ours does otherwise, for a person to read and to justify."""
    real, found = load(REAL), outcomes(our_python(), our_python())
    differences = {name for name in found if name not in real or not agree(real[name], found[name])}
    return write(OURS, {name: found[name] for name in differences})


if __name__ == "__main__":
    sys.exit(record_ours() if sys.argv[1:] == ["ours"] else record_real())
