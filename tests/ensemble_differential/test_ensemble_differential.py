# SPDX-License-Identifier: Apache-2.0
"""Ensembles beside the real Triton: as recorded, and live where it is installed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ensemble_differential.recording import SUITE

_NAMES_BY_REASON = {
    "an output that other steps also take can be asked for alone": """
        tensor between steps is the only output
    """,
    "later releases have max_inflight_requests": """
        config
        config of a nested ensemble
        config of an ensemble with a decoupled step
    """,
    "a failed request is one failure, also of the ensembles around it": """
        statistics of a failing step
    """,
    "the answer tells the sequence, also where its tensor is empty": """
        stream of words before a step, in order: 1 long nothing
    """,
    "the message says what came, or why": """
        stream: unknown input
    """,
    "an error has the status of an error": """
        decoupled ensembles and generate
    """,
    "the index says why an ensemble is not available": """
        life: step with a smaller batch
        life: refused ensemble leaves its steps
    """,
    "an ensemble goes on as it was if its new configuration is refused, as other models do": """
        life: change that is refused
    """,
}

KNOWN_DIFFERENCES = {
    name.strip(): reason
    for reason, names in _NAMES_BY_REASON.items()
    for name in names.strip().splitlines()
}


REAL, DIFFERENT = SUITE.recorded()
EXPECTED = {**REAL, **DIFFERENT}


@pytest.fixture(scope="module")
def our_answers() -> dict[str, Any]:
    return SUITE.answers()


@pytest.mark.e2e
@pytest.mark.parametrize("name", [case.name for case in SUITE.cases])
def test_our_server_runs_ensembles_as_the_real_one(name: str, our_answers: dict[str, Any]) -> None:
    assert our_answers[name] == EXPECTED[name]


@pytest.mark.e2e
@pytest.mark.part("peers")
def test_recording_is_what_the_real_server_answers() -> None:
    assert SUITE.answers(is_real=True) == REAL


def test_recordings_have_all_cases_and_a_reason_for_each_difference() -> None:
    assert SUITE.mistakes(KNOWN_DIFFERENCES) == {}
