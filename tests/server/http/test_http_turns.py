# SPDX-License-Identifier: Apache-2.0
"""Turns of HTTP clients: much that comes at once is done in turns, in order, whatever happens."""

from __future__ import annotations

import itertools

import pytest

from pytriton.protocol.http2 import Http2ErrorCode, frames
from pytriton.serving.server.api.turns import TURN_UNITS
from tests.server.http2_fakes import Http2Client, head, length
from tests.server.http_fakes import Client, post
from tests.wire.http2.frame_client import window_update

MANY = 600


def get(number: int, *headers: bytes) -> bytes:
    lines = [b"GET /%d HTTP/1.1" % number, b"Host: l", *headers, b"", b""]
    return b"\r\n".join(lines)


def targets(client: Client) -> list[bytes]:
    """What was answered, by target."""
    return [answer.body[:100].split()[1] for answer in client.answers() if answer.body.strip(b"\0")]


def expected(count: int, first: int = 0) -> list[bytes]:
    return [b"/%d" % number for number in range(first, first + count)]


@pytest.fixture
def client():
    return Client()


@pytest.mark.parametrize("count", [138, MANY])  # in one piece, and in many
def test_requests_of_one_read_are_answered_in_turns_and_in_order(client, count):
    client.transport.receive(b"".join(map(get, range(count))))
    at_once = len(targets(client))
    assert 0 < at_once <= TURN_UNITS
    assert not client.transport.is_reading
    client.loop.run()

    assert targets(client) == expected(count)
    assert client.transport.is_reading


def test_requests_with_a_known_head_are_answered_in_turns_too(client):
    client.send(get(7))

    client.transport.receive(get(7) * MANY)
    assert len(targets(client)) <= TURN_UNITS + 1
    client.loop.run()

    assert targets(client) == [b"/7"] * (MANY + 1)


def test_other_clients_are_served_between_turns():
    loop_log: list[int] = []
    client = Client()
    client.transport.receive(b"".join(map(get, range(MANY))))
    other = Client(client.handler)

    def look() -> None:
        if not other.answers():
            other.transport.receive(get(1))
        loop_log.append(len(targets(client)))
        if loop_log[-1] < MANY:
            client.loop.call_soon(look)

    client.loop.call_soon(look)
    client.loop.run()

    assert other.statuses() == [200]
    steps = [after - before for before, after in itertools.pairwise(loop_log)]
    assert max(steps) <= TURN_UNITS


def test_client_that_leaves_gets_no_more_of_its_requests_handled(client):
    client.transport.receive(b"".join(map(get, range(MANY))))

    client.reset()
    client.loop.run()

    assert len(client.handler.requests) <= TURN_UNITS


def test_client_that_only_sends_no_more_gets_all_answers(client):
    client.transport.receive(b"".join(map(get, range(MANY))))
    client.loop.run()
    client.send_eof()

    assert targets(client) == expected(MANY)


def test_client_that_reads_nothing_has_to_wait_for_both_reasons(client):
    client.transport.peer_reads = False
    big = b"GET /big HTTP/1.1\r\nHost: l\r\n\r\n"
    client.transport.receive(big + b"".join(map(get, range(MANY))))
    client.loop.run()
    assert len(client.handler.requests) == 1
    assert not client.transport.is_reading

    client.transport.peer_reads = True
    client.transport.take()
    client.deliver()

    assert targets(client) == expected(MANY)
    assert client.transport.is_reading


def test_body_of_a_later_request_may_come_later(client):
    body = b"y" * 20_000
    last = post(body, b"/last")
    data = b"".join(map(get, range(MANY))) + last[:3000]
    client.send(data)
    assert targets(client) == expected(MANY)

    client.send(last[3000:])

    assert client.bodies()[-1] == b"POST /last " + body


def test_large_body_that_begins_among_other_requests_is_whole(client):
    body = bytes(range(256)) * 1000
    client.send(b"".join(map(get, range(MANY))) + post(body, b"/large") + get(1))

    assert targets(client)[:MANY] == expected(MANY)
    assert client.bodies()[MANY:] == [b"POST /large " + body, b"GET /1 "]


def test_request_that_is_answered_later_holds_back_those_after_it(client):
    later = b"GET /later HTTP/1.1\r\nHost: localhost\r\n\r\n"
    client.send(b"".join(map(get, range(200))) + later + b"".join(map(get, range(200, MANY))))
    assert targets(client) == expected(200)

    client.handler.later[0].answer(b"GET /later")
    client.deliver()

    assert targets(client) == [*expected(200), b"/later", *expected(MANY - 200, 200)]


def test_nothing_is_read_after_a_request_that_is_the_last_one(client):
    last = b"GET /later HTTP/1.1\r\nHost: l\r\nConnection: close\r\n\r\n"
    client.send(b"".join(map(get, range(200))) + last + b"".join(map(get, range(200))))
    assert targets(client) == expected(200)
    assert client.transport.is_reading  # so that it is seen if the client leaves

    client.handler.later[0].answer(b"GET /later")
    client.loop.run()

    assert targets(client) == [*expected(200), b"/later"]
    assert client.transport.is_lost


