# SPDX-License-Identifier: Apache-2.0
"""Both servers with models of shapes, and what they answered; see `tests/recorded_suite.py`."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from pathlib import Path

from tests.recorded_suite import Case, Server, Suite, running
from tests.tensor_differential.cases import CASES
from tests.tensor_differential.models import ENSEMBLES, GOOD, write_repository


def start(*, is_real: bool) -> AbstractContextManager[Server]:
    """A server that has loaded all good models."""
    return running(write_repository, is_real=is_real, models=(*GOOD, *ENSEMBLES))


SUITE = Suite(Path(__file__).parent, start, [Case(name, ask) for name, ask in CASES.items()])

if __name__ == "__main__":
    sys.exit(SUITE.record(sys.argv[1:]))
