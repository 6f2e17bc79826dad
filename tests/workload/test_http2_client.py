# SPDX-License-Identifier: Apache-2.0
"""The client of the workload that speaks HTTP/2 on the HTTP port: what it writes and refuses."""

from __future__ import annotations

import json
import random

import hpack
import pytest

from tests.workload import models
from tests.workload.calls import Call, Conduct, End, Kind, Port
from tests.workload.generator import Generator
from tests.workload.http2_client import FRAMES, Http2Client, split_request
from tests.workload.http2_connection import (
    CANCEL,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    literal,
)
from tests.workload.invalid import GRPC_FRAMES, HTTP2_REQUESTS, HTTP_REQUESTS
from tests.workload.scripted import Scripted

OK = literal(":status", "200")
EVENTS = OK + literal("content-type", "text/event-stream; charset=utf-8")


def scripted_http2(**settings):
    scripted = Scripted(Http2Client, **settings)
    scripted.receive(frame(SETTINGS, 0, 0, b""))
    scripted.written()
    return scripted


def live(number=1, **settings):
    return Call(number, Kind.LIVE, Port.HTTP, **settings)


def double(number=1, **settings):
    return Call(number, Kind.INFER, Port.HTTP, "double", models.rows_of(number), **settings)


def stream(number=1, count=2, **settings):
    inputs = models.stream_inputs(number, count)
    return Call(number, Kind.STREAM, Port.HTTP, "stream", inputs, **settings)


def head(stream_id, block=OK, *, ends=False):
    return frame(HEADERS, END_HEADERS | (END_STREAM if ends else 0), stream_id, block)


def body(stream_id, data, *, ends=True):
    return frame(DATA, END_STREAM if ends else 0, stream_id, data)


def answer_to(call):
    ((output,),) = models.ANSWERS["double"](call)
    tensor = {"name": "OUT", "datatype": "INT32", "shape": [1, 4], "data": output.values()}
    document = {"id": call.id, "model_name": "double", "model_version": "1", "outputs": [tensor]}
    return json.dumps(document).encode()


def sent_frames(data):
    found = []
    while data:
        size = int.from_bytes(data[:3], "big")
        found.append((data[3], data[4], int.from_bytes(data[5:9], "big"), data[9 : 9 + size]))
        data = data[9 + size :]
    return found


def test_requests_are_those_of_http1_on_streams_of_their_own():
    scripted = scripted_http2()
    scripted.submit(live(1), double(2))
    first, second, data = sent_frames(scripted.written())

    assert first[:3] == (HEADERS, END_HEADERS | END_STREAM, 1)
    assert hpack.Decoder().decode(first[3]) == [
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/v2/health/live"),
        (":authority", "localhost"),
    ]
    fields = dict(hpack.Decoder().decode(second[3]))
    assert second[:3] == (HEADERS, END_HEADERS, 3)
    assert fields["content-length"] == str(len(data[3]))
    assert data[:3] == (DATA, END_STREAM, 3)


@pytest.mark.parametrize("size", [1, 3, 7, 10_000])
def test_answers_are_read_in_any_order_and_in_pieces_of_any_size(size):
    scripted = scripted_http2()
    calls = [double(1), live(2), stream(3)]
    scripted.submit(*calls)
    text = b"".join(
        (
            head(5, EVENTS),
            body(5, b'data: {"OUT":[1,0]}\n\ndata: ', ends=False),
            head(3, ends=True),
            head(1),
            body(1, answer_to(calls[0])[:20], ends=False),
            body(5, b'{"OUT":[1,1]}\n\n', ends=False),
            body(1, answer_to(calls[0])[20:]),
            body(5, b""),
        )
    )
    scripted.receive(*(text[at : at + size] for at in range(0, len(text), size)))

    assert scripted.violations == []
    assert [call.number for call in scripted.ended] == [2, 1, 3]
    assert {call.outcome.end for call in calls} == {End.ANSWERED}
    assert calls[0].outcome.responses[0].outputs == models.ANSWERS["double"](calls[0])[0]
    documents = [each.document for each in calls[2].outcome.responses]
    assert documents == [{"OUT": [1, 0]}, {"OUT": [1, 1]}]


def test_error_has_the_status_and_the_text_of_the_answer():
    scripted = scripted_http2()
    call = double()
    scripted.submit(call)
    scripted.receive(head(1, literal(":status", "503")), body(1, b'{"error":"no"}'))

    assert call.outcome.end is End.ERROR
    assert (call.outcome.status, call.outcome.error) == (503, "no")


