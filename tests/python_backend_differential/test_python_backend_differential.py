# SPDX-License-Identifier: Apache-2.0
"""Models of the Python backend beside the real Triton: as recorded, and live where installed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.python_backend_differential.recording import SUITE

_NAMES_BY_REASON = {
    "the message says what came, or why": """
        bls failures: bad version
        bls failures: model that is not loaded
        bls failures: unknown model
        bls failures: unknown model by iterator
        bls failures: unknown version
        control loading: load broken configuration
        control loading: load files a list
        coroutine unknown model: coupled
        coroutine unknown model: decoupled
        load failing_environment: load
        load failing_exit_on_initialize: load
        load failing_unknown_field: load
        metric counters: labels of numbers
        metric counters: labels with a number for a key
        request options: correlation id float
        tensor from DLPack: None
        tensor from DLPack: list
        tensor from DLPack: object without a device
    """,
    "the real message is about C++": """
        metric histograms: buckets of text
        request options: correlation id negative
        request options: correlation id too big
        request parameters: a list
        request parameters: a text
        request parameters: pairs
    """,
    "later releases have it": """
        bls failures: error ALREADY_EXISTS
        bls failures: error CANCELLED
        bls failures: error INVALID_ARG
        bls failures: error NOT_FOUND
        bls failures: error UNAVAILABLE
        bls failures: error UNKNOWN
        bls failures: error UNSUPPORTED
        bls iterators: cancel
        ready: hook
        response parameters: None
        response parameters: by keyword
        response parameters: float
        response parameters: list
        response parameters: none
        response parameters: nothing
        response parameters: number for a key
        response parameters: several
    """,
    "more is taken, and does what it says": """
        helper conversions: bool of Python
        helper lookups: policy without the key
        request needs: outputs in a set
        request options: correlation id bytes
        request options: preferred_memory None
        request options: trace None
        tensor dtypes: big endian array
        tensor forms: Triton's number of its dtype
        tensor mistakes: array as a keyword
    """,
    "a mistake is told at once": """
        load auto_bad_dtype: load
        load without_execute: load
        load without_execute: answer
        request defaults: sender of a made request
        request parameters: big number
        request received: release flags 0
        request received: release flags 4
    """,
    "an error of a model is a failure, also where it answered with it": """
        statistics: error NOT_FOUND
    """,
    "the real server loses the error": """
        bls iterators: error after a response
    """,
    "the real server sends two answers to one HTTP request": """
        sender send > raise >: answer
    """,
    "the files that a load brings along are served, also for a model that runs": """
        control loading: which answers
    """,
    "the real server takes a generator for a coroutine": """
        execute generator: HTTP
    """,
    "all frames of the model are named, and only those": """
        coroutine failing: coupled
        execute raise wordless: HTTP
    """,
    "a failure in finalize is an error, and is logged with its traceback": """
        life: log
    """,
    "the real server does not decode the name in the path": """
        load failing_name_with;semicolon: load
    """,
    "a family ends with its last metric, also where its name comes again": """
        metric deletion: family of a name that was deleted
    """,
    "backslashes are escaped, as the text format wants it": """
        metric gauges: shown
    """,
    "an empty policy changes nothing": """
        model config: policy of nothing
    """,
    "the names that would have been right follow the real server's words": """
        bls failures: unknown input
        sent request unknown input: HTTP
        sent request unknown input: gRPC
    """,
    "memory is shared instead of copied": """
        tensor from DLPack: tensor keeps its memory
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
