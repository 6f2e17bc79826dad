# SPDX-License-Identifier: Apache-2.0
"""DATA frames: events, padding, and memory that the owner of the connection has for a body."""

from __future__ import annotations

import random

import pytest

from pytriton.protocol.http2 import (
    ConnectionTerminated,
    DataBuffered,
    DataReceived,
    Http2ErrorCode,
    Http2Limits,
    frames,
)
from pytriton.protocol.http2.frames import frame
from tests.wire.http2.frame_client import (
    GRPC_HEADERS,
    FrameClient,
    data,
    fill,
    ping,
    rst_stream,
    window_update,
)

BODY = random.Random(3).randbytes(300_000)


def opened(limits: Http2Limits | None = None) -> FrameClient:
    client = FrameClient(limits)
    client.open(1, 3)
    return client


def cut(body: bytes, size: int) -> bytes:
    return b"".join(data(1, body[start : start + size]) for start in range(0, len(body), size))


@pytest.fixture
def client():
    return opened()


@pytest.mark.parametrize("payload", [b"", b"\x01", b"\x05abcd"])
def test_padding_longer_than_the_frame_is_refused(payload):
    (event,) = opened().send(frame(frames.DATA, frames.PADDED, 1, payload))

    assert isinstance(event, ConnectionTerminated)
    assert event.code is Http2ErrorCode.PROTOCOL_ERROR
    assert "padding" in event.message


def test_padding_is_no_data():
    padded = frame(frames.DATA, frames.PADDED, 1, b"\x03abc\0\0\0")

    assert opened().send(padded) == [DataReceived(1, b"abc", end_stream=False)]


def test_frame_may_be_padding_only():
    assert opened().send(frame(frames.DATA, frames.PADDED, 1, b"\x02\0\0")) == []


def test_memory_that_was_lent_is_not_kept(client):
    buffer = bytearray(cut(BODY[:60_000], 16_384) + data(3, b"x" * 5000) + data(3, b"y"))

    first, second = client.connection.receive(memoryview(buffer), client.now_ns)
    buffer[:] = bytes(len(buffer))

    assert first == DataReceived(1, BODY[:60_000], end_stream=False)
    assert second == DataReceived(3, b"x" * 5000 + b"y", end_stream=False)


@pytest.mark.parametrize("kind", [bytes, memoryview])
@pytest.mark.parametrize("frame_bytes", [100, 16_384, 200_000])
@pytest.mark.parametrize("chunk_bytes", [1000, 70_000, 1 << 20])
def test_body_is_put_into_the_memory_of_its_stream(client, frame_bytes, chunk_bytes, kind):
    memory = memoryview(bytearray(len(BODY)))
    client.connection.set_buffer(1, memory)
    wire = cut(BODY, frame_bytes)

    events = []
    for start in range(0, len(wire), chunk_bytes):
        chunk = kind(wire[start : start + chunk_bytes])
        events += client.with_rest(client.connection.receive(chunk, client.now_ns))

    assert memory == BODY
    assert all(isinstance(event, DataBuffered) for event in events)
    assert sum(event.size for event in events) == len(BODY)


def test_frames_of_one_read_share_an_event(client):
    client.connection.set_buffer(1, memoryview(bytearray(len(BODY))))

    assert client.send(cut(BODY, 16_384)) == [DataBuffered(1, len(BODY), end_stream=False)]


@pytest.mark.parametrize("seed", range(60))
def test_lent_memory_and_bytes_have_the_same_effect(seed):
    """Only the frames in lent memory are copied to their stream's buffer all at once."""
    source = random.Random(seed)
    limits = Http2Limits(
        stream_window_bytes=source.choice([100_000, 1 << 20]),
        connection_window_bytes=source.choice([300_000, 1 << 24]),
    )
    wire = b""
    for _ in range(12):
        stream_id, size = source.choice([1, 1, 1, 3]), source.choice([1, 5000, 16_384, 30_000])
        flags = source.choices([0, frames.END_STREAM, frames.PADDED], [30, 1, 1])[0]
        wire += frame(frames.DATA, flags, stream_id, source.randbytes(size)) * source.choice(
            [1, 2, 7]
        )
    room = source.choice([50_000, 1 << 20])
    cuts = sorted(source.sample(range(len(wire)), 5))
    chunks = [wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True)]

    assert _effects(chunks, bytes, limits, room) == _effects(chunks, memoryview, limits, room)


