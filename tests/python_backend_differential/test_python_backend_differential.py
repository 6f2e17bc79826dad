# SPDX-License-Identifier: Apache-2.0
"""Models of the Python backend beside the real Triton: as recorded, and live where installed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.python_backend_differential.cases import CASES
from tests.python_backend_differential.known_differences import KNOWN_DIFFERENCES
from tests.python_backend_differential.recording import GOLDEN, OURS, REAL_LIVES, answers, load
from tests.python_backend_differential.servers import our_server, real_server

REAL = load(GOLDEN)
DIFFERENT = load(OURS)
EXPECTED = {**REAL, **DIFFERENT}


@pytest.fixture(scope="module")
def our_answers() -> dict[str, Any]:
    return answers(our_server)


@pytest.mark.e2e
@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_our_server_runs_models_as_the_real_one(name: str, our_answers: dict[str, Any]) -> None:
    assert our_answers[name] == EXPECTED[name]


@pytest.mark.e2e
def test_everything_that_our_server_answered_is_compared(our_answers: dict[str, Any]) -> None:
    assert set(our_answers) == set(EXPECTED)


@pytest.mark.e2e
@pytest.mark.part("peers")
def test_recording_is_what_the_real_server_answers() -> None:
    assert answers(real_server, REAL_LIVES) == REAL


def test_cases_have_distinct_names() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


def test_every_difference_is_known() -> None:
    assert {name for name in DIFFERENT if name in REAL} == set(KNOWN_DIFFERENCES)


@pytest.mark.parametrize("name", sorted(KNOWN_DIFFERENCES))
def test_known_difference_is_one(name: str) -> None:
    assert DIFFERENT[name] != REAL[name]
