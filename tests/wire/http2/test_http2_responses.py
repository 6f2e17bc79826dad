# SPDX-License-Identifier: Apache-2.0
"""How answers become frames: their sizes and order, their end, and what a caller may not do."""

from __future__ import annotations

import itertools
import random

import pytest

from pytriton.protocol.http2 import LocalProtocolError, encode_header_block, frames
from pytriton.protocol.http2.frames import BodyFrames, ResponseFrames
from tests.wire.http2.frame_client import (
    INITIAL_WINDOW_SIZE,
    RESPONSE_HEAD,
    TRAILERS,
    FrameClient,
    SentFrame,
    data,
    parse_frames,
    responding,
    rst_stream,
    setting,
    settings,
    window_update,
)

HEADER_TABLE_SIZE = 1
HEADERS, DATA = frames.HEADERS, frames.DATA
END = frames.END_STREAM


def test_small_response_is_one_buffer():
    client = FrameClient()
    client.open(1, end_stream=True)
    client.connection.send_response(1, RESPONSE_HEAD, (b"\0\0\0\0\x02", b"hi"), TRAILERS)

    (written,) = client.connection.take_output()

    assert parse_frames(written) == [
        SentFrame(frames.HEADERS, frames.END_HEADERS, 1, RESPONSE_HEAD),
        SentFrame(frames.DATA, 0, 1, b"\0\0\0\0\x02hi"),
        SentFrame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 1, TRAILERS),
    ]
    assert client.connection.open_streams == 0


def test_large_response_is_views_of_the_callers_buffer():
    client = responding(1, window=1 << 30)
    client.send(window_update(0, 1 << 30), settings(setting(5, 1 << 20)))
    client.output()
    tensor = bytearray(3 << 20)

    client.connection.send_data(1, tensor)
    written = client.connection.take_output()

    views = [part for part in written if isinstance(part, memoryview)]
    assert [view.obj is tensor for view in views] == [True] * 3
    assert sum(map(len, views)) == len(tensor)


def whole_response(window: int, body: list[bytes | memoryview]) -> FrameClient:
    client = FrameClient(settings=setting(INITIAL_WINDOW_SIZE, window))
    client.open(1, end_stream=True)
    client.send(window_update(0, 1 << 30))
    client.connection.send_response(1, RESPONSE_HEAD, body, TRAILERS)
    return client


def test_large_whole_response_shares_frames_and_is_not_copied():
    tensor = bytearray(random.Random(1).randbytes(100_000))
    client = whole_response(1 << 20, [b"prefix", memoryview(tensor)])

    written = client.connection.take_output()

    assert all(part.obj is tensor for part in written if len(part) > 100)
    head, *parts, trailers = parse_frames(b"".join(written))
    assert (head.kind, head.payload) == (frames.HEADERS, RESPONSE_HEAD)
    assert (trailers.flags, trailers.payload) == (5, TRAILERS)
    assert b"".join(part.payload for part in parts) == b"prefix" + tensor
    assert [len(part.payload) for part in parts[:-1]] == [16_384] * 6
    assert client.connection.open_streams == 0


def test_whole_response_may_be_longer_than_a_queue():
    tensor = memoryview(bytearray(65 << 20))
    client = whole_response(1 << 30, [b"head", tensor, b"between", tensor])

    sent = sum(len(sent.payload) for sent in client.output() if sent.kind == frames.DATA)

    assert sent == 11 + 2 * len(tensor)


def test_whole_response_for_a_client_that_left_is_dropped():
    client = FrameClient()
    client.open(1, end_stream=True)
    client.send(rst_stream(1))

    client.connection.send_response(1, RESPONSE_HEAD, [bytes(100_000)], TRAILERS)

    assert client.output() == []


def test_parts_of_a_body_share_a_frame():
    client = responding(1, window=0)
    client.connection.send_data(1, b"\0\0\0\0\x0a")
    client.connection.send_data(1, b"0123456789")

    client.send(window_update(1, 100))

    assert [sent.payload for sent in client.output()] == [b"\0\0\0\0\x0a0123456789"]


