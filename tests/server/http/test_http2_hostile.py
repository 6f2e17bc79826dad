# SPDX-License-Identifier: Apache-2.0
"""Clients of HTTP/2 that stand still, trickle or flood are cut off; others are not."""

from __future__ import annotations

import msgspec
import pytest

from pytriton.protocol.http2 import Http2ErrorCode, frames
from pytriton.protocol.http2.frames import frame
from pytriton.serving.server.options.server_options import ClientLimits
from tests.server.http2_fakes import Http2Client, head
from tests.server.http_fakes import Client, FakeLoop, ScriptedHandler
from tests.wire.http2.frame_client import data, ping, rst_stream, setting, settings, window_update

CALM = Http2ErrorCode.ENHANCE_YOUR_CALM
NO_ERROR = Http2ErrorCode.NO_ERROR


@pytest.fixture
def client():
    return Http2Client()


# Slow clients


def test_client_without_a_request_is_disconnected():
    client = Http2Client(header_timeout_s=60)
    client.loop.advance(59)

    assert not client.saw_end

    client.loop.advance(3)

    assert client.goaways() == [(0, NO_ERROR)]
    assert client.transport.is_lost


def test_preface_without_settings_is_cut_off():
    client = Client(header_timeout_s=60)
    client.send(frames.PREFACE)
    client.loop.advance(59)

    assert not client.saw_end

    client.loop.advance(4)

    assert client.saw_end


def test_head_that_does_not_end_is_cut_off():
    client = Http2Client(header_timeout_s=60)
    later = client.get(b"/later")
    block = client.encoder.encode(head(b"/a"))
    client.send(frame(frames.HEADERS, 0, client.new_id(), block[:5]))
    for _ in range(59):
        client.loop.advance(1)
        if client.loop.time() % 20 < 1:
            client.send(frame(frames.CONTINUATION, 0, 3, b""))

    assert not client.saw_end

    client.loop.advance(5)

    assert client.goaways() == [(later, CALM)]
    assert client.saw_end
    assert client.handler.later[0].events == ["abandon"]


@pytest.mark.parametrize("length", [b"100", b"100000", None])
def test_body_that_stands_still_is_refused_alone(length):
    client = Http2Client(body_stall_timeout_s=30)
    lines = [] if length is None else [(b"content-length", length)]
    later = client.get(b"/later")
    slow = client.open(head(b"/a", *lines, method=b"POST"))
    client.send(data(slow, bytes(10)))
    client.loop.advance(29)

    assert client.reply(slow).status == 0

    client.loop.advance(4)

    assert client.answer(slow).status == 408
    assert b"no progress of the request for 30 seconds" in client.answer(slow).body
    client.handler.later[0].answer()
    assert client.answer(later).body == b"later"
    assert client.answer(client.get(b"/b")).status == 200


@pytest.mark.parametrize("length", [b"100000", None])
def test_body_that_trickles_is_refused(length):
    client = Http2Client(body_stall_timeout_s=30)
    lines = [] if length is None else [(b"content-length", length)]
    slow = client.open(head(b"/a", *lines, method=b"POST"))
    for _ in range(40):
        client.send(data(slow, b"x"))
        client.loop.advance(1)

    assert client.reply(slow).status == 408


def test_body_that_comes_steadily_has_all_the_time():
    client = Http2Client(body_stall_timeout_s=30)
    steady = client.open(head(b"/a", method=b"POST"))
    for _ in range(300):
        client.send(data(steady, bytes(300)))
        client.loop.advance(1)
    client.send(data(steady, b"", end_stream=True))

    assert client.answer(steady).body == b"POST /a " + bytes(90_000)


def test_idle_connection_is_closed():
    client = Http2Client(http_idle_timeout_s=100)
    client.get(b"/a")
    client.loop.advance(99)

    assert not client.saw_end

    client.get(b"/a")
    client.loop.advance(99)

    assert not client.saw_end

    client.loop.advance(25)

    assert client.goaways() == [(3, NO_ERROR)]
    assert client.transport.is_lost
    assert client.loop.timer_count == 0


def test_running_request_keeps_a_connection():
    client = Http2Client(http_idle_timeout_s=100)
    running = client.get(b"/later")
    client.loop.advance(1000)
    client.handler.later[0].answer()

    assert client.answer(running).body == b"later"


