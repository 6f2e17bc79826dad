# SPDX-License-Identifier: Apache-2.0
"""Reshaped, ragged and classified tensors beside the real Triton, as recorded and live."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tensor_differential.cases import CASES
from tests.tensor_differential.recording import SUITE

REAL, DIFFERENT = SUITE.recorded()
_WRONG_SIZE = "the real server sends data that does not fit to the shape that it says"
_LIBRARY = "the message says that compiled batching strategies are not supported"
KNOWN_DIFFERENCES = {
    "gRPC only_output, shorter": _WRONG_SIZE,
    "gRPC variable_output, other dimensions": _WRONG_SIZE,
    "load batching_library": _LIBRARY,
}


@pytest.fixture(scope="module")
def our_answers() -> dict[str, Any]:
    return SUITE.answers()


@pytest.mark.e2e
@pytest.mark.parametrize("name", CASES)
def test_our_server_treats_tensors_as_the_real_one(name: str, our_answers: dict[str, Any]) -> None:
    assert our_answers[name] == {**REAL, **DIFFERENT}[name]


@pytest.mark.e2e
@pytest.mark.part("peers")
def test_recording_is_what_the_real_server_answers() -> None:
    assert SUITE.answers(is_real=True) == REAL


def test_recordings_have_all_cases_and_a_reason_for_each_difference() -> None:
    assert SUITE.mistakes(KNOWN_DIFFERENCES) == {}
