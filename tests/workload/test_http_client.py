# SPDX-License-Identifier: Apache-2.0
"""The HTTP client of the workload: what it writes, reads, refuses, and does to a connection."""

from __future__ import annotations

import json

import pytest

from tests.workload import models
from tests.workload.calls import (
    Call,
    Conduct,
    Cut,
    End,
    Form,
    Kind,
    Place,
    Port,
    Region,
    SequenceStep,
    compress,
    decompress,
)
from tests.workload.scripted import Scripted, events, http_answer


def live(number=1, **settings):
    return Call(number, Kind.LIVE, Port.HTTP, **settings)


def double(number=1, **settings):
    return Call(number, Kind.INFER, Port.HTTP, "double", models.rows_of(number), **settings)


def stream(number=1, count=2, **settings):
    inputs = models.stream_inputs(number, count)
    return Call(number, Kind.STREAM, Port.HTTP, "stream", inputs, **settings)


def answer_to(call, **members):
    """The right answer to a call of `double`, in JSON."""
    ((output,),) = models.ANSWERS["double"](call)
    tensor = {"name": "OUT", "datatype": "INT32", "shape": [1, 4], "data": output.values()}
    document = {"id": call.id, "model_name": "double", "model_version": "1", "outputs": [tensor]}
    return http_answer(json.dumps(document | members).encode())


@pytest.mark.parametrize("size", [1, 3, 7, 10_000])
def test_answers_are_read_in_pieces_of_any_size(size):
    scripted = Scripted()
    calls = [double(1), live(2), stream(3), live(4)]
    scripted.submit(*calls)
    text = b"".join(
        (
            answer_to(calls[0]),
            http_answer(b""),
            events(b'data: {"OUT":[1,0]}\n\n', b'data: {"OUT":[1,1]}\n', b"\n"),
            http_answer(b"", b"Connection: close"),
        )
    )
    scripted.receive(*(text[at : at + size] for at in range(0, len(text), size)))

    assert scripted.violations == []
    assert [call.outcome.end for call in scripted.ended] == [End.ANSWERED] * 4
    assert calls[0].outcome.responses[0].outputs == models.ANSWERS["double"](calls[0])[0]
    documents = [each.document for each in calls[2].outcome.responses]
    assert documents == [{"OUT": [1, 0]}, {"OUT": [1, 1]}]


def test_tensors_in_shared_memory_are_named_and_not_sent():
    scripted = Scripted()
    places = {"IN": Place("a region", 3, 16), "OUT": Place("a region", 40, 16)}
    call = double(places=places)
    scripted.submit(call)
    head, document = scripted.written().split(b"\r\n\r\n")
    answer = {"name": "OUT", "datatype": "INT32", "shape": [1, 4]}
    scripted.receive(http_answer(json.dumps({"id": call.id, "outputs": [answer]}).encode()))

    assert b"Content-Length: %d" % len(document) in head
    request = json.loads(document)
    assert request["inputs"][0]["parameters"] == {
        "shared_memory_region": "a region",
        "shared_memory_offset": 3,
        "shared_memory_byte_size": 16,
    }
    assert request["outputs"][0]["parameters"]["shared_memory_offset"] == 40
    assert call.outcome.responses[0].outputs[0].raw == b""
    assert scripted.violations == []


def test_regions_are_registered_listed_and_given_up_by_their_names():
    scripted = Scripted()
    region = Region("/key", 1, 2)
    kinds = (Kind.REGISTER, Kind.REGIONS, Kind.UNREGISTER)
    scripted.submit(
        *(
            Call(number, kind, Port.HTTP, text="a b", region=region)
            for number, kind in enumerate(kinds)
        ),
        Call(9, Kind.UNREGISTER, Port.HTTP),
    )
    written = scripted.written()

    assert b"POST /v2/systemsharedmemory/region/a%20b/register HTTP/1.1" in written
    assert b'{"key":"/key","offset":1,"byte_size":2}' in written
    assert b"GET /v2/systemsharedmemory/region/a%20b/status HTTP/1.1" in written
    assert b"POST /v2/systemsharedmemory/region/a%20b/unregister HTTP/1.1" in written
    assert b"POST /v2/systemsharedmemory/unregister HTTP/1.1" in written


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_bodies_are_compressed_both_ways(coding):
    scripted = Scripted()
    call = double(coding=coding, accepts=coding)
    scripted.submit(call)
    head, body = scripted.written().split(b"\r\n\r\n", 1)
    _, answer = answer_to(call).split(b"\r\n\r\n", 1)
    encoding = b"Content-Encoding: " + coding.encode()
    scripted.receive(http_answer(compress(answer, coding), encoding))

    assert encoding in head
    assert b"Accept-" + encoding.replace(b"Content-", b"") in head
    assert head.count(b"\r\nContent-Length: ") == 1
    assert decompress(body, coding).endswith(call.inputs[0].raw)
    assert call.outcome.responses[0].outputs == models.ANSWERS["double"](call)[0]