def test_last_data_frame_can_end_the_stream():
    client = responding(1, 3, window=5)
    client.connection.send_data(1, b"abc", end_stream=True)
    client.connection.send_data(3, b"abcdefg", end_stream=True)
    client.send(window_update(3, 2))

    ends = [(sent.stream_id, sent.payload) for sent in client.output() if sent.flags]

    assert ends == [(1, b"abc"), (3, b"abcdefg")]
    assert client.connection.open_streams == 0


def test_empty_end_needs_no_window():
    client = responding(1, window=0)
    client.send(settings(setting(INITIAL_WINDOW_SIZE, 0)))
    client.output()

    client.connection.send_data(1, b"", end_stream=True)

    assert client.output() == [SentFrame(frames.DATA, frames.END_STREAM, 1, b"")]


def test_empty_end_follows_queued_data():
    client = responding(1, window=0)
    client.connection.send_data(1, b"abc")
    client.connection.send_data(1, b"", end_stream=True)

    client.send(window_update(1, 10))

    assert client.output() == [SentFrame(frames.DATA, frames.END_STREAM, 1, b"abc")]


def test_streams_take_turns():
    client = responding(1, 3, 5, window=4 << 20)
    client.send(window_update(0, 16 << 20))
    for stream_id in (1, 3, 5):
        client.connection.send_data(stream_id, bytes(2_500_000))

    order = [sent.stream_id for sent in client.output()]

    assert [stream_id for stream_id, _ in itertools.groupby(order)] == [1, 3, 5] * 3


@pytest.mark.parametrize("max_frame", [16_384, 20_000, 1 << 20])
def test_frames_are_as_large_as_the_client_allows(max_frame):
    client = responding(1, window=1 << 20)
    client.send(window_update(0, 1 << 20), settings(setting(5, max_frame)))
    client.output()
    body = random.Random(1).randbytes(200_000)

    for part in (body[:100], body[100:90_000], body[90_000:90_001], body[90_001:]):
        client.connection.send_data(1, part)
    client.connection.send_trailers(1, TRAILERS)

    *sent, trailers = client.output()
    sizes = [len(frame.payload) for frame in sent if frame.kind == frames.DATA]
    assert b"".join(frame.payload for frame in sent) == body
    assert max(sizes) <= max_frame
    assert len(sizes) <= len(body) // max_frame + 2
    assert trailers.payload == TRAILERS


def test_small_answer_overtakes_a_large_one():
    client = responding(1, 3, window=1 << 20)
    client.connection.send_data(1, bytes(60_000))
    client.connection.send_data(3, b"token")

    assert client.output()[0].stream_id == 3


def test_output_is_released_in_portions():
    client = responding(1, window=1 << 20)
    client.send(window_update(0, 1 << 20))
    client.connection.send_data(1, bytes(200_000))

    client.connection.take_output(max_bytes=32_768)

    assert client.connection.queued_bytes(1) == 200_000 - 32_768
    assert client.connection.has_output


def test_frame_size_of_the_client_is_respected():
    client = responding(1, window=1 << 20)
    client.send(window_update(0, 1 << 20))
    client.connection.send_data(1, bytes(40_000))
    sizes = [len(sent.payload) for sent in client.output()]
    client.send(settings(setting(5, 50_000)))
    client.output()
    client.connection.send_data(1, bytes(70_000))

    assert sizes == [16_384, 16_384, 7232]
    assert [len(sent.payload) for sent in client.output()] == [50_000, 20_000]


def test_long_header_block_is_continued():
    client = FrameClient()
    client.open(1, end_stream=True)
    block = encode_header_block([(b"x", b"v" * 40_000)])
    client.connection.send_response(1, RESPONSE_HEAD, (b"body",), block)

    sent = client.output()

    assert [each.kind for each in sent] == [
        frames.HEADERS, frames.DATA, frames.HEADERS, frames.CONTINUATION, frames.CONTINUATION,
    ]  # fmt: skip
    assert [each.flags for each in sent[2:]] == [frames.END_STREAM, 0, frames.END_HEADERS]
    assert b"".join(each.payload for each in sent[2:]) == block


