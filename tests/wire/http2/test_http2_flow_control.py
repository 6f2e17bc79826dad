# SPDX-License-Identifier: Apache-2.0
"""Windows of streams and of the connection, in both directions, and writers that wait for them."""

from __future__ import annotations

import pytest

from pytriton.protocol.http2 import (
    ConnectionTerminated,
    DataReceived,
    Http2ErrorCode,
    Http2Limits,
    LocalProtocolError,
    WriteResumed,
    frames,
)
from pytriton.protocol.http2.frames import frame
from tests.wire.http2.frame_client import (
    INITIAL_WINDOW_SIZE,
    RESPONSE_HEAD,
    TRAILERS,
    FrameClient,
    SentFrame,
    data,
    responding,
    rst_stream,
    setting,
    settings,
    window_update,
)

SMALL = Http2Limits(stream_window_bytes=1000, connection_window_bytes=100_000)


def updates(sent: list[SentFrame]) -> dict[int, int]:
    return {
        each.stream_id: int.from_bytes(each.payload, "big")
        for each in sent
        if each.kind == frames.WINDOW_UPDATE
    }


def test_window_of_a_stream_grows_as_data_is_acknowledged():
    client = FrameClient(SMALL)
    client.open(1)
    client.send(data(1, bytes(1000)))
    assert client.output() == []

    client.connection.acknowledge(1, 400)
    assert client.output() == []
    client.connection.acknowledge(1, 600)

    assert updates(client.output()) == {1: 1000}
    assert isinstance(client.send(data(1, bytes(1000)))[0], DataReceived)


def test_client_that_ignores_the_window_of_a_stream_loses_the_stream():
    client = FrameClient(SMALL)
    client.open(1)

    (kept, reset) = client.send(data(1, bytes(1000)), data(1, b"x"))

    assert kept == DataReceived(1, bytes(1000), end_stream=False)
    assert reset.code == Http2ErrorCode.FLOW_CONTROL_ERROR


def test_client_that_ignores_the_window_of_the_connection_loses_it():
    client = FrameClient(Http2Limits(stream_window_bytes=1 << 20, connection_window_bytes=70_000))
    client.open(1)

    events = client.send(data(1, bytes(60_000)), data(1, bytes(10_001)))

    assert isinstance(events[-1], ConnectionTerminated)
    assert events[-1].code is Http2ErrorCode.FLOW_CONTROL_ERROR


def test_padding_counts_and_is_given_back_at_once():
    client = FrameClient(Http2Limits(stream_window_bytes=1000, connection_window_bytes=70_000))
    client.open(1)
    padded = frame(frames.DATA, frames.PADDED, 1, bytes((249,)) + bytes(249))

    assert client.send(padded, padded) == []

    assert updates(client.output()) == {1: 500}


@pytest.mark.parametrize("end", ["our reset", "the client's reset", "our answer", "a violation"])
def test_closed_stream_gives_its_data_back_to_the_connection(end):
    client = FrameClient(Http2Limits(connection_window_bytes=100_000))
    for stream_id in range(1, 21, 2):
        client.open(stream_id)
        client.send(data(stream_id, bytes(16_000)))
        if end == "our reset":
            client.connection.reset(stream_id)
        elif end == "the client's reset":
            client.send(rst_stream(stream_id))
        elif end == "our answer":
            client.connection.send_response(stream_id, RESPONSE_HEAD, (), TRAILERS)
        else:
            client.send(client.headers(stream_id, [("X", "1")], end_stream=True))
        client.connection.acknowledge(stream_id, 16_000)  # too late, and harmless

    assert client.send(client.headers(101))


def test_data_that_nobody_reads_is_given_back_to_the_connection():
    client = FrameClient(Http2Limits(connection_window_bytes=100_000))
    client.open(1)
    client.connection.reset(1)

    for _ in range(20):
        assert client.send(data(1, bytes(16_000))) == []

    assert sum(updates(client.output()).values()) > 0


def test_unread_data_beyond_the_window_of_the_connection_ends_it():
    client = FrameClient(Http2Limits(connection_window_bytes=70_000))
    client.open(1, 3)
    client.connection.reset(1)

    events = client.send(data(3, bytes(60_000)), data(1, bytes(10_001)))

    assert events[-1].code is Http2ErrorCode.FLOW_CONTROL_ERROR


def test_more_than_was_delivered_cannot_be_acknowledged():
    client = FrameClient()
    client.open(1)
    client.send(data(1, b"abc"))

    with pytest.raises(LocalProtocolError, match="up to 3"):
        client.connection.acknowledge(1, 4)


def test_response_waits_for_the_window_and_trailers_follow_the_data():
    client = FrameClient(settings=setting(INITIAL_WINDOW_SIZE, 10))
    client.open(1, end_stream=True)
    client.connection.send_response(1, RESPONSE_HEAD, (b"0123456789", b"abcdef"), TRAILERS)

    assert [sent.payload for sent in client.output()] == [RESPONSE_HEAD, b"0123456789"]
    assert client.connection.queued_bytes(1) == 6
    client.send(window_update(1, 4))
    assert [sent.payload for sent in client.output()] == [b"abcd"]
    client.send(window_update(1, 100))
    assert [sent.payload for sent in client.output()] == [b"ef", TRAILERS]
    assert client.connection.open_streams == 0