@pytest.mark.parametrize(
    "fields, body",
    [
        ((), b"{}"),
        ((b"Content-Encoding: deflate",), compress(b"{}", "deflate")),
        ((b"Content-Encoding: gzip",), b"{}"),
        ((b"Content-Encoding: gzip",), compress(b"{}", "gzip")[:-1]),
        ((b"Content-Encoding: gzip",), compress(b"{}", "gzip") + b"more"),
    ],
)
def test_answer_that_is_not_compressed_as_its_client_said_is_a_violation(fields, body):
    scripted = Scripted()
    call = double(accepts="gzip")
    scripted.submit(call)
    scripted.receive(http_answer(body, *fields))

    assert len(scripted.violations) == 1


def test_prompt_is_continued_on_a_route_of_its_own():
    scripted = Scripted()
    call = Call(1, Kind.COMPLETION, Port.HTTP, "chat", text="some words")
    scripted.submit(call)
    written = scripted.written()

    assert written.startswith(b"POST /v1/completions HTTP/1.1")
    assert b'{"model":"chat","prompt":"some words","stream":false}' in written


def test_binary_request_has_its_tensors_behind_the_json():
    scripted = Scripted()
    call = double(7, sequence=SequenceStep(5, 0, is_start=True, is_end=False), priority=2)
    scripted.submit(call, double(8), double(9, form=Form.TEXT))
    first, second, third = scripted.written().split(b"POST ")[1:]
    head, _, body = first.partition(b"\r\n\r\n")
    size = int(head.split(b"Inference-Header-Content-Length: ")[1].split(b"\r\n")[0])
    document = json.loads(body[:size])

    assert body[size:] == call.inputs[0].raw
    assert document["id"] == "0000000007"
    assert document["parameters"] == {
        "sequence_id": 5, "sequence_start": True, "sequence_end": False, "priority": 2,
        "binary_data_output": True,
    }  # fmt: skip
    assert b'"id":"0000000008"' in second
    assert json.loads(third.partition(b"\r\n\r\n")[2])["inputs"][0]["data"] == [576, 577, 578, 579]


@pytest.mark.parametrize(
    "text",
    [
        b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 0\n\n\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n folded\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nna me: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTX",
        http_answer(b"x"),
        http_answer(b"not JSON", status=b"400 Bad Request"),
        http_answer(b'{"error": 1}', status=b"400 Bad Request"),
        http_answer(b'{"error": "x", "more": 1}', status=b"400 Bad Request"),
        http_answer(b"") + b"H",
        http_answer(b"") + http_answer(b""),
    ],
)
def test_what_http_does_not_allow_is_a_violation(text):
    scripted = Scripted()
    scripted.submit(live())
    scripted.receive(text)

    assert len(scripted.violations) == 1
    assert scripted.transport.is_aborted


@pytest.mark.parametrize(
    "text",
    [
        events(b"data: {}\n\n").replace(b"0\r\n\r\n", b"0\r\ntrailer: x\r\n\r\n"),
        events(b"data: {}\n\n").replace(b"a\r\ndata", b"xyz\r\ndata"),
        events(b"data: {}\n\n").replace(b"\n\n\r\n", b"\n\nAB"),
        events(b"event: x\n\n"),
        events(b"data: {}\n"),
        events(b"data: {\n\n"),
        events(b'data: {"error":"x"}\n\n', b"data: {}\n\n"),
        events(b"data: {}\n\n", status=b"500 Internal Server Error"),
        http_answer(b"{}"),
    ],
)
def test_what_a_stream_of_events_does_not_allow_is_a_violation(text):
    scripted = Scripted()
    scripted.submit(stream())
    scripted.receive(text)

    assert len(scripted.violations) == 1
    assert scripted.ended[0].outcome.end is End.BROKEN


def test_tensors_that_do_not_fit_their_sizes_are_a_violation():
    scripted = Scripted()
    scripted.submit(double())
    tensor = {"name": "OUT", "datatype": "INT32", "shape": [1, 4]}
    tensor["parameters"] = {"binary_data_size": 16}
    text = json.dumps({"outputs": [tensor]}).encode()
    field = b"Inference-Header-Content-Length: %d" % len(text)
    scripted.receive(http_answer(text + bytes(17), field))

    assert scripted.violations == ["tensors have 16 bytes, but 17 follow the JSON"]


