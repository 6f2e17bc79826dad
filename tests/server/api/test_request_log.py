# SPDX-License-Identifier: Apache-2.0
"""Verbose lines about requests."""

from __future__ import annotations

import logging
import re

import pytest

from pytriton.base.dtypes import FP32
from pytriton.base.errors import CancelledError, InternalError
from pytriton.base.messages import InferRequest, InferResponse, InferTensor
from pytriton.base.request_ids import add_to_log_records
from pytriton.serving.server.frontend.front_end import LoggedRequest, log_tensors
from tests.fakes import RecordingSink

ERROR = InternalError("no %s")


@pytest.fixture(autouse=True)
def verbose(caplog):
    factory = logging.getLogRecordFactory()
    add_to_log_records()
    caplog.set_level(logging.DEBUG, "pytriton.serving.server.frontend.front_end")
    yield
    logging.setLogRecordFactory(factory)


def request(**fields):
    tensor = InferTensor("x", FP32, (2, 3), b"")
    return InferRequest("m", {"x": tensor}, **fields)


def begin(**fields):
    sink = RecordingSink()
    return sink, LoggedRequest(request(**fields), sink)


def lines(caplog):
    return [
        (re.sub(r"\d+ us", "1 us", each.getMessage()), each.triton_request_id)
        for each in caplog.records
    ]


def test_answer_is_passed_on_and_logged(caplog):
    sink, logged = begin(id="a")
    logged.on_response(InferResponse("m", "1", "a", []), final=True)

    assert (len(sink.responses), sink.final_count) == (1, 1)
    text = "request for model 'm' took 1 us and was answered with 1 response(s)"
    assert lines(caplog) == [(text, "a")]


def test_stream_is_logged_at_its_end(caplog):
    _, logged = begin()
    logged.on_response(InferResponse("m", "1", "", []), final=False)
    logged.on_error(ERROR, final=False)
    logged.on_response(InferResponse("m", "1", "", []), final=False)

    assert lines(caplog) == []
    logged.on_response(None, final=True)

    assert "answered with 2 response(s)" in lines(caplog)[0][0]
    assert lines(caplog)[0][1] == ""


@pytest.mark.parametrize(
    "end, text",
    [
        (lambda each: each.on_error(ERROR), "failed: no %s"),
        (lambda each: each.on_error(CancelledError("")), "was cancelled"),
        (lambda each: each.on_refused(ERROR), "was refused: no %s"),
    ],
)
def test_errors_are_passed_on_and_logged(caplog, end, text):
    sink, logged = begin(id="a\n")
    end(logged)

    assert sink.final_count == 1
    assert lines(caplog) == [(f"request for model 'm' took 1 us and {text}", "a\\n")]


def test_tensors_are_logged_with_type_and_shape(caplog):
    log_tensors(request(id="a"))
    log_tensors(request(outputs=("y", "z")))

    assert [each.getMessage() for each in caplog.records] == [
        "request for model 'm' with x FP32 [2, 3], for all outputs",
        "request for model 'm' with x FP32 [2, 3], for y, z",
    ]
