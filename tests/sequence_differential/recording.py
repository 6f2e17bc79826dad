# SPDX-License-Identifier: Apache-2.0
"""What both servers do in the scenarios, taken once and kept.

`golden.json` has the real one's; `ours.json` has ours where it differs.
`python -m tests.sequence_differential.recording` takes the first again, or only the scenarios that
are named; with `ours` it takes the second. `tests/differential/recording.py` says what it needs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from pathlib import Path

from tests import peers
from tests.recorded_json import load, write
from tests.sequence_differential import (
    scenarios_controls,
    scenarios_direct,
    scenarios_life,
    scenarios_oldest,
    scenarios_wire,
)
from tests.sequence_differential.configurations import CONFIGURATIONS, FILES
from tests.sequence_differential.rig import Observation
from tests.sequence_differential.scenario import asked, asked_to_load
from tests.sequence_differential.servers import Server, our_server, real_server

GOLDEN = Path(__file__).parent / "golden.json"
OURS = Path(__file__).parent / "ours.json"
MODULES = (
    scenarios_direct,
    scenarios_controls,
    scenarios_oldest,
    scenarios_life,
    scenarios_wire,
)
SCENARIOS = [made for module in MODULES for made in module.scenario.made]


NAMES = [*(made.name for made in SCENARIOS), *(f"load {name}" for name in CONFIGURATIONS)]


def observations(
    start: Callable[[], AbstractContextManager[Server]], names: Collection[str] = NAMES
) -> dict[str, Observation]:
    """What a server does in scenarios, and with configurations."""
    seen = {}
    with start() as server:
        for scenario in SCENARIOS:
            if scenario.name in names:
                seen[scenario.name] = asked(scenario, server)
        for name, config in CONFIGURATIONS.items():
            if f"load {name}" in names:
                seen[f"load {name}"] = asked_to_load(name, config, FILES.get(name, {}), server)
    return seen


def record_real(names: Collection[str]) -> int:
    """Ask the real server everything, or what is named, and write down what it did."""
    reason = peers.missing()
    if reason:
        sys.stderr.write(f"{reason}\n")
        return 1
    kept = load(GOLDEN) if names else {}
    seen = {**kept, **observations(real_server, names or NAMES)}
    return write(GOLDEN, {name: seen[name] for name in NAMES})


def record_ours() -> int:
    """Write down where our server does otherwise, for a person to read and to justify."""
    golden = load(GOLDEN)
    seen = observations(our_server)
    return write(OURS, {name: seen[name] for name in seen if seen[name] != golden.get(name)})


if __name__ == "__main__":
    sys.exit(record_ours() if sys.argv[1:] == ["ours"] else record_real(sys.argv[1:]))