@pytest.mark.parametrize("seed", range(120))
def test_expected_frames_and_bytes_have_the_same_effect(seed):
    """Most frames are alike, so that many are expected; the others are of any kind."""
    source = random.Random(seed)
    length = source.choice([4096, 5000, 16_384, 100_000])
    wire = b""
    for _ in range(source.choice([2, 5])):
        wire += b"".join(data(1, source.randbytes(length)) for _ in range(source.randrange(9)))
        flags = source.choices([0, frames.END_STREAM, frames.PADDED], [30, 1, 1])[0]
        content = source.randbytes(source.choice([0, 1, length - 1, length, length + 1]))
        wire += source.choice(
            [
                frame(frames.DATA, flags, 1, content),
                frame(frames.DATA, flags, 3, content),
                ping(),
                window_update(1, 7),
                frame(frames.DATA, 0, 1 | 1 << 31, content),
            ]
        )
    wire += data(1, source.randbytes(100), end_stream=True)
    room = source.choice([len(wire) - 109, 150_000, 1 << 20])
    cuts = sorted(source.sample(range(len(wire)), 4))
    chunks = [wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True)]

    assert _result(chunks, room, expect=True) == _result(chunks, room, expect=False)


def _result(chunks: list[bytes], room: int, *, expect: bool):
    client = opened()
    memory = memoryview(bytearray(room))
    client.connection.set_buffer(1, memory)
    placed, ended, received, others = 0, [], {1: b"", 3: b""}, []
    for chunk in chunks:
        reads = client.deliver(chunk) if expect else [client.send(chunk)]
        for event in (event for events in reads for event in events):
            if isinstance(event, DataReceived):
                received[event.stream_id] += bytes(event.data)
                ended += [event.stream_id] * event.end_stream
            elif isinstance(event, DataBuffered):
                placed += event.size
                ended += [event.stream_id] * event.end_stream
            else:
                others += [event]
        incomplete = client.connection.incomplete_input()
        others += [incomplete and incomplete._replace(serial=0)]
        others += [client.connection.can_peer_send(1)]
    return placed, ended, received, others, client.output(), bytes(memory[:placed])


def _effects(chunks: list[bytes], kind: type, limits: Http2Limits, room: int):
    client = FrameClient(limits)
    client.open(1)
    client.send(client.headers(3, (*GRPC_HEADERS, ("content-length", "100000"))))
    memory = memoryview(bytearray(room))
    client.connection.set_buffer(1, memory)
    effects = []
    received = {1: b"", 3: b""}
    for chunk in chunks:
        for event in client.connection.receive(kind(chunk), client.now_ns):
            if isinstance(event, DataReceived):
                received[event.stream_id] += bytes(event.data) + b"." * event.end_stream
            elif isinstance(event, DataBuffered):
                effects += [(event.size, event.end_stream)]
            else:
                effects += [event]
        effects += [client.connection.incomplete_input(), client.connection.can_peer_send(1)]
    return [*effects, received, client.output(), bytes(memory)]


def test_what_the_memory_has_no_room_for_is_received(client):
    memory = memoryview(bytearray(7))
    client.connection.set_buffer(1, memory)

    events = client.send(data(1, b"0123456789", end_stream=True))

    assert memory == b"0123456"
    assert events == [
        DataBuffered(1, 7, end_stream=False),
        DataReceived(1, b"789", end_stream=True),
    ]


def test_large_frames_beyond_the_memory_are_received(client):
    memory = memoryview(bytearray(20_000))
    client.connection.set_buffer(1, memory)

    placed, *received = client.send(cut(BODY[:60_000], 15_000))

    assert placed == DataBuffered(1, 20_000, end_stream=False)
    assert memory.tobytes() + b"".join(event.data for event in received) == BODY[:60_000]


def test_other_streams_do_not_get_into_the_memory(client):
    memory = memoryview(bytearray(4))
    client.connection.set_buffer(1, memory)

    events = client.send(data(1, b"ab"), data(3, b"other"), data(1, b"cd", end_stream=True))

    assert memory == b"abcd"
    assert events == [
        DataBuffered(1, 2, end_stream=False),
        DataReceived(3, b"other", end_stream=False),
        DataBuffered(1, 2, end_stream=True),
    ]


def test_end_without_data_is_received(client):
    client.connection.set_buffer(1, memoryview(bytearray(4)))

    assert client.send(data(1, b"", end_stream=True)) == [DataReceived(1, b"", end_stream=True)]


