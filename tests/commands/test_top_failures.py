# SPDX-License-Identifier: Apache-2.0
"""Errors in `pytriton top`: their rate, and the screen with their groups."""

from __future__ import annotations

import queue
import time

import pytest

from pytriton.client.kserve.errors import AskError
from pytriton.tools.commands.top.command import ReadingThread, ServerReader, ServerReading, take
from pytriton.tools.commands.top.failures import FailuresReading, failure_lines, read_failures
from pytriton.tools.commands.top.rows import rows_of
from pytriton.tools.commands.top.samples import MetricsSample, add_page_numbers, read_metrics
from pytriton.tools.commands.top.state import ESCAPE, TopScreen, ViewState
from pytriton.tools.commands.top.view import Shown, draw
from tests.e2e.waiting import DEADLINE_S

METRICS = """
nv_inference_request_success{{model="m",version="1"}} {ok}
nv_inference_request_failure{{model="m",version="1",reason="BACKEND"}} {failed}
nv_inference_request_failure{{model="m",version="1",reason="CANCELED"}} {cancelled}
"""
GROUP = {
    "group": 1, "model": "m", "version": "1", "kind": "ValueError", "reason": "BACKEND",
    "count": 1234, "first": 10.0, "last": 20.0, "place": "/models/m/1/model.py:7 execute",
    "example": {"message": "Failed to process", "traceback": "Traceback\n  …\nValueError: no room"},
}  # fmt: skip
REFUSED = {
    "group": 2, "model": "", "version": "", "kind": "Not found", "reason": "REFUSED",
    "count": 3, "first": 10.0, "last": 20.0, "place": "Request for unknown model: '…'",
    "example": {"message": "Request for unknown model: 'x\x1b[2J'", "traceback": ""},
}  # fmt: skip


def sample(at_s, refused=0, unknown=0, **counts) -> MetricsSample:
    read = read_metrics(METRICS.format(**counts), at_s)
    entry = {"name": "m", "version": "1", "refused": refused}
    document = {"started": 1.0, "now": {"models": [entry], "refused": unknown}}
    add_page_numbers(read, document, now_s=2.0)
    return read


def text_of(lines) -> str:
    return "\n".join(line.plain for line in lines)


def reading(*groups, has_details=True) -> FailuresReading:
    return read_failures({"groups": list(groups), "has_details": has_details})


def test_errors_are_failures_and_refusals_but_not_cancellations():
    before = sample(1.0, ok=10, failed=1, cancelled=1)
    after = sample(3.0, refused=6, ok=20, failed=5, cancelled=9)

    (row,) = rows_of(before, after, {})
    assert row.errors_s == (4 + 6) / 2
    assert row.requests_s == (10 + 4 + 8 + 6) / 2


def test_requests_that_reach_no_model_are_in_the_totals():
    shown = Shown("here")
    first = sample(1.0, ok=0, failed=0, cancelled=0)
    take(shown, None, ServerReading(first))
    take(shown, first, ServerReading(sample(2.0, unknown=5, ok=0, failed=0, cancelled=0)))

    head = draw(shown, ViewState(), 100, 10)[1]
    assert "requests 5.0/s   errors 5.0/s" in head.plain
    assert any("red" in str(span.style) for span in head.spans)


def test_groups_show_their_count_place_and_words():
    lines = failure_lines(reading(GROUP, REFUSED), {20.0: "5 s"}, "TOKEN", 20)

    assert text_of(lines) == (
        "   1,234  ValueError  m v1, the model failed, 5 s ago\n"
        "          /models/m/1/model.py:7 execute\n"
        "          ValueError: no room\n"
        "       3  Not found  no model, refused, 5 s ago\n"
        "          Request for unknown model: 'x�[2J'"
    )
    assert str(lines[0].style) == "bold red"


def test_groups_without_a_token_say_what_they_need():
    plain = {name: GROUP[name] for name in GROUP if name not in ("place", "example")}
    lines = failure_lines(reading(plain, has_details=False), {20.0: "5 s"}, "TOKEN", 20)

    assert text_of(lines) == (
        " Places and messages need the page's token: --token, or the variable TOKEN.\n"
        "   1,234  ValueError  m v1, the model failed, 5 s ago"
    )


def test_cancellations_are_not_red():
    (line, *_) = failure_lines(reading({**GROUP, "reason": "CANCELED"}), {20.0: "5 s"}, "TOKEN", 9)

    assert str(line.style) == "dim"


@pytest.mark.parametrize("room, shown, more", [(6, 2, ""), (5, 1, "and 1 more"), (3, 0, "and 2")])
def test_groups_that_do_not_fit_are_counted(room, shown, more):
    lines = failure_lines(reading(GROUP, GROUP), {20.0: "5 s"}, "TOKEN", room)

    assert len(lines) <= room
    assert text_of(lines).count("the model failed") == shown
    assert more in lines[-1].plain


def test_server_without_failures_or_without_an_answer_says_so():
    assert text_of(failure_lines(reading(), {}, "T", 9)) == (
        " No request has failed since the server started."
    )
    assert text_of(failure_lines(None, {}, "T", 9)) == " …"
    assert text_of(failure_lines(FailuresReading(problem="no"), {}, "T", 9)) == " no"


def test_key_opens_the_errors_and_closes_them():
    state = ViewState()
    state.press("e", [])
    opened = state.screen
    state.press(ESCAPE, [])
    closed = state.screen
    state.press("e", [])
    state.press("e", [])

    assert (opened, closed, state.screen) == (TopScreen.ERRORS, TopScreen.TABLE, TopScreen.TABLE)


def test_screen_has_the_groups():
    shown = Shown("here", failures=reading({**GROUP, "last": time.time()}))

    text = text_of(draw(shown, ViewState(TopScreen.ERRORS), 80, 12))
    assert "ValueError  m v1, the model failed, 0 s ago" in text


class PagelessServer:
    """The clients of a server that has no page."""

    metrics_address = "http://localhost:8002"

    def __init__(self, answer):
        self.metrics = self
        self.answer = answer

    def get_document(self, path):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    "answer, problem",
    [
        (AskError("nobody listens"), "The server does not tell its last errors: nobody listens"),
        ({}, "http://localhost:8002 does not tell the last errors of a server."),
        ([], "http://localhost:8002 does not tell the last errors of a server."),
    ],
)
def test_server_that_does_not_tell_its_errors_is_said_so(answer, problem):
    assert ServerReader(PagelessServer(answer)).failures().problem == problem


class Source:
    """A server that has nothing but failures."""

    def read(self):
        return ServerReading(problem="nothing")

    def failures(self):
        return reading(GROUP)


def test_failures_are_read_while_somebody_looks_at_them():
    thread = ReadingThread(Source(), 60.0)
    thread.start()
    first = thread.readings.get(timeout=DEADLINE_S)
    thread.tell_failures(is_wanted=True)
    second = thread.readings.get(timeout=DEADLINE_S)
    thread.stop()

    assert (first.failures, first.problem) == (None, "nothing")
    assert second.failures == reading(GROUP)
    with pytest.raises(queue.Empty):
        thread.readings.get_nowait()


class OddServer:
    def read(self):
        raise KeyError("model")


def test_answer_that_is_not_understood_is_shown():
    reader = ReadingThread(OddServer(), 60.0)
    reader.start()
    reading = reader.readings.get(timeout=DEADLINE_S)
    reader.stop()

    assert reading.problem == "The server's answer cannot be understood: KeyError('model')"
