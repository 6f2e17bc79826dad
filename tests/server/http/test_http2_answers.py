# SPDX-License-Identifier: Apache-2.0
"""Answers over HTTP/2: many streams at once, windows, resets, and the end of a connection."""

from __future__ import annotations

import random

import pytest

from pytriton.protocol.http2 import Http2ErrorCode, frames
from tests.server.http2_fakes import Http2Client, head
from tests.wire.http2.frame_client import data, rst_stream, window_update

HIGH_WATER_BYTES = 1 << 20  # of one stream, at which its writer pauses


@pytest.fixture
def client():
    return Http2Client()


def test_answer_has_the_headers_of_its_kind(client):
    client.get(b"/later")
    (later,) = client.handler.later
    later.connection.respond(405, (b"a", b"bc"), b"text/plain", b"Allow: GET, HEAD\r\nX-A:  b\r\n")
    answer = client.answer(1)

    assert answer == (
        405,
        {
            b"content-type": b"text/plain",
            b"allow": b"GET, HEAD",
            b"x-a": b"b",
            b"content-length": b"3",
        },
        b"abc",
    )


def test_hundred_streams_get_their_own_answers(client):
    bodies = {}
    wire = b""
    for number in range(100):
        body = b"body of %d" % number
        stream_id, sent = client.request(head(b"/later/%d" % number, method=b"POST"), body)
        bodies[stream_id] = b"answer to " + body
        wire += sent
    client.send(wire)
    later = client.handler.later.copy()
    random.Random(1).shuffle(later)

    assert len(later) == 100

    for each in later:
        each.answer(b"answer to " + each.request.body)

    assert {stream_id: client.answer(stream_id).body for stream_id in bodies} == bodies
    assert client.transport.write_count < 10


def test_failure_of_a_handler_is_one_answer(client, caplog):
    stream_id = client.get(b"/fail")

    assert client.answer(stream_id).status == 500
    assert client.answer(client.get(b"/a")).body == b"GET /a "
    assert "a handler with a mistake" in caplog.text


def test_connection_that_cannot_write_ends_alone(client, caplog, monkeypatch):
    others = [Http2Client(client.handler) for _ in range(2)]
    clients = [others[0], client, others[1]]
    # Two requests each: the answer to the last one of a connection is written at once.
    stream_ids = [(each.get(b"/later"), each.get(b"/later"))[0] for each in clients]

    def fail(data: bytes) -> None:
        raise MemoryError

    monkeypatch.setattr(client.transport, "write", fail)
    for later in client.handler.later[::2]:
        later.answer()
    assert [each.answer(stream_ids[0]).body for each in others] == [b"later"] * 2
    assert client.transport.is_aborted
    assert client.handler.later[3].events == ["abandon"]
    assert "HTTP output could not be sent" in caplog.text


@pytest.mark.parametrize("size", [100, 70_000, 3 << 20])
@pytest.mark.parametrize("window", [1, 100, 65_535])
def test_answer_comes_as_fast_as_the_window_opens(size, window):
    client = Http2Client(window=window)
    body = bytes(random.Random(size).randbytes(size))
    stream_id = client.get(b"/later")
    client.handler.later[0].answer(body)
    expected = min(size, window)

    assert client.reply(stream_id).body == body[:expected]

    for _ in range(3):
        client.send(window_update(stream_id, 1))
        expected = min(expected + 1, size)

        assert client.reply(stream_id).body == body[:expected]
    client.send(window_update(stream_id, 1 << 24))
    assert client.answer(stream_id).body == body
    assert client.connection.http2.open_streams == 0


def test_streamed_answer_is_data_until_its_end(client):
    stream_id = client.get(b"/later")
    connection = client.handler.later[0].connection
    connection.begin_stream(200, b"text/event-stream", b"Cache-Control: no-cache\r\n")
    reply = client.reply(stream_id)

    assert reply.status == 200
    assert reply.headers == {b"content-type": b"text/event-stream", b"cache-control": b"no-cache"}
    for part in (b"one", b"", b"two"):
        connection.stream(part)
        client.reply(stream_id)
    assert client.reply(stream_id).parts == [b"one", b"two"]
    assert not client.reply(stream_id).is_ended
    connection.end_stream()
    assert client.answer(stream_id).body == b"onetwo"


