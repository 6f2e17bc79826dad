# SPDX-License-Identifier: Apache-2.0
"""Both servers with all ensembles, and what they answered; see `tests/recorded_suite.py`."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from pathlib import Path

from tests.ensemble_differential.cases import CASES
from tests.ensemble_differential.ensembles import ENSEMBLES, write_repository
from tests.ensemble_differential.refused_ensembles import write_refused
from tests.recorded_suite import Server, Suite, running


def write_models(folder: Path) -> None:
    write_repository(folder)
    write_refused(folder)


def start(*, is_real: bool) -> AbstractContextManager[Server]:
    """A server that has loaded the ensembles, and with them the models of their steps."""
    return running(write_models, is_real=is_real, models=(*ENSEMBLES, "asking"))


SUITE = Suite(Path(__file__).parent, start, CASES)

if __name__ == "__main__":
    sys.exit(SUITE.record(sys.argv[1:]))