def test_upgrades_among_many_requests_are_ignored_in_order(client):
    upgrade = (b"Upgrade: websocket", b"Connection: upgrade")
    client.send(b"".join(get(n, *upgrade if n % 3 == 0 else ()) for n in range(MANY)))

    assert targets(client) == expected(MANY)


def test_invalid_request_is_refused_after_the_answers_to_those_before_it(client):
    client.send(b"".join(map(get, range(MANY))) + b"nonsense\r\n\r\n" + get(1))

    assert client.statuses() == [200] * MANY + [400]
    assert client.saw_end


def test_chunks_of_one_byte_are_read_in_turns(client):
    head = b"POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    wire = head + b"1\r\nz\r\n" * 4000 + b"0\r\n\r\n" + get(1)

    client.transport.receive(wire)
    assert client.connection._reader.has_rest
    client.loop.run()

    assert client.bodies() == [b"POST /echo " + b"z" * 4000, b"GET /1 "]


def test_shutdown_answers_what_waits_and_says_that_it_closes(client):
    client.transport.receive(b"".join(map(get, range(138))))

    client.connection.end()
    client.loop.run()

    assert targets(client) == expected(138)
    assert client.answers()[-1].headers[b"Connection"] == b"close"
    assert client.transport.is_lost


def test_heads_of_medium_requests_are_cached(client):
    request = post(b"a" * 20_000, b"/medium")
    client.send(request)

    assert request[:-20_000] in client.handler.cached_heads


# HTTP/2


def requests(client: Http2Client, count: int) -> tuple[list[int], bytes]:
    made = [client.request(head(b"/%d" % number)) for number in range(count)]
    return [stream for stream, _ in made], b"".join(wire for _, wire in made)


def handled(client: Http2Client) -> list[bytes]:
    return [request.head.target for request in client.handler.requests]


def test_requests_of_many_streams_are_handled_in_turns_and_in_order():
    client = Http2Client()
    streams, wire = requests(client, MANY)

    client.transport.receive(wire)
    assert 0 < len(handled(client)) <= TURN_UNITS
    assert not client.transport.is_reading
    client.loop.run()

    assert handled(client) == expected(MANY)
    assert client.transport.is_reading
    assert [client.reply(stream).status for stream in streams] == [200] * MANY


def test_small_frames_are_processed_in_turns():
    client = Http2Client()
    client.transport.receive(window_update(0, 1) * 3000)
    assert client.connection.http2.has_rest
    assert not client.transport.is_reading

    client.loop.run()

    assert not client.connection.http2.has_rest
    assert client.transport.is_reading


def test_streams_of_a_client_that_has_left_are_not_begun():
    client = Http2Client()
    _, wire = requests(client, MANY)
    client.transport.receive(wire)

    client.reset()

    assert len(handled(client)) <= TURN_UNITS


def test_violation_ends_the_connection_after_the_requests_before_it():
    client = Http2Client()
    _, wire = requests(client, 300)

    client.send(wire + frames.frame(frames.PING, 0, 1, bytes(8)))

    assert handled(client) == expected(300)
    assert client.saw_end


def test_requests_that_were_parsed_are_answered_at_the_shutdown():
    client = Http2Client()
    expensive = client.request(head(b"/big"))[1]
    streams, wire = requests(client, 100)
    client.transport.receive(expensive + wire)

    client.connection.end()
    client.loop.run()

    last_stream, _ = client.goaways()[-1]
    assert len(handled(client)) > 10
    for stream in streams:  # those above may be sent again elsewhere
        assert client.reply(stream).status == (200 if stream <= last_stream else 0)
    assert client.transport.is_lost


def test_body_that_is_not_complete_at_the_shutdown_is_refused():
    client = Http2Client()
    expensive = client.request(head(b"/big"))[1]
    stream, wire = client.request(head(b"/1", length(b"12"), method=b"POST"), b"12")
    client.transport.receive(expensive + wire[:-1])

    client.connection.end()
    client.loop.run()

    assert client.reply(stream).reset == Http2ErrorCode.REFUSED_STREAM
    assert client.transport.is_lost


def test_held_requests_of_a_slow_reader_are_handled_in_turns():
    client = Http2Client(window=1 << 30)
    client.transport.peer_reads = False
    client.get(b"/big")
    client.get(b"/big")
    _, wire = requests(client, MANY)
    client.send(wire)
    before = len(handled(client))

    client.transport.peer_reads = True
    client.transport.take()
    at_once = len(handled(client)) - before
    client.deliver()

    assert at_once <= TURN_UNITS + 2
    assert handled(client)[2:] == expected(MANY)