def test_error_within_a_stream_resets_it(client):
    stream_id = client.get(b"/later")
    (later,) = client.handler.later
    later.connection.begin_stream(200, b"text/plain")
    later.connection.stream(b"one")
    later.connection.respond_error(500, "broken")

    assert client.reply(stream_id).reset == Http2ErrorCode.INTERNAL_ERROR
    assert later.events == ["abandon"]


def test_slow_reader_of_one_stream_pauses_that_one(client):
    slow, quick = client.get(b"/later"), client.get(b"/later")
    exchanges = client.handler.later
    for each in exchanges:
        each.connection.begin_stream(200, b"text/plain")
    exchanges[0].connection.stream(bytes(HIGH_WATER_BYTES))  # all of the window
    client.reply(slow)
    exchanges[0].events.clear()
    exchanges[0].connection.stream(bytes(HIGH_WATER_BYTES))
    exchanges[1].connection.stream(b"quick")

    assert client.reply(quick).body == b"quick"
    assert [each.events for each in exchanges] == [["pause"], []]
    assert exchanges[0].connection.is_writing_paused
    client.send(window_update(slow, 1 << 22))
    assert [each.events for each in exchanges] == [["pause", "resume"], []]
    assert not exchanges[0].connection.is_writing_paused
    assert len(client.reply(slow).body) == 2 * HIGH_WATER_BYTES


def test_slow_reader_of_the_socket_pauses_its_streams(client):
    client.transport.peer_reads = False
    stream_id = client.get(b"/later")
    (later,) = client.handler.later
    later.connection.begin_stream(200, b"text/plain")
    for _ in range(100):
        later.connection.stream(bytes(10_000))
        client.loop.run()

    assert later.events == []

    for _ in range(100):
        later.connection.stream(bytes(10_000))
        client.loop.run()

    assert later.events == ["pause"]
    client.transport.peer_reads = True
    client.send(window_update(stream_id, 1 << 22))
    client.transport.take()
    client.loop.run()
    assert later.events == ["pause", "resume"]
    assert len(client.reply(stream_id).body) == 2_000_000


def test_exchange_that_begins_while_its_stream_is_full_is_paused(client):
    def handle(connection, request):
        connection.begin_stream(200, b"text/plain")
        connection.stream(bytes(3 * HIGH_WATER_BYTES))
        client.handler.later.append(type(later)(connection, request))
        return client.handler.later[-1]

    client.get(b"/later")
    (later,) = client.handler.later
    client.handler.handle = handle
    client.get(b"/stream")

    assert client.handler.later[1].events == ["pause"]


# Requests wait while the client does not read


def test_client_that_does_not_read_gets_no_further_requests_handled():
    client = Http2Client(window=0)
    limits = client.connection.http2._core.limits
    big = [client.get(b"/big") for _ in range(limits.max_waiting_data_bytes >> 20)]
    held = [client.get(b"/a"), client.get(b"/b")]
    handled = len(client.handler.requests)

    assert handled == len(big)

    client.send(rst_stream(held[0]) + rst_stream(big[0]))

    assert [request.head.target for request in client.handler.requests[handled:]] == [b"/b"]
    client.send(window_update(held[1], 100))
    assert client.answer(held[1]).body == b"GET /b "


# Resets in each state


def reset_after_head(client: Http2Client) -> int:
    return client.open(head(b"/later", method=b"POST"))


def reset_within_body(client: Http2Client) -> int:
    stream_id = client.open(head(b"/later", (b"content-length", b"90000"), method=b"POST"))
    client.send(data(stream_id, bytes(1000)))
    return stream_id


def reset_while_running(client: Http2Client) -> int:
    return client.post(b"body", b"/later")


def reset_while_streaming(client: Http2Client) -> int:
    stream_id = client.post(b"body", b"/later")
    connection = client.handler.later[-1].connection
    connection.begin_stream(200, b"text/plain")
    connection.stream(bytes(3 * HIGH_WATER_BYTES))
    client.loop.run()
    return stream_id


def reset_while_answered(client: Http2Client) -> int:
    stream_id = client.post(b"body", b"/later")
    client.handler.later[-1].answer(bytes(3 * HIGH_WATER_BYTES))
    client.loop.run()
    return stream_id


def reset_after_answer(client: Http2Client) -> int:
    return client.post(b"body", b"/a")