def test_bytes_that_nobody_asked_for_are_a_violation():
    scripted = Scripted()
    scripted.receive(http_answer(b""))

    assert "no call asked for" in scripted.violations[0]


def test_lost_connection_ends_each_open_call_once():
    scripted = Scripted()
    scripted.submit(live(1), live(2))
    scripted.receive(http_answer(b""))
    scripted.transport.lose(ConnectionResetError())
    scripted.loop.run()

    assert [call.outcome.end for call in scripted.ended] == [End.ANSWERED, End.LOST]
    assert [call.outcome.ends for call in scripted.ended] == [1, 1]
    assert isinstance(scripted.lost[0], ConnectionResetError)


def test_request_is_sent_in_pieces_with_pauses():
    scripted = Scripted()
    slow = live(1, conduct=Conduct(piece_bytes=10, piece_pause_s=1.0))
    scripted.submit(slow, live(2))
    first = scripted.written()
    scripted.loop.advance(1.0)
    second = scripted.written()
    scripted.loop.advance(60.0)
    rest = scripted.written()

    assert (len(first), len(second)) == (10, 10)
    assert (first + second + rest).count(b"GET /v2/health/live HTTP/1.1\r\n") == 2
    assert slow.outcome.sent_s > slow.outcome.began_s


@pytest.mark.parametrize("cut", [Cut.ABORT, Cut.CLOSE, Cut.HALF])
def test_client_leaves_after_some_bytes_of_its_request(cut):
    scripted = Scripted()
    rude = live(1, conduct=Conduct(cut_after_sent_bytes=5, cut=cut))
    scripted.submit(rude, live(2))

    assert scripted.written() == b"GET /"
    assert scripted.transport.sent_eof is (cut is Cut.HALF)
    assert scripted.transport.is_closed is (cut is not Cut.HALF)
    scripted.transport.lose()
    scripted.loop.run()
    ends = {call.number: call.outcome.end for call in scripted.ended}
    assert ends == {1: End.CUT, 2: End.UNSENT}


def test_client_leaves_after_some_bytes_of_its_answer():
    scripted = Scripted()
    scripted.submit(stream(1, conduct=Conduct(cut_after_received_bytes=130)))
    text = events(b'data: {"OUT":[1,0]}\n\n', b'data: {"OUT":[1,1]}\n\n')
    scripted.receive(text[:120], text[120:])

    assert scripted.ended[0].outcome.end is End.CUT
    assert scripted.violations == []


def test_client_gives_up_after_a_time():
    scripted = Scripted()
    scripted.submit(live(1, conduct=Conduct(cancel_after_s=2.0)))
    scripted.loop.advance(1.9)
    assert scripted.ended == []
    scripted.loop.advance(0.2)

    assert scripted.ended[0].outcome.end is End.CUT


def test_client_stops_reading_for_a_while():
    scripted = Scripted()
    conduct = Conduct(read_pause_after_bytes=1, read_pause_s=3.0)
    scripted.submit(live(1, conduct=conduct), live(2))
    scripted.receive(http_answer(b""), http_answer(b""))
    assert [call.number for call in scripted.ended] == [1]
    scripted.loop.advance(3.1)

    assert [call.number for call in scripted.ended] == [1, 2]


def test_error_before_the_whole_request_ends_the_connection():
    scripted = Scripted()
    scripted.submit(live(1, conduct=Conduct(piece_bytes=5, piece_pause_s=9.0)), live(2))
    scripted.receive(http_answer(b'{"error":"slow"}', status=b"408 Request Timeout"))

    assert [call.outcome.end for call in scripted.ended] == [End.ERROR, End.UNSENT]
    assert scripted.transport.is_closed


def test_success_before_the_whole_request_is_a_violation():
    scripted = Scripted()
    scripted.submit(live(1, conduct=Conduct(piece_bytes=5, piece_pause_s=9.0)))
    scripted.receive(http_answer(b""))

    assert scripted.violations == ["the answer came before the whole request was sent"]


def test_no_call_is_sent_after_the_last_answer():
    scripted = Scripted()
    scripted.submit(live(1))
    scripted.receive(http_answer(b"", b"Connection: close"))
    scripted.written()
    scripted.submit(live(2))

    assert [call.outcome.end for call in scripted.ended] == [End.ANSWERED, End.UNSENT]
    assert scripted.written() == b""
