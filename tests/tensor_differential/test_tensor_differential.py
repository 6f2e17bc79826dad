# SPDX-License-Identifier: Apache-2.0
"""Reshaped, ragged and classified tensors beside the real Triton, as recorded and live."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tensor_differential.cases import CASES
from tests.tensor_differential.recording import GOLDEN, OURS, answers, load
from tests.tensor_differential.servers import our_server, real_server

REAL = load(GOLDEN)
DIFFERENT = load(OURS)
_WRONG_SIZE = "the real server sends data that does not fit to the shape that it says"
_LIBRARY = "the message says that compiled batching strategies are not supported"
KNOWN_DIFFERENCES = {
    "gRPC only_output, shorter": _WRONG_SIZE,
    "gRPC variable_output, other dimensions": _WRONG_SIZE,
    "load batching_library": _LIBRARY,
}


@pytest.fixture(scope="module")
def our_answers() -> dict[str, Any]:
    return answers(our_server())


@pytest.mark.e2e
@pytest.mark.parametrize("name", CASES)
def test_our_server_treats_tensors_as_the_real_one(name: str, our_answers: dict[str, Any]) -> None:
    assert our_answers[name] == {**REAL, **DIFFERENT}[name]


@pytest.mark.e2e
@pytest.mark.part("peers")
def test_recording_is_what_the_real_server_answers() -> None:
    assert answers(real_server()) == REAL


def test_every_case_is_recorded_and_every_difference_is_known() -> None:
    assert set(REAL) == set(CASES)
    assert set(DIFFERENT) == set(KNOWN_DIFFERENCES)
    assert all(DIFFERENT[name] != REAL[name] for name in DIFFERENT)
