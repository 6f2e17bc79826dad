# SPDX-License-Identifier: Apache-2.0
"""Requests over HTTP/2: they are the records that HTTP/1.1 makes, or they are refused."""

from __future__ import annotations

import json

import pytest

from pytriton.protocol.http2 import Http2ErrorCode, frames
from pytriton.protocol.http2.frames import frame
from pytriton.serving.server.http.http2_connection import Http2ServerConnection
from pytriton.serving.server.http.request import LARGE_BODY_BYTES
from tests.fake_network import DELIVERIES
from tests.server.http2_fakes import Http2Client, head, length
from tests.server.http_fakes import Client, get
from tests.wire.http2.frame_client import data

PREFACE = frames.PREFACE
SETTINGS = frame(frames.SETTINGS, 0, 0, b"")


@pytest.fixture
def client():
    return Http2Client()


# Which version a connection has


def test_first_bytes_choose_the_version(sizes):
    client = Client()
    client.send(PREFACE + SETTINGS, sizes)

    assert isinstance(client.transport.protocol, Http2ServerConnection)
    assert list(client.handler.connections) == [client.transport.protocol]
    assert client.received[3] == frames.SETTINGS


def test_method_that_begins_as_the_preface_is_of_http_1(sizes):
    client = Client()
    client.send(b"PROPFIND / HTTP/1.1\r\nHost: h\r\n\r\n" + get(b"/a"), sizes)

    assert client.bodies() == [b"PROPFIND / ", b"GET /a "]


@pytest.mark.parametrize("start", [b"P", b"PRI", PREFACE[:-1]])
def test_beginning_of_the_preface_has_the_time_of_a_head(start):
    client = Client(header_timeout_s=60)
    client.send(start)
    client.loop.advance(59)

    assert client.received == b""

    client.loop.advance(3)

    assert client.statuses() == [408]
    assert client.saw_end


