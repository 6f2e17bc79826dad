# SPDX-License-Identifier: Apache-2.0
"""Sequences beside the real Triton: the same arrivals, as recorded, and live where installed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sequence_differential.recording import SUITE

_NAMES_BY_REASON = {
    "states are kept for models of the Python backend, too, which Triton's does not do": """
        states_are_kept
    """,
    "a first state has the dims that are configured for it": """
        a_first_state_of_a_variable_size
    """,
    "warm-up requests have control inputs, which a model that reads them needs": """
        warm_up
    """,
    "the real server takes the padding of its buffer for a second string": """
        correlation_ids_as_strings
    """,
    "a text is refused where the model expects a number, as Triton's later releases do": """
        a_string_for_a_numeric_correlation_id
    """,
    "a running request keeps its sequence alive": """
        a_request_that_takes_longer_than_idle
    """,
    "a cancelled request is not executed": """
        a_queued_request_of_a_candidate_is_cancelled
    """,
    "requests that end because an earlier one was cancelled are told so: Triton says nothing": """
        a_sequence_in_the_backlog_is_cancelled
        those_behind_a_cancelled_request
    """,
    "a slot is free when the last request of its sequence was answered, not when it starts": """
        the_slot_of_a_last_request_that_runs
    """,
    "a batch ends with the last slot that has a request in it": """
        three_different_shapes
        two_different_shapes
    """,
    "candidates are executed in the order of arrival, also if they share a slot": """
        oldest_with_sequences_of_one_request
    """,
    "an error of a model is a failure, also where it answered with it": """
        a_request_fails
        statistics
    """,
    "generate takes the members of the sequence extension": """
        generate_with_sequences
    """,
    "the message says what came, or why": """
        control_inputs_that_clients_send
        load also_dynamic
        load both_strategies
    """,
}

KNOWN_DIFFERENCES = {
    name.strip(): reason
    for reason, names in _NAMES_BY_REASON.items()
    for name in names.strip().splitlines()
}


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