@pytest.mark.parametrize(
    "frames, part",
    [
        ([head(1, OK + literal("connection", "close"))], "of HTTP/1.1"),
        ([head(1, OK + literal("Name", "x"))], "capitals"),
        ([head(1, OK + literal("a", "x") * 2)], "twice"),
        ([head(1, literal("a", "x") + OK)], "head of a response"),
        ([head(1, literal(":status", "100"))], "head of a response"),
        ([head(1, OK + literal("content-length", "x"))], "content-length is"),
        ([head(1, OK + literal("content-length", "3")), body(1, b"ab")], "expected 3 bytes, got 2"),
        ([head(1), head(1, ends=True)], "a second head"),
        ([body(1, b"x")], "before the head"),
        ([head(3)], "nobody opened"),
        ([head(1), body(1, b"{")], "not JSON"),
        ([head(1, EVENTS), body(1, b"data: {")], "the events end with"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_answer_that_http2_does_not_allow_is_a_violation(frames, part):
    scripted = scripted_http2()
    call = double()
    scripted.submit(call)
    scripted.receive(*frames)

    assert len(scripted.violations) == 1
    assert part in scripted.violations[0]
    assert call.outcome.end is End.BROKEN


def test_client_that_gives_up_resets_its_stream_alone():
    scripted = scripted_http2()
    calls = [stream(1, conduct=Conduct(cancel_after_s=1.0)), live(2)]
    scripted.submit(*calls)
    scripted.written()
    scripted.loop.advance(1.5)
    kind, _, stream_id, code = sent_frames(scripted.written())[0]
    scripted.receive(head(1, EVENTS), head(3, ends=True))

    assert (kind, stream_id, int.from_bytes(code, "big")) == (RST_STREAM, 1, CANCEL)
    assert [call.outcome.end for call in calls] == [End.CANCELLED, End.ANSWERED]
    assert scripted.violations == []


def test_window_of_a_stream_is_small_if_its_client_says_so():
    scripted = scripted_http2(window_bytes=100)
    call = stream()
    scripted.submit(call)
    scripted.written()
    scripted.receive(head(1, EVENTS), body(1, b"data: ".ljust(60), ends=False))

    assert [each[0] for each in sent_frames(scripted.written())] == [WINDOW_UPDATE]
    scripted.receive(body(1, bytes(101), ends=False))
    assert "exceeds the window" in scripted.violations[0]


def test_large_request_waits_for_the_windows_of_the_server():
    scripted = scripted_http2()
    call = Call(1, Kind.INFER, Port.HTTP, "large", models.large_inputs(1, 1 << 15))
    scripted.submit(call)
    sent = sum(len(each[3]) for each in sent_frames(scripted.written()) if each[0] == DATA)

    assert sent == 65_535
    assert call.outcome.sent_s is None
    update = (1 << 20).to_bytes(4, "big")
    scripted.receive(frame(WINDOW_UPDATE, 0, 1, update), frame(WINDOW_UPDATE, 0, 0, update))
    assert sent_frames(scripted.written())[-1][1] == END_STREAM
    assert call.outcome.sent_s is not None


def test_invalid_call_is_frames_or_a_request():
    scripted = scripted_http2()
    scripted.submit(Call(1, Kind.INVALID, Port.HTTP, text=FRAMES, payload=GRPC_FRAMES[0]))

    assert scripted.written() == GRPC_FRAMES[0]

    scripted.submit(Call(2, Kind.INVALID, Port.HTTP, payload=HTTP2_REQUESTS[0]))
    (sent,) = sent_frames(scripted.written())
    fields, _ = split_request(HTTP2_REQUESTS[0])
    assert hpack.Decoder().decode(sent[3], raw=True) == fields


def test_some_clients_of_the_http_port_speak_http2():
    plans = Generator(random.Random("http2"), "hostile", models.repository_models()).plans(60, 20)
    speaking = [plan for plan in plans if plan.is_http2]

    assert {plan.port for plan in speaking} == {Port.HTTP}
    assert 0 < len(speaking) < sum(plan.port is Port.HTTP for plan in plans)
    invalid = [call for plan in speaking for call in plan.calls if call.kind is Kind.INVALID]
    assert {call.text for call in invalid} == {"", FRAMES}
    assert all(call.payload in HTTP_REQUESTS[3:] for call in invalid if not call.text)
