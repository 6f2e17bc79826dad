# SPDX-License-Identifier: Apache-2.0
"""Verbose lines about requests."""

from __future__ import annotations

import logging
import re

import pytest

from pytriton.base.dtypes import FP32
from pytriton.base.errors import CancelledError, InternalError
from pytriton.base.messages import InferResponse, InferTensor
from pytriton.base.request_ids import add_to_log_records
from pytriton.serving.engine.observers import Members, Watch
from pytriton.serving.server.frontend import verbose_requests
from pytriton.serving.server.frontend.verbose_requests import (
    LoggedRequests,
    log_tensors,
)
from pytriton.serving.server.process.log_lines import LineLog
from tests.fakes import RecordingSink, infer_request

ERROR = InternalError("no %s")
NAME = verbose_requests.__name__


class Loop:
    """Leaves it to the test to write what was gathered."""

    def call_soon(self, callback):
        pass


LINES = LineLog(NAME, verbose_requests.__file__, Loop())


@pytest.fixture(autouse=True)
def verbose(caplog):
    factory = logging.getLogRecordFactory()
    add_to_log_records()
    caplog.set_level(logging.DEBUG, NAME)
    yield
    logging.setLogRecordFactory(factory)


def request(**fields):
    tensor = InferTensor("x", FP32, (2, 3), b"")
    return infer_request("m", {"x": tensor}, **fields)


def begin(**fields):
    sink = RecordingSink()
    return sink, Watch(sink, [LoggedRequests(LINES, members(request(**fields)))])


def members(*requests, chunk=None):
    return Members(requests, None, chunk, lambda: None)


def lines(caplog):
    LINES.write()
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
    log_tensors(LINES, members(request(id="a")))
    log_tensors(LINES, members(request(outputs=("y", "z"))))

    assert lines(caplog) == [
        ("request for model 'm' with x FP32 [2, 3], for all outputs", "a"),
        ("request for model 'm' with x FP32 [2, 3], for y, z", ""),
    ]


class Chunk:
    row_starts = range(4)

    def __init__(self):
        self.members = [1, 2, 3]


def begin_chunk(sink):
    requests = [request(id=each) for each in ("a", "", "b")]
    chunk = Chunk()
    logged = LoggedRequests(LINES, members(*requests, chunk=chunk))
    return chunk, Watch(sink, [logged])


class ForgetfulSink:
    """Forgets the members with their answer, as the sink of a chunk does."""

    def __init__(self):
        self.calls = []

    def on_rows(self, chunk, *arguments):
        chunk.members = []
        self.calls.append(arguments)

    def on_outcome(self, chunk, index, response, error, *, is_refused):
        self.calls.append((index, response, error, is_refused))


def test_each_member_of_a_chunk_has_a_line(caplog):
    sink = ForgetfulSink()
    chunk, logged = begin_chunk(sink)
    logged.on_outcome(chunk, 2, None, ERROR, is_refused=True)
    logged.on_outcome(chunk, 2, None, CancelledError(""), is_refused=False)
    logged.on_rows(chunk, 0, 2, (), 0)

    assert sink.calls[0] == (2, None, ERROR, True)
    assert sink.calls[-1] == (0, 2, (), 0)
    begin = "request for model 'm' took 1 us and"
    assert lines(caplog) == [
        (f"{begin} was refused: no %s", "b"),
        (f"{begin} was cancelled", "b"),
        (f"{begin} was answered with 1 response(s)", "a"),
        (f"{begin} was answered with 1 response(s)", ""),
    ]


def test_answers_that_could_not_be_sent_are_not_logged_as_answered(caplog):
    class Failing(ForgetfulSink):
        def on_rows(self, chunk, *arguments):
            raise ValueError("full")

    chunk, logged = begin_chunk(Failing())
    with pytest.raises(ValueError, match="full"):
        logged.on_rows(chunk, 0, 2, (), 0)

    assert lines(caplog) == []