def test_closed_stream_takes_no_memory(client):
    client.send(rst_stream(1))

    client.connection.set_buffer(1, memoryview(bytearray(4)))

    assert client.connection.get_buffer() is None


def test_rest_of_a_large_frame_has_room_in_the_memory(client):
    memory = memoryview(bytearray(len(BODY)))
    client.connection.set_buffer(1, memory)
    wire = data(1, BODY, end_stream=True)
    client.send(wire[:1009])

    buffer = client.connection.get_buffer()
    buffer[:] = BODY[1000:]
    events = client.connection.buffer_updated(len(buffer), client.now_ns)

    assert memory == BODY
    assert events == [DataBuffered(1, len(BODY) - 1000, end_stream=True)]
    assert client.connection.get_buffer() is None


def test_room_ends_with_the_frame_or_with_the_memory(client):
    header = frames.pack_header(200_000 << 8 | frames.DATA, 0, 1)
    client.connection.set_buffer(1, memoryview(bytearray(300_000)))
    client.send(header)
    assert len(client.connection.get_buffer()) == 200_000

    client.connection.set_buffer(1, memoryview(bytearray(100_000)))

    assert len(client.connection.get_buffer()) == 100_000


def expecting(memory: memoryview, *, frame_bytes: int = 16_384) -> FrameClient:
    """A client that has sent the first frame of a body, and 91 bytes of the second."""
    client = opened()
    client.connection.set_buffer(1, memory)
    client.send(cut(BODY, frame_bytes)[: frame_bytes + 109])
    return client


@pytest.mark.parametrize("frame_bytes", [4096, 16_384, 100_000])
@pytest.mark.parametrize("end_stream", [False, True])
def test_one_read_takes_all_frames_of_a_message(frame_bytes, end_stream):
    memory = memoryview(bytearray(len(BODY)))
    client = expecting(memory, frame_bytes=frame_bytes)
    last = range(0, len(BODY), frame_bytes)[-1]
    wire = cut(BODY[:last], frame_bytes) + data(1, BODY[last:], end_stream=end_stream)
    wire = wire[frame_bytes + 109 :]

    rest = client.connection.get_buffer(reads_more=True)
    buffers = [rest, *client.connection.expect_more()]

    assert len(rest) == frame_bytes - 100 + 9
    assert fill(buffers, wire) == len(wire) == sum(map(len, buffers))
    (event,) = client.connection.buffer_updated(len(wire), client.now_ns)
    assert event == DataBuffered(1, len(BODY) - frame_bytes - 91, end_stream=end_stream)
    assert memory == BODY
    assert client.connection.get_buffer(reads_more=True) is None


def test_next_header_is_read_if_no_frame_is_incomplete(client):
    client.connection.set_buffer(1, memoryview(bytearray(len(BODY))))
    client.send(data(1, BODY[:20_000]))
    following = data(1, BODY[20_000:40_000])

    header = client.connection.get_buffer(reads_more=True)
    header[:] = following[:9]
    fill(client.connection.expect_more(), following[9:1009])

    (event,) = client.connection.buffer_updated(1009, client.now_ns)
    assert event == DataBuffered(1, 1000, end_stream=False)
    assert client.connection.incomplete_input().data_left == 19_000


@pytest.mark.parametrize("size", [1, 8])
def test_header_may_come_in_parts(client, size):
    memory = memoryview(bytearray(len(BODY)))
    client.connection.set_buffer(1, memory)
    wire = cut(BODY, 20_000)
    client.send(wire[:20_009])
    header = client.connection.get_buffer(reads_more=True)
    header[:size] = wire[20_009:][:size]

    assert client.connection.buffer_updated(size, client.now_ns) == []
    assert client.connection.get_buffer(reads_more=True) is None
    client.send(wire[20_009 + size :])
    assert memory == BODY


def test_nothing_is_expected_for_a_while_after_another_frame():
    client = expecting(memoryview(bytearray(1 << 20)))
    wire = data(1, bytes(16_384))[100:] + data(3, b"other") * 4000
    buffers = [client.connection.get_buffer(reads_more=True), *client.connection.expect_more()]
    events = client.connection.buffer_updated(fill(buffers, wire), client.now_ns)
    assert isinstance(client.with_rest(events)[-1], DataReceived)
    client.send(wire[sum(map(len, buffers)) :])

    for _ in range(16):
        assert client.connection.get_buffer(reads_more=True) is None
        client.send(data(1, bytes(20_000)))

    assert len(client.connection.get_buffer(reads_more=True)) == frames.HEADER_BYTES