def test_smaller_header_table_is_answered_in_the_next_block_only():
    client = FrameClient(settings=setting(1, 100))
    client.open(1, 3, end_stream=True)
    for stream_id in (1, 3):
        client.connection.send_response(stream_id, RESPONSE_HEAD, (), TRAILERS)

    blocks = [sent.payload for sent in client.output() if sent.kind == frames.HEADERS]

    assert blocks == [b"\x20" + RESPONSE_HEAD, TRAILERS, RESPONSE_HEAD, TRAILERS]


def test_early_answer_asks_the_client_to_stop_sending():
    client = FrameClient()
    client.open(1)
    client.connection.send_headers(1, RESPONSE_HEAD, end_stream=True)

    assert [(sent.kind, sent.payload) for sent in client.output()] == [
        (frames.HEADERS, RESPONSE_HEAD),
        (frames.RST_STREAM, bytes(4)),
    ]
    assert client.send(data(1, b"ignored", end_stream=True)) == []


def test_answer_for_a_client_that_left_is_dropped():
    client = responding(1)
    client.send(rst_stream(1))

    assert client.connection.send_data(1, b"late")
    client.connection.send_trailers(1, TRAILERS)
    client.connection.send_response(1, RESPONSE_HEAD, (b"late",), TRAILERS)
    client.connection.send_interim(1, RESPONSE_HEAD)
    client.connection.send_body(1, RESPONSE_HEAD, (b"late",))
    client.connection.reset(1)

    assert client.output() == []


def test_queue_of_a_reset_stream_is_dropped():
    client = responding(1, window=5)
    client.connection.send_data(1, b"0123456789")
    client.send(rst_stream(1))

    assert client.connection.queued_bytes(1) == 0
    assert client.output() == []


@pytest.mark.parametrize(
    "misuse,reason",
    [
        (lambda connection: connection.send_headers(3, RESPONSE_HEAD), "never opened"),
        (lambda connection: connection.send_headers(1, RESPONSE_HEAD), "a head already"),
        (lambda connection: connection.send_response(1, RESPONSE_HEAD, (), b""), "a head already"),
        (lambda connection: connection.send_body(1, RESPONSE_HEAD, (b"abc",)), "a head already"),
        (lambda connection: connection.ping(b"short"), "8 bytes"),
        (lambda connection: connection.send_data(1, memoryview(bytes(1 << 20)).cast("I")), "bytes"),
    ],
)
def test_misuse_is_told_to_the_caller(misuse, reason):
    client = responding(1)

    with pytest.raises(LocalProtocolError, match=reason):
        misuse(client.connection)


def test_response_begins_with_its_head_and_ends_once():
    client = FrameClient(settings=setting(INITIAL_WINDOW_SIZE, 1))
    client.open(1, end_stream=True)
    with pytest.raises(LocalProtocolError, match="no head"):
        client.connection.send_data(1, b"x")
    with pytest.raises(LocalProtocolError, match="no head"):
        client.connection.send_trailers(1, TRAILERS)
    client.connection.send_response(1, RESPONSE_HEAD, (b"waits",), TRAILERS)

    with pytest.raises(LocalProtocolError, match="ended already"):
        client.connection.send_data(1, b"more")


def test_small_response_at_once_has_the_frames_of_any_other():
    client = FrameClient()
    client.open(1, 3, end_stream=True)
    client.connection.send_response(1, RESPONSE_HEAD, [b"ab", b"c"], TRAILERS)
    expected = [sent._replace(stream_id=3) for sent in client.output()]

    frames_of_response = ResponseFrames(RESPONSE_HEAD, 3, TRAILERS)
    assert client.connection.send_whole(3, frames_of_response, (b"ab", b"c"))
    assert client.output() == expected
    assert client.connection.open_streams == 0


