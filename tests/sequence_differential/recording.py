# SPDX-License-Identifier: Apache-2.0
"""Both servers, into whose repositories scenarios write models, and what they did.

See `tests/recorded_suite.py`.
"""

from __future__ import annotations

import functools
import sys
from contextlib import AbstractContextManager
from pathlib import Path

from tests.recorded_suite import Case, Server, Suite, running
from tests.sequence_differential import (
    scenarios_controls,
    scenarios_direct,
    scenarios_life,
    scenarios_oldest,
    scenarios_wire,
)
from tests.sequence_differential.configurations import CONFIGURATIONS, FILES
from tests.sequence_differential.scenario import asked, asked_to_load

MODULES = (
    scenarios_direct,
    scenarios_controls,
    scenarios_oldest,
    scenarios_life,
    scenarios_wire,
)
CASES = [
    *(
        Case(made.name, functools.partial(asked, made))
        for module in MODULES
        for made in module.scenario.made
    ),
    *(
        Case(f"load {name}", functools.partial(asked_to_load, name, config, FILES.get(name, {})))
        for name, config in CONFIGURATIONS.items()
    ),
]


def start(*, is_real: bool) -> AbstractContextManager[Server]:
    """A server that has no models yet."""
    return running(lambda folder: None, is_real=is_real, options=("--exit-timeout-secs=5",))


# A load of the real server now and then never ends on a busy machine.
SUITE = Suite(Path(__file__).parent, start, CASES, real_lives=3)

if __name__ == "__main__":
    sys.exit(SUITE.record(sys.argv[1:]))