def test_nothing_is_expected_after_the_last_frame(client):
    client.connection.set_buffer(1, memoryview(bytearray(len(BODY))))
    client.send(data(1, BODY[:100_000], end_stream=True)[:1000])

    assert len(client.connection.get_buffer(reads_more=True)) == 99_009
    assert client.connection.expect_more() == []


def test_room_is_only_for_much_data(client):
    client.connection.set_buffer(1, memoryview(bytearray(300_000)))

    client.send(data(1, bytes(50_000))[:-1])

    assert client.connection.get_buffer() is None


def test_stream_without_memory_has_no_room(client):
    client.send(data(1, BODY)[:1000])

    assert client.connection.get_buffer() is None


def test_data_inside_a_header_block_has_no_room(client):
    client.connection.set_buffer(1, memoryview(bytearray(len(BODY))))
    client.send(frame(frames.HEADERS, 0, 5, client.block()), data(1, BODY)[:9])

    assert client.connection.get_buffer() is None
    (event,) = client.send(b"x")
    assert isinstance(event, ConnectionTerminated)


def test_stream_that_is_reset_gives_its_room_up(client):
    memory = memoryview(bytearray(len(BODY)))
    client.connection.set_buffer(1, memory)
    client.send(data(1, BODY)[:1009])
    client.connection.reset(1)

    assert client.connection.get_buffer() is None
    assert client.connection.buffer_updated(1000, client.now_ns) == []
    assert client.send(data(1, BODY)[2009:], data(3, b"next")) == [
        DataReceived(3, b"next", end_stream=False)
    ]


def test_window_of_the_stream_holds_for_its_memory():
    client = opened(Http2Limits(stream_window_bytes=100_000))
    client.connection.set_buffer(1, memoryview(bytearray(len(BODY))))
    client.send(data(1, BODY)[:9])

    assert client.connection.buffer_updated(100_000, client.now_ns) == [
        DataBuffered(1, 100_000, end_stream=False)
    ]
    (event,) = client.connection.buffer_updated(1, client.now_ns)
    assert event.code is Http2ErrorCode.FLOW_CONTROL_ERROR


def test_window_of_the_connection_holds_for_memory():
    client = opened(Http2Limits(stream_window_bytes=1 << 20, connection_window_bytes=70_000))
    client.connection.set_buffer(1, memoryview(bytearray(len(BODY))))
    client.send(data(1, BODY)[:9])

    (event,) = client.connection.buffer_updated(70_001, client.now_ns)

    assert event.code is Http2ErrorCode.FLOW_CONTROL_ERROR
    assert client.connection.buffer_updated(1, client.now_ns) == []


@pytest.mark.parametrize(
    "limits",
    [
        Http2Limits(stream_window_bytes=100_000),
        Http2Limits(stream_window_bytes=1 << 20, connection_window_bytes=100_000),
    ],
)
def test_windows_hold_for_expected_frames(limits):
    client = opened(limits)
    client.connection.set_buffer(1, memoryview(bytearray(len(BODY))))

    client.send(data(1, BODY[:20_000]))
    (events,) = client.deliver(cut(BODY[:80_000], 20_000))
    assert events == [DataBuffered(1, 80_000, end_stream=False)]
    events = [event for read in client.deliver(data(1, bytes(20_000))) for event in read]

    assert events[-1].code is Http2ErrorCode.FLOW_CONTROL_ERROR


def test_length_of_the_content_holds_for_expected_frames():
    client = FrameClient()
    client.send(client.headers(1, (*GRPC_HEADERS, ("content-length", "90000"))))
    client.connection.set_buffer(1, memoryview(bytearray(len(BODY))))

    client.send(data(1, BODY[:20_000]))

    events = [event for read in client.deliver(cut(BODY[20_000:], 20_000)) for event in read]

    assert sum(event.size for event in events if isinstance(event, DataBuffered)) <= 90_000
    assert events[-1].code is Http2ErrorCode.PROTOCOL_ERROR


def test_placed_data_is_acknowledged_like_any_other():
    client = opened(Http2Limits(stream_window_bytes=100_000))
    client.connection.set_buffer(1, memoryview(bytearray(len(BODY))))
    client.send(cut(BODY[:100_000], 16_384))

    client.connection.acknowledge(1, 100_000)

    assert b"".join(client.connection.take_output()) == window_update(1, 100_000)
