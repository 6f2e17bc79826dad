# SPDX-License-Identifier: Apache-2.0
"""Both servers with models in Python, and what they answered; see `tests/recorded_suite.py`."""

from __future__ import annotations

import dataclasses
import sys
from contextlib import AbstractContextManager
from pathlib import Path

from tests.python_backend_differential.cases import CASES
from tests.python_backend_differential.deadly import DEADLY_CASES, is_asked
from tests.python_backend_differential.variants import GOOD, write_repository
from tests.recorded_suite import Server, Suite, grouped, running

WANTED = [
    "mirror",
    "renamed",
    "square",
    "returns",
    "senders",
    "coroutine",
    "batched",
    "iterative",
    "lifelog",
    "facts",
]


def start(*, is_real: bool) -> AbstractContextManager[Server]:
    """A server that has loaded the compared models."""
    environment = {"PYTRITON_COMPARED": "inherited"}
    models = (*WANTED, *GOOD)
    return running(write_repository, is_real=is_real, environment=environment, models=models)


SUITE = Suite(
    Path(__file__).parent,
    start,
    [dataclasses.replace(case, only_ours=case.name in DEADLY_CASES) for case in CASES],
    grouped,
    real_lives=6,
    is_asked_again=is_asked,
)

if __name__ == "__main__":
    sys.exit(SUITE.record(sys.argv[1:]))