def test_small_response_is_not_sent_at_once_if_the_window_is_too_small():
    client = FrameClient(settings=setting(INITIAL_WINDOW_SIZE, 2))
    client.open(1, end_stream=True)

    was_sent = client.connection.send_whole(1, ResponseFrames(b"\x88", 3, TRAILERS), (b"abc",))

    assert not was_sent
    assert client.output() == []
    assert client.connection.open_streams == 1


def test_small_response_waits_for_an_update_of_the_header_table():
    client = FrameClient(settings=setting(HEADER_TABLE_SIZE, 0))
    client.open(1, end_stream=True)

    was_sent = client.connection.send_whole(1, ResponseFrames(b"\x88", 1, TRAILERS), (b"a",))

    assert not was_sent


def test_small_response_of_a_closed_stream_is_dropped():
    client = FrameClient()
    client.open(1, end_stream=True)
    client.send(rst_stream(1))

    assert client.connection.send_whole(1, ResponseFrames(b"\x88", 1, TRAILERS), (b"a",))
    assert client.output() == []


# Responses that end with their body instead of trailers


def asking(window: int = 65_535) -> FrameClient:
    client = FrameClient(settings=setting(INITIAL_WINDOW_SIZE, window))
    client.open(1, end_stream=True)
    return client


def body_of(sent) -> bytes:
    return b"".join(each.payload for each in sent if each.kind == DATA)


@pytest.mark.parametrize("body", [(b"abc",), (b"a", b"", b"bc"), (memoryview(b"abc"),)])
def test_small_response_is_two_frames(body):
    client = asking()
    client.connection.send_body(1, RESPONSE_HEAD, body)

    assert client.output() == [
        (HEADERS, frames.END_HEADERS, 1, RESPONSE_HEAD),
        (DATA, END, 1, b"abc"),
    ]
    assert client.connection.open_streams == 0


@pytest.mark.parametrize("body", [(), (b"",)])
def test_response_without_a_body_is_one_frame(body):
    client = asking()
    client.connection.send_body(1, RESPONSE_HEAD, body)

    assert client.output() == [(HEADERS, frames.END_HEADERS | END, 1, RESPONSE_HEAD)]
    assert client.connection.open_streams == 0


@pytest.mark.parametrize("window", [1, 1000, 1 << 20])
def test_large_response_waits_for_the_window(window):
    client = asking(window)
    body = bytes(range(256)) * 1000
    client.send(window_update(0, 1 << 20))
    client.connection.send_body(1, RESPONSE_HEAD, [body[:100_000], body[100_000:]])
    sent = client.output()

    assert body_of(sent) == body[:window]

    if window < len(body):
        client.send(window_update(1, 1 << 20))
        sent += client.output()
    assert body_of(sent) == body
    assert [each.flags & END for each in sent if each.kind == DATA][-1] == END
    assert sum(bool(each.flags & END) for each in sent) == 1
    assert client.connection.open_streams == 0


def test_whole_response_is_joined_with_its_stream():
    client = asking()
    made = BodyFrames(RESPONSE_HEAD, 3)

    assert client.connection.send_whole(1, made, (b"abc",))
    assert client.output() == [
        (HEADERS, frames.END_HEADERS, 1, RESPONSE_HEAD),
        (DATA, END, 1, b"abc"),
    ]
    assert client.connection.open_streams == 0


def test_client_that_still_sends_is_asked_to_stop():
    client = FrameClient()
    client.open(1)
    client.connection.send_body(1, RESPONSE_HEAD, (b"abc",))

    assert [each.kind for each in client.output()] == [HEADERS, DATA, frames.RST_STREAM]


def test_interim_response_comes_before_the_real_one():
    client = FrameClient()
    client.open(1)
    interim = encode_header_block([(b":status", b"100")])
    client.connection.send_interim(1, interim)

    assert client.output() == [(HEADERS, frames.END_HEADERS, 1, interim)]

    client.connection.send_body(1, RESPONSE_HEAD, (b"abc",))

    assert body_of(client.output()) == b"abc"