@pytest.mark.parametrize("wrong", [b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", b"PRI * HTTP/1.1\r\n\r\n"])
def test_wrong_preface_is_refused(wrong, sizes):
    client = Client()
    client.send(wrong + get(b"/smuggled"), sizes)

    (answer,) = client.answers()
    assert answer.status in (400, 505)
    assert client.saw_end
    assert client.handler.requests == []


@pytest.mark.parametrize("first", [get(b"/a"), get(b"/a") + get(b"/b")])
def test_connection_does_not_change_its_version(first, sizes):
    client = Client()
    client.send(get(b"/a"))
    client.send(first)
    client.send(PREFACE + SETTINGS, sizes)

    assert client.statuses()[-1] == 505
    assert client.saw_end
    assert isinstance(client.transport.protocol, type(client.connection))


# Heads


def test_head_is_what_http_1_would_make(client):
    fields = head(
        b"/a?b=c",
        (b"x-one", b"1"),
        (b"cookie", b"a=1"),
        (b"x-two", b"2"),
        (b"cookie", b"b=2"),
        (b"x-two", b"3"),
        host=b"example:80",
    )
    stream_id, wire = client.request(fields)
    client.send(wire)
    (request,) = client.handler.requests
    made = request.head

    assert client.answer(stream_id).body == b"GET /a?b=c "
    assert (made.method, made.target, made.content_length) == (b"GET", b"/a?b=c", 0)
    assert made.keep_alive
    assert not made.is_http_10
    assert made.headers == {
        b"host": b"example:80",
        b"x-one": b"1",
        b"x-two": b"2, 3",
        b"cookie": b"a=1; b=2",
    }
    assert made.header_list[0] == (b"host", b"example:80")
    assert made.header_list[1:] == fields[4:]


def test_host_takes_the_place_of_an_authority(client):
    fields = [each for each in head() if each[0] != b":authority"]
    stream_id, wire = client.request([*fields, (b"host", b"h:1")])
    client.send(wire)

    assert client.answer(stream_id).status == 200
    assert client.handler.requests[0].head.headers[b"host"] == b"h:1"


def test_host_like_the_authority_is_one_host(client):
    stream_id, wire = client.request(head(b"/", (b"host", b"h")))
    client.send(wire)

    assert client.answer(stream_id).status == 200
    assert client.handler.requests[0].head.header_list == [(b"host", b"h")]


def test_equal_heads_share_what_was_found_for_them(client):
    client.post(b"one", b"/a")
    client.post(b"two", b"/a")
    client.post(b"tri", b"/a")
    second, third = client.handler.requests[1:]

    assert third.head is second.head
    assert [bytes(each.body) for each in client.handler.requests] == [b"one", b"two", b"tri"]


def test_bodies_whose_length_is_not_announced_share_no_head(client):
    fields = head(b"/a", method=b"POST")
    for body in (b"one", b"two", b"three", b"", b"four"):
        stream_id, wire = client.request(fields, body)
        client.send(wire)

        assert client.answer(stream_id).body == b"POST /a " + body
    assert [each.head.content_length for each in client.handler.requests] == [3, 3, 5, 0, 4]


def test_head_request_gets_no_body(client):
    stream_id = client.get(b"/a", method=b"HEAD")
    answer = client.answer(stream_id)

    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers[b"content-length"] == b"8"


# Heads that are refused

WITHOUT_AUTHORITY = [each for each in head() if each[0] != b":authority"]
ANSWERED = {
    "no host": (400, WITHOUT_AUTHORITY),
    "an empty authority": (400, head(host=b"")),
    "two hosts": (400, [*WITHOUT_AUTHORITY, (b"host", b"a"), (b"host", b"b")]),
    "a host that differs from the authority": (400, head(b"/", (b"host", b"other"))),
    "a user in the authority": (400, head(host=b"user@h")),
    "a blank in the authority": (400, head(host=b"a b")),
    "CONNECT": (501, [(b":method", b"CONNECT"), (b":authority", b"h:1")]),
    "a method in small letters": (400, head(method=b"get")),
    "a method with a blank": (400, head(method=b"GET /")),
    "a target with a blank": (400, head(b"/a b")),
    "a target with a tab": (400, head(b"/a\tb")),
    "a target with a control character": (400, head(b"/a\x1bb")),
    "a target beyond ASCII": (400, head("/ä".encode())),
    "a control character in a header": (400, head(b"/", (b"user-agent", b"a\x1bb"))),
    "another expectation": (417, head(b"/", (b"expect", b"200-ok"))),
    "a page of another site": (403, [*head(method=b"POST", host=b"h"), (b"origin", b"http://e")]),
    "a large header": (431, head(b"/", (b"x", bytes(66_000).replace(b"\0", b"x")))),
    "many headers": (431, head(b"/", *[(b"x%d" % number, b"") for number in range(2000)])),
}


@pytest.mark.parametrize("name", ANSWERED)
@pytest.mark.parametrize("has_body", [False, True])
def test_refused_head_is_answered_and_ends_no_connection(client, name, has_body):
    status, fields = ANSWERED[name]
    stream_id = client.new_id()
    if has_body:
        client.send(client.headers(fields, stream_id))
        client.send(data(stream_id, b"body", end_stream=True))
    else:
        client.send(client.headers(fields, stream_id, end_stream=True))
    answer = client.answer(stream_id)

    assert answer.status == status, answer
    assert json.loads(answer.body).keys() == {"error"}
    assert client.handler.requests == []
    assert client.answer(client.get(b"/next")).status == 200
    assert client.connection.http2.open_streams == 0


RESET = {
    "an upper-case name": head(b"/", (b"X-A", b"b")),
    "a line feed in the target": head(b"/a\r\nhost: c"),
    "a length without a body": head(b"/", (b"content-length", b"1")),
}


@pytest.mark.parametrize("name", RESET)
def test_malformed_head_resets_its_stream_alone(client, name):
    later = client.get(b"/later")
    stream_id, wire = client.request(RESET[name])
    client.send(wire)

    assert client.reply(stream_id).reset == Http2ErrorCode.PROTOCOL_ERROR
    assert len(client.handler.requests) == 1
    client.handler.later[0].answer()
    assert client.answer(later).body == b"later"
    assert client.goaways() == []


# Bodies


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("is_announced", [True, False])
@pytest.mark.parametrize("size", [1, 1000, LARGE_BODY_BYTES, LARGE_BODY_BYTES + 1, 300_000])
def test_body_is_what_was_sent(client, size, is_announced, delivery):
    body = bytes(range(256)) * (size // 256 + 1)
    body = body[:size]
    lines = [length(body)] if is_announced else []
    stream_id = client.open(head(b"/a", *lines, method=b"POST"))
    pieces = None if size > 1000 and "random" not in delivery else DELIVERIES[delivery]()
    client.send_data(stream_id, body, end_stream=True, sizes=pieces)

    assert client.answer(stream_id).body == b"POST /a " + body
    assert client.handler.requests[0].head.content_length == size


def test_large_bodies_of_many_streams_are_kept_apart(client):
    bodies = {client.new_id(): bytes([number]) * 200_000 for number in range(1, 6)}
    for stream_id, body in bodies.items():
        client.send(client.headers(head(b"/a", length(body), method=b"POST"), stream_id))
    for at in range(0, 200_000, 20_000):
        for stream_id, body in bodies.items():
            is_end = at + 20_000 == 200_000
            client.send_data(stream_id, body[at : at + 20_000], end_stream=is_end)

    for stream_id, body in bodies.items():
        assert client.answer(stream_id).body == b"POST /a " + body


def test_large_body_is_read_into_the_memory_of_the_handler(client):
    asked = []
    usual = client.handler.body_memory

    def body_memory(head, asking):
        asked.append(usual(head, asking))
        return asked[-1]

    client.handler.body_memory = body_memory
    stream_id = client.open(head(b"/a", (b"content-length", b"100000"), method=b"POST"))

    assert asked == []

    client.send_data(stream_id, b"x" * 100_000, end_stream=True)

    (memory,) = asked
    assert client.handler.requests[0].body is memory
    assert bytes(memory) == b"x" * 100_000


def test_window_is_given_back_while_a_body_comes(client):
    size = 40 << 20
    client.handler.limits = type(client.handler.limits)(http_max_input_bytes=size)
    stream_id = client.open(head(b"/later", (b"content-length", b"%d" % size), method=b"POST"))
    for _ in range(size >> 20):
        client.send_data(stream_id, bytes(1 << 20))
    client.send(data(stream_id, b"", end_stream=True))

    assert client.goaways() == []
    assert client.reply(stream_id).reset is None
    assert len(client.handler.requests[0].body) == size


def test_no_memory_for_a_body_is_answered(client):
    def body_memory(head, asking):
        raise MemoryError

    client.handler.body_memory = body_memory
    stream_id = client.open(head(b"/a", (b"content-length", b"100000"), method=b"POST"))
    client.send_data(stream_id, bytes(100_000), end_stream=True)

    assert client.reply(stream_id).status == 503
    assert client.answer(client.get()).status == 200


def test_body_that_is_announced_too_large_is_refused_with_its_head():
    client = Http2Client(http_max_input_bytes=1000)
    stream_id = client.open(head(b"/a", (b"content-length", b"1001"), method=b"POST"))
    answer = client.answer(stream_id)

    assert answer.status == 400
    assert b"exceeds the maximum" in answer.body
    assert client.reply(stream_id).reset == Http2ErrorCode.NO_ERROR


FOREIGN = (b"origin", b"http://evil")


@pytest.mark.parametrize("has_trailers", [False, True])
def test_small_body_is_read_before_a_request_is_refused_so_that_its_stream_is_not_reset(
    has_trailers,
):
    client = Http2Client()
    fields = head(b"/a", (b"content-length", b"4"), FOREIGN, method=b"POST")
    stream_id = client.open(fields)
    before = client.reply(stream_id).is_ended
    client.send_data(stream_id, b"body", end_stream=not has_trailers)
    if has_trailers:
        client.send(client.headers([(b"x", b"y")], stream_id, end_stream=True))

    assert not before
    assert client.answer(stream_id).status == 403
    assert client.reply(stream_id).reset is None
    assert client.handler.requests == []


def test_client_that_waits_before_it_sends_a_body_is_refused_at_once():
    client = Http2Client()
    fields = (b"content-length", b"4"), (b"expect", b"100-continue"), FOREIGN
    stream_id = client.open(head(b"/a", *fields, method=b"POST"))

    assert client.answer(stream_id).status == 403


def test_refused_request_whose_small_body_does_not_come_is_given_up():
    client = Http2Client(body_stall_timeout_s=5.0)
    fields = head(b"/a", (b"content-length", b"4"), FOREIGN, method=b"POST")
    stream_id = client.open(fields)
    client.loop.advance(20.0)

    assert client.answer(stream_id).status == 408


def test_body_that_grows_too_large_is_refused():
    client = Http2Client(http_max_input_bytes=1000)
    stream_id = client.open(head(b"/a", method=b"POST"))
    client.send_data(stream_id, bytes(900))
    client.send_data(stream_id, bytes(101))
    answer = client.answer(stream_id)

    assert answer.status == 400
    assert b"request JSON size of 1001 bytes exceeds" in answer.body
    client.send_data(stream_id, bytes(100))
    assert client.answer(client.get()).status == 200
    assert len(client.handler.requests) == 1


@pytest.mark.parametrize("announced, sent", [(5, 4), (5, 6), (100_000, 99_999), (0, 1)])
def test_body_of_another_length_is_not_handled(client, announced, sent):
    fields = head(b"/a", (b"content-length", b"%d" % announced), method=b"POST")
    stream_id = client.open(fields)
    client.send_data(stream_id, bytes(sent), end_stream=True)

    assert client.reply(stream_id).reset == Http2ErrorCode.PROTOCOL_ERROR
    assert client.handler.requests == []
    assert client.answer(client.get()).status == 200


def test_trailers_end_a_body_and_are_ignored(client):
    stream_id = client.open(head(b"/a", method=b"POST"))
    client.send(data(stream_id, b"body"))
    client.send(client.headers([(b"secret", b"sesame")], stream_id, end_stream=True))

    assert client.answer(stream_id).body == b"POST /a body"
    assert b"secret" not in client.handler.requests[0].head.headers


def test_client_that_waits_is_told_to_continue(client):
    stream_id = client.open(head(b"/a", (b"expect", b"100-continue"), method=b"POST"))

    assert [each[b":status"] for each in client.reply(stream_id).heads] == [b"100"]

    client.send_data(stream_id, b"body", end_stream=True)

    assert [each[b":status"] for each in client.reply(stream_id).heads] == [b"100", b"200"]
    assert client.answer(stream_id).body == b"POST /a body"


def test_refused_client_is_not_told_to_continue():
    client = Http2Client(http_max_input_bytes=10)
    fields = head(b"/a", (b"expect", b"100-continue"), length(bytes(11)), method=b"POST")
    stream_id = client.open(fields)

    assert [each[b":status"] for each in client.reply(stream_id).heads] == [b"400"]
