# SPDX-License-Identifier: Apache-2.0
"""Backends in C on our server beside the real Triton: as recorded, and live where installed."""

from __future__ import annotations

from typing import Any

import pytest

from pytriton.runtime.native_backend.worker import CODE_SETTING
from tests.native_backend import building
from tests.native_backend.known_differences import KNOWN_DIFFERENCES
from tests.native_backend.native_rig import COMPILED, WRITTEN
from tests.native_backend.recording import SUITE

REAL, DIFFERENT = SUITE.recorded()
EXPECTED = {**REAL, **DIFFERENT}

pytestmark = pytest.mark.skipif(bool(building.missing()), reason=building.missing())


@pytest.fixture(scope="module", params=[COMPILED, WRITTEN])
def our_answers(request: pytest.FixtureRequest) -> dict[str, Any]:
    return SUITE.answers(is_real=False, environment={CODE_SETTING: request.param})


@pytest.mark.e2e
@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_our_server_runs_backends_as_the_real_one(name: str, our_answers: dict[str, Any]) -> None:
    assert our_answers[name] == EXPECTED[name]


@pytest.mark.e2e
def test_everything_that_our_server_answered_is_compared(our_answers: dict[str, Any]) -> None:
    assert set(our_answers) == set(EXPECTED)


@pytest.mark.e2e
@pytest.mark.part("peers")
def test_recording_is_what_the_real_server_answers() -> None:
    assert SUITE.answers(is_real=True) == REAL


def test_recordings_have_all_cases_and_a_reason_for_each_difference() -> None:
    assert SUITE.mistakes(KNOWN_DIFFERENCES) == {}
