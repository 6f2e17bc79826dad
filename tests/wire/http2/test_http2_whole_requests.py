# SPDX-License-Identifier: Apache-2.0
"""Small requests that come at once have the effects of the same frames one by one."""

from __future__ import annotations

import itertools
import random

import pytest

from pytriton.protocol.http2 import (
    DataReceived,
    Http2ErrorCode,
    Http2Limits,
    RequestReceived,
    StreamReset,
    frames,
)
from pytriton.protocol.http2.frames import frame
from tests.wire.http2.frame_client import (
    GRPC_HEADERS,
    RESPONSE_HEAD,
    TRAILERS,
    FrameClient,
    data,
    ping,
    rst_stream,
    window_update,
)

WITH_LENGTH = (*GRPC_HEADERS, ("content-length", "5"))
MALFORMED = ((":method", "POST"), ("te", "trailers"))


def knowing(limits: Http2Limits | None = None, headers=GRPC_HEADERS) -> tuple[FrameClient, bytes]:
    """A client of a connection that has seen a header block twice, and the block."""
    client = FrameClient(limits)
    client.send(client.headers(1, headers, end_stream=True))
    block = client.block(headers)
    client.send(frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 3, block))
    for stream_id in (1, 3):
        client.connection.reset(stream_id)
    client.output()
    return client, block


def whole(block: bytes, stream_id: int, body: bytes) -> bytes:
    return frame(frames.HEADERS, frames.END_HEADERS, stream_id, block) + data(
        stream_id, body, end_stream=True
    )


def test_whole_requests_are_one_event_each():
    client, block = knowing()

    first, second = client.send(whole(block, 5, b"hello"), whole(block, 7, b""))

    assert (first.stream_id, first.end_stream, first.body) == (5, True, b"hello")
    assert (second.stream_id, second.end_stream, second.body) == (7, True, b"")
    assert first.head.path == "/inference.GRPCInferenceService/ModelInfer"


def test_frames_after_whole_requests_are_read():
    client, block = knowing()

    request, reset = client.send(whole(block, 5, b"hello"), rst_stream(5), ping())

    assert isinstance(request, RequestReceived)
    assert isinstance(reset, StreamReset)
    assert [sent.kind for sent in client.output()] == [frames.PING]


def test_body_of_a_whole_request_is_acknowledged_when_its_stream_ends():
    client, block = knowing(Http2Limits(connection_window_bytes=70_000))
    for stream_id in range(5, 45, 2):
        client.send(whole(block, stream_id, bytes(2000)))

    for stream_id in range(5, 45, 2):
        client.connection.send_response(stream_id, RESPONSE_HEAD, [b"x"], TRAILERS)

    updates = [sent for sent in client.output() if sent.kind == frames.WINDOW_UPDATE]
    assert [sent.stream_id for sent in updates] == [0]


@pytest.mark.parametrize("headers", [GRPC_HEADERS, WITH_LENGTH, MALFORMED])
@pytest.mark.parametrize("differs", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_requests_at_once_have_the_effects_of_single_frames(seed, headers, differs):
    source = random.Random(seed)
    limits = Http2Limits(
        max_concurrent_streams=source.choice([3, 1000]),
        stream_window_bytes=source.choice([1000, 100_000]),
        connection_window_bytes=source.choice([65_535, 1 << 20]),
    )
    stream_id, sent = 5, []
    for _ in range(40):
        flags = source.choices([frames.END_STREAM, 0, frames.PADDED | frames.END_STREAM], [9, 1, 1])
        sent.append((0, frames.END_HEADERS, stream_id))
        sent += source.choices([[], [update(source, stream_id)]], [1, 2])[0]
        size = source.choice([5, 5, 5, 0, 300, 2000, 5000])
        sent.append((size, flags[0], source.choices([stream_id, stream_id - 2], [20, 1])[0]))
        sent += source.choices([[], [update(source, 0)]], [1, 2])[0]
        sent += [None] * source.choice([0, 0, 0, 1])
        stream_id += source.choices([2, 4, 0, -2, 1], [20, 5, 1, 1, 1])[0]
    is_refusing = not source.randrange(4)
    chunks = source.randint(1, 6)

    options = {"is_refusing": is_refusing, "differs": differs}
    assert _effects(limits, headers, sent, chunks, **options) == _effects(
        limits, headers, sent, len(sent), **options
    )


def update(source: random.Random, stream_id: int) -> bytes:
    """A WINDOW_UPDATE, which is valid nearly always."""
    increment = source.choices([5, 70_000, 0, 2**31 - 1], [50, 50, 1, 1])[0]
    other = source.choices([stream_id, 3, stream_id + 2], [100, 1, 1])[0]
    if not source.randrange(200):
        return frame(frames.WINDOW_UPDATE, 0, other, b"\0\0\1")
    return window_update(other, increment)


def _effects(limits: Http2Limits, headers, sent, chunks: int, *, is_refusing: bool, differs: bool):
    """What frames do in so many reads; with `differs`, each block has a field of its own."""
    client, known = knowing(limits, headers)
    numbers = itertools.count()

    def block() -> bytes:
        if not differs:
            return known
        # Every third one is added to the table, which gives all later blocks another meaning.
        number = next(numbers)
        field = ("x-a" if number % 3 else "x-b", str(number), bool(number % 3))
        return client.block((*headers, field))

    if is_refusing:
        client.connection.finish_shutdown()
    wire = [
        ping(flags=frames.ACK)
        if part is None
        else part
        if isinstance(part, bytes)
        else frame(frames.HEADERS, part[1], part[2], block())
        if part[1] & frames.END_HEADERS
        else frame(frames.DATA, part[1], part[2], bytes(part[0]))
        for part in sent
    ]
    step = -(-len(wire) // chunks)
    effects: list = []
    for start in range(0, len(wire), step):
        for event in client.send(*wire[start : start + step]):
            if isinstance(event, RequestReceived):
                effects.append((event.stream_id, event.head.path, event.head.fields))
                if event.end_stream:
                    effects.append((event.stream_id, event.body, True))
            elif isinstance(event, DataReceived):
                effects.append((event.stream_id, bytes(event.data), event.end_stream))
            else:
                effects.append(event)
    return effects, client.output(), client.connection.open_streams


def test_requests_of_official_clients_are_one_event_each():
    client, block = knowing()
    body = data(5, b"hello", end_stream=True)
    head = frame(frames.HEADERS, frames.END_HEADERS, 5, block)
    later = whole(block, 7, b"you")

    events = client.send(head, window_update(5, 5), body, window_update(0, 85), later)

    assert [(event.stream_id, event.body) for event in events] == [(5, b"hello"), (7, b"you")]


def test_known_block_with_other_flags_is_read():
    client, block = knowing()

    request, body = client.send(
        frame(frames.HEADERS, frames.END_HEADERS, 5, block),
        ping(flags=frames.ACK),
        data(5, b"hello", end_stream=True),
    )[::2]

    assert not request.end_stream
    assert body == DataReceived(5, b"hello", end_stream=True)


@pytest.mark.parametrize(
    "limits", [Http2Limits(stream_window_bytes=1999), Http2Limits(connection_window_bytes=65_535)]
)
def test_whole_request_beyond_a_window_is_refused(limits):
    client, block = knowing(limits)
    bodies = 1 if limits.stream_window_bytes < 2000 else 40

    events = [
        event
        for number in range(bodies)
        for event in client.send(whole(block, 5 + 2 * number, bytes(2000)))
    ]

    assert events[-1].code is Http2ErrorCode.FLOW_CONTROL_ERROR
