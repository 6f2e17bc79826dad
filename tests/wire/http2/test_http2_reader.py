# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from pytriton.wire.http2 import Limits, frames
from pytriton.wire.http2.errors import ConnectionViolation, ErrorCode
from pytriton.wire.http2.frames import frame
from pytriton.wire.http2.reader import FrameReader

LIMITS = Limits(max_frame_bytes=100_000, max_header_block_bytes=20_000)


def read(reader: FrameReader, *chunks: bytes):
    return [
        (kind, flags, stream_id, bytes(part))
        for chunk in chunks
        for kind, flags, stream_id, payload in reader.read(chunk)
        for part in (payload if isinstance(payload, list) else [payload])
    ]


def started() -> FrameReader:
    reader = FrameReader(LIMITS)
    assert read(reader, frames.PREFACE) == []
    return reader


def one_by_one(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


def test_reader_takes_the_preface_in_any_pieces():
    reader = FrameReader(LIMITS)

    result = read(reader, *one_by_one(frames.PREFACE + frame(frames.PING, 0, 0, b"12345678")))

    assert result == [(frames.PING, 0, 0, b"12345678")]


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01", b"PRI * HTTP/2.1"])
def test_reader_refuses_other_protocols_at_once(start):
    with pytest.raises(ConnectionViolation, match="preface") as caught:
        read(FrameReader(LIMITS), start)

    assert caught.value.code is ErrorCode.PROTOCOL_ERROR


def test_reader_finds_the_same_frames_whatever_the_chunks():
    stream = b"".join(
        (
            frame(frames.HEADERS, frames.END_HEADERS, 1, b"h" * 50),
            frame(frames.DATA, frames.PADDED, 1, b"\x03abc\0\0\0"),
            frame(frames.PING, 0, 0, b"12345678"),
            frame(0x77, 0, 3, b"unknown"),
        ),
    )
    whole = read(started(), stream)

    assert read(started(), *one_by_one(stream)) == whole
    for cut in range(len(stream)):
        assert read(started(), stream[:cut], stream[cut:]) == whole
    assert whole[1] == (frames.DATA, frames.PADDED, 1, b"\x03abc\0\0\0")


def test_data_frame_is_passed_on_in_parts():
    whole = frame(frames.DATA, frames.END_STREAM, 1, b"a" * 1000 + b"b" * 1000)

    parts = read(started(), whole[:1009], whole[1009:])

    assert parts == [
        (frames.DATA, 0, 1, b"a" * 1000),
        (frames.DATA, frames.END_STREAM, 1, b"b" * 1000),
    ]


def test_data_frame_whose_header_ends_a_chunk_comes_with_the_next():
    whole = frame(frames.DATA, frames.END_STREAM, 1, b"abc")

    assert read(started(), whole[:9], whole[9:]) == [(frames.DATA, frames.END_STREAM, 1, b"abc")]


@pytest.mark.parametrize("kind", [bytes, memoryview])
def test_large_payload_is_a_view_of_the_input(kind):
    chunk = frame(frames.DATA, frames.END_STREAM, 1, b"a" * 50_000)

    ((*_, payload),) = started().read(kind(chunk))

    assert isinstance(payload, memoryview)
    assert payload.obj is chunk


@pytest.mark.parametrize("kind", [bytes, memoryview])
def test_large_frames_in_a_row_come_together(kind):
    alike = frame(frames.DATA, 0, 1, b"a" * 20_000)
    others = [
        frame(frames.DATA, 0, 3, b"b" * 20_000),
        frame(frames.DATA, 0, 1, b"c" * 20_001),
        frame(frames.DATA, frames.END_STREAM, 1, b"d" * 20_001),
    ]
    chunk = alike * 3 + b"".join(others) + alike[:-1]

    *whole, part = started().read(kind(chunk))

    assert [(stream_id, len(payload)) for _, _, stream_id, payload in whole] == [
        (1, 3), (3, 1), (1, 1), (1, 20_001),
    ]  # fmt: skip
    assert whole[0][3] == [b"a" * 20_000] * 3
    assert part[3] == b"a" * 19_999


def test_reserved_bit_of_the_stream_id_is_ignored():
    assert read(started(), frame(frames.PING, 0, 1 << 31, b"12345678"))[0][2] == 0


@pytest.mark.parametrize(
    "kind,largest",
    [(frames.DATA, 100_000), (frames.HEADERS, 20_000), (frames.SETTINGS, 20_000), (0x77, 20_000)],
)
def test_frame_that_is_too_large_is_refused_before_it_comes(kind, largest):
    reader = started()
    read(reader, frames.pack_header(largest << 8 | kind, 0, 1))

    with pytest.raises(ConnectionViolation, match=str(largest)) as caught:
        read(started(), frames.pack_header((largest + 1) << 8 | kind, 0, 1))

    assert caught.value.code is ErrorCode.FRAME_SIZE_ERROR