@pytest.mark.parametrize(
    "begin, events",
    [
        (reset_after_head, None),
        (reset_within_body, None),
        (reset_while_running, ["abandon"]),
        (reset_while_streaming, ["pause", "abandon"]),
        (reset_while_answered, []),
        (reset_after_answer, None),
    ],
)
def test_reset_ends_a_stream_in_every_state(client, begin, events):
    other = client.get(b"/later")
    stream_id = begin(client)
    client.send(rst_stream(stream_id))
    seen = [each.events for each in client.handler.later[1:]]
    for each in client.handler.later[1:]:
        each.connection.stream(b"more")
        each.connection.end_stream()
        each.answer()

    assert seen == ([] if events is None else [events])
    assert client.connection.http2.open_streams == 1
    client.handler.later[0].answer()
    assert client.answer(other).body == b"later"
    assert client.goaways() == []
    assert client.connection._streams == client.connection._bodies == {}


def test_end_of_a_connection_abandons_all_of_its_requests(client):
    for _ in range(3):
        client.get(b"/later")
    client.open(head(b"/a", method=b"POST"))
    client.reset()

    assert [each.events for each in client.handler.later] == [["abandon"]] * 3
    assert not client.handler.connections
    assert len(client.handler.watch) == 0
    client.handler.later[0].answer()


def test_violation_of_the_protocol_abandons_all_requests(client):
    client.get(b"/later")
    client.send(data(0, b"on the connection"))

    assert client.goaways() == [(1, Http2ErrorCode.PROTOCOL_ERROR)]
    assert client.handler.later[0].events == ["abandon"]
    assert client.saw_end


# Shutdown


def test_idle_connection_is_closed_at_the_end(client):
    client.get(b"/a")
    ended = client.connection.end()
    client.loop.run()

    assert ended.is_done
    assert client.goaways() == [(1, Http2ErrorCode.NO_ERROR)]
    assert client.transport.is_lost


def test_end_waits_for_the_answers_of_complete_requests(client):
    running = [client.get(b"/later"), client.get(b"/later")]
    incomplete = client.open(head(b"/a", method=b"POST"))
    ended = client.connection.end()

    assert client.reply(incomplete).reset == Http2ErrorCode.REFUSED_STREAM
    assert client.goaways() == [(incomplete, Http2ErrorCode.NO_ERROR)]
    late = client.get(b"/late")
    assert client.reply(late).reset == Http2ErrorCode.REFUSED_STREAM
    for each in client.handler.later:
        assert not ended.is_done
        each.answer(bytes(100_000))
        client.loop.run()
    assert ended.is_done
    assert [client.answer(each).body for each in running] == [bytes(100_000)] * 2
    assert [each.head.target for each in client.handler.requests] == [b"/later", b"/later"]


def test_end_waits_until_the_answer_is_read():
    client = Http2Client(window=10)
    stream_id = client.get(b"/later")
    ended = client.connection.end()
    client.handler.later[0].answer(bytes(100))
    client.loop.run()

    assert not ended.is_done

    client.send(window_update(stream_id, 90))

    assert client.answer(stream_id).body == bytes(100)
    assert ended.is_done


@pytest.mark.parametrize("way", ["let_clients_leave", "begin_shutdown"])
def test_client_that_should_leave_is_told_and_served(client, way):
    running = client.get(b"/later")
    getattr(client.handler, way)()

    assert client.goaways() == [(frames.MAX_STREAM_ID, Http2ErrorCode.NO_ERROR)]

    on_the_way = client.get(b"/a")
    client.acknowledge_shutdown()

    assert client.answer(on_the_way).status == 200
    assert client.goaways()[1] == (on_the_way, Http2ErrorCode.NO_ERROR)
    late = client.get(b"/late")
    assert client.reply(late).reset == Http2ErrorCode.REFUSED_STREAM
    assert not client.saw_end
    client.handler.later[0].answer()
    assert client.answer(running).body == b"later"
    assert client.saw_end


def test_client_that_comes_while_others_leave_is_served_once(client):
    client.handler.let_clients_leave()
    new = Http2Client(client.handler)
    stream_id = new.get(b"/a")

    assert new.answer(stream_id).status == 200
    assert new.goaways() == [(frames.MAX_STREAM_ID, Http2ErrorCode.NO_ERROR)]
    new.acknowledge_shutdown()
    assert new.transport.is_lost