def test_idle_connection_is_not_looked_at():
    client = Http2Client(http_idle_timeout_s=0)
    client.get(b"/a")
    client.loop.advance(2)

    assert len(client.handler.watch) == 0
    assert client.loop.timer_count == 0


def test_stream_whose_client_reads_nothing_is_reset():
    client = Http2Client(window=10, write_stall_timeout_s=50)
    slow = client.get(b"/big")
    client.loop.advance(45)

    assert client.reply(slow).reset is None

    client.loop.advance(10)

    assert client.reply(slow).reset == Http2ErrorCode.CANCEL
    assert client.answer(client.get(b"/a")).status == 200


def test_streamed_answer_that_nobody_reads_is_abandoned():
    client = Http2Client(window=10, write_stall_timeout_s=50)
    slow = client.get(b"/later")
    (later,) = client.handler.later
    later.connection.begin_stream(200, b"text/plain")
    later.connection.stream(bytes(100))
    for _ in range(60):
        client.send(window_update(slow, 1))
        client.loop.advance(1)

    assert client.reply(slow).reset == Http2ErrorCode.CANCEL
    assert later.events == ["abandon"]


def test_connection_whose_client_reads_nothing_is_closed():
    client = Http2Client(write_stall_timeout_s=50)
    client.transport.peer_reads = False
    client.get(b"/big")
    client.get(b"/later")
    client.loop.advance(45)

    assert not client.saw_end

    client.loop.advance(10)

    assert client.transport.is_aborted
    assert client.handler.later[0].events == ["abandon"]
    assert not client.handler.connections


def test_client_that_sends_and_does_not_read_is_not_read_from(client):
    client.transport.peer_reads = False
    for _ in range(200):
        client.get(b"/big")

    assert not client.transport.is_reading
    assert len(client.handler.requests) < 200
    client.transport.peer_reads = True
    client.transport.take()
    client.deliver()
    client.send(b"".join(window_update(number, 1 << 24) for number in range(1, 400, 2)))
    assert len(client.handler.requests) == 200
    assert all(len(client.answer(number).body) == 1 << 20 for number in range(1, 400, 2))


# Floods


@pytest.fixture
def poor():
    """A client that regains no budget for its work with the time that a test takes."""
    handler = ScriptedHandler(ClientLimits(), FakeLoop())
    handler.http2_limits = msgspec.structs.replace(handler.http2_limits, work_per_second=0)
    return Http2Client(handler)


def test_rapid_resets_end_the_connection(poor):
    for _ in range(2000):
        stream_id, wire = poor.request(head(b"/later"))
        poor.send(wire + rst_stream(stream_id))
        if poor.saw_end:
            break

    assert poor.goaways()[0][1] == CALM
    assert len(poor.handler.later) <= 1010
    assert all(each.events == ["abandon"] for each in poor.handler.later)
    assert poor.connection._streams == {}


FLOODS = {
    "pings": (20_000, lambda number: ping()),
    "settings": (20_000, lambda number: settings(setting(4, number))),
    "windows": (20_000, lambda number: window_update(0, 1)),
    "empty data": (20_000, lambda number: data(1, b"")),
    "priorities": (20_000, lambda number: frame(frames.PRIORITY, 0, 3, bytes(5))),
    "unknown frames": (20_000, lambda number: frame(200, 0, 0, b"")),
}


def test_header_list_far_above_the_limit_ends_the_connection(client):
    client.get(b"/", (b"x", b"x" * 140_000))

    assert client.goaways()[0][1] in (CALM, Http2ErrorCode.FRAME_SIZE_ERROR)
    assert client.handler.requests == []


def test_pings_of_a_patient_client_are_answered(client):
    """Proxies ping idle connections, which gRPC would count as an attack."""
    client.get(b"/a")
    for _ in range(100):
        client.send(ping())
        client.loop.advance(10)

    assert client.goaways() == []
    assert sum(sent.kind == frames.PING for sent in client.frames) == 100


def test_streams_above_the_limit_may_be_sent_again(client):
    most = client.handler.http2_limits.max_concurrent_streams
    wire = b"".join(client.request(head(b"/later"))[1] for _ in range(most + 1))
    client.send(wire)

    assert len(client.handler.later) == most
    assert client.reply(2 * most + 1).reset == Http2ErrorCode.REFUSED_STREAM
    assert client.goaways() == []
