# SPDX-License-Identifier: Apache-2.0
"""Models of the Python backend beside the real Triton: as recorded, and live where installed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.python_backend_differential.known_differences import KNOWN_DIFFERENCES
from tests.python_backend_differential.recording import SUITE

REAL, DIFFERENT = SUITE.recorded()
EXPECTED = {**REAL, **DIFFERENT}


@pytest.fixture(scope="module")
def our_answers() -> dict[str, Any]:
    return SUITE.answers()


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
    assert SUITE.answers(is_real=True) == SUITE.asked_again()


def test_recordings_have_all_cases_and_a_reason_for_each_difference() -> None:
    assert SUITE.mistakes(KNOWN_DIFFERENCES) == {}
