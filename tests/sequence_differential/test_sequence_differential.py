# SPDX-License-Identifier: Apache-2.0
"""Sequences beside the real Triton: the same arrivals, as recorded, and live where installed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sequence_differential.known_differences import KNOWN_DIFFERENCES
from tests.sequence_differential.recording import SUITE

REAL, DIFFERENT = SUITE.recorded()


@pytest.fixture(scope="module")
def seen_of_ours() -> dict[str, Any]:
    return SUITE.answers()


@pytest.mark.e2e
@pytest.mark.parametrize("name", [case.name for case in SUITE.cases])
def test_our_server_does_as_the_real_one(name: str, seen_of_ours: dict[str, Any]) -> None:
    assert seen_of_ours[name] == {**REAL, **DIFFERENT}[name]


@pytest.mark.e2e
@pytest.mark.part("peers")
def test_recording_is_what_the_real_server_does() -> None:
    assert SUITE.answers(is_real=True) == REAL


def test_recordings_have_all_cases_and_a_reason_for_each_difference() -> None:
    assert SUITE.mistakes(KNOWN_DIFFERENCES) == {}