def test_response_waits_for_the_window_of_the_connection():
    client = responding(1, 3, window=1 << 20)
    for stream_id in (1, 3):
        client.connection.send_data(stream_id, bytes(100_000))

    first = sum(len(sent.payload) for sent in client.output())
    client.send(window_update(0, 1000))
    second = sum(len(sent.payload) for sent in client.output())

    assert (first, second) == (65_535, 1000)
    assert not client.connection.has_output


def test_unwritten_small_messages_pile_up_in_the_queue():
    client = responding(1, window=1 << 30)
    client.send(window_update(0, 1 << 30))
    client.connection.take_output()

    may_go_on = [client.connection.send_data(1, bytes(1000)) for _ in range(2000)]

    assert may_go_on[0]
    assert not may_go_on[-1]
    assert client.connection.queued_bytes(1) > 1 << 20


def test_writer_pauses_at_high_water_and_resumes_at_low_water():
    limits = Http2Limits(high_water_bytes=1000, low_water_bytes=100)
    client = responding(1, limits=limits, window=0)

    assert client.connection.send_data(1, bytes(999))
    assert not client.connection.send_data(1, b"x")
    client.send(window_update(1, 899))
    client.output()
    assert client.connection.take_events() == []
    client.send(window_update(1, 1))
    client.output()

    assert client.connection.take_events() == [WriteResumed(1)]


def test_writer_that_does_not_stop_at_once_is_resumed_all_the_same():
    client = responding(1, limits=Http2Limits(high_water_bytes=1000, low_water_bytes=100), window=0)
    client.connection.send_data(1, bytes(1000))
    client.send(window_update(1, 500))
    client.output()

    assert not client.connection.send_data(1, bytes(100))
    client.send(window_update(1, 500))
    client.output()

    assert client.connection.take_events() == [WriteResumed(1)]


def test_queue_of_a_stream_is_bounded():
    client = responding(1, limits=Http2Limits(max_queued_bytes=1000), window=0)
    client.connection.send_data(1, bytes(5000))

    with pytest.raises(LocalProtocolError, match="5000 bytes queued"):
        client.connection.send_data(1, b"x")


def test_smaller_initial_window_makes_windows_negative():
    client = responding(1, window=1000)
    client.connection.send_data(1, bytes(1500))
    client.output()

    client.send(settings(setting(INITIAL_WINDOW_SIZE, 400)))
    client.send(window_update(1, 600))
    assert client.data_sent(1) == b""
    client.send(window_update(1, 50))
    assert client.data_sent(1) == bytes(50)
    client.send(settings(setting(INITIAL_WINDOW_SIZE, 2000)))

    assert client.data_sent(1) == bytes(450)


def test_window_that_shrinks_before_the_turn_stops_the_stream():
    client = responding(1, window=100_000)
    client.connection.send_data(1, bytes(90_000))
    client.send(settings(setting(INITIAL_WINDOW_SIZE, 0)))

    assert client.data_sent(1) == b""
    client.send(settings(setting(INITIAL_WINDOW_SIZE, 10)))

    assert client.data_sent(1) == bytes(10)


def test_only_the_last_initial_window_of_a_frame_counts():
    client = responding(1, window=10)
    client.connection.send_data(1, bytes(10_000))
    client.output()

    client.send(settings(*[setting(INITIAL_WINDOW_SIZE, size) for size in (9000, 0, 30, 25)]))

    assert client.connection.peer_settings.initial_window == 25
    assert len(client.data_sent(1)) == 15


def test_each_initial_window_of_a_frame_is_checked():
    client = responding(1)
    wrong, right = setting(INITIAL_WINDOW_SIZE, 1 << 31), setting(INITIAL_WINDOW_SIZE, 10)

    (event,) = client.send(settings(wrong, right))

    assert event.code is Http2ErrorCode.FLOW_CONTROL_ERROR


def test_initial_window_that_overflows_a_stream_ends_the_connection():
    client = responding(1, window=1000)
    client.send(window_update(1, frames.MAX_WINDOW - 1000))

    (event,) = client.send(settings(setting(INITIAL_WINDOW_SIZE, 1001)))

    assert event.code is Http2ErrorCode.FLOW_CONTROL_ERROR


@pytest.mark.parametrize(
    "increment,code",
    [(0, Http2ErrorCode.PROTOCOL_ERROR), (frames.MAX_WINDOW, Http2ErrorCode.FLOW_CONTROL_ERROR)],
)
def test_wrong_increment_of_a_stream_resets_it(increment, code):
    client = responding(1)

    (event,) = client.send(window_update(1, increment))

    assert (event.code, event.by_peer) == (code, False)
