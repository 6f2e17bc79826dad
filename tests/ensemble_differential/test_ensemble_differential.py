# SPDX-License-Identifier: Apache-2.0
"""Ensembles beside the real Triton: as recorded, and live where it is installed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ensemble_differential.cases import CASES
from tests.ensemble_differential.known_differences import KNOWN_DIFFERENCES
from tests.ensemble_differential.recording import GOLDEN, OURS, answers, load
from tests.ensemble_differential.servers import our_server, real_server

REAL = load(GOLDEN)
DIFFERENT = load(OURS)
EXPECTED = {**REAL, **DIFFERENT}


@pytest.fixture(scope="module")
def our_answers() -> dict[str, Any]:
    return answers(our_server)


@pytest.mark.e2e
@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_our_server_runs_ensembles_as_the_real_one(name: str, our_answers: dict[str, Any]) -> None:
    assert our_answers[name] == EXPECTED[name]


@pytest.mark.e2e
@pytest.mark.part("peers")
def test_recording_is_what_the_real_server_answers() -> None:
    assert answers(real_server) == REAL


def test_every_case_is_recorded_once() -> None:
    assert sorted(case.name for case in CASES) == sorted(REAL)


def test_every_difference_is_known() -> None:
    assert set(DIFFERENT) == set(KNOWN_DIFFERENCES)


@pytest.mark.parametrize("name", sorted(KNOWN_DIFFERENCES))
def test_known_difference_is_one(name: str) -> None:
    assert DIFFERENT[name] != REAL[name]
