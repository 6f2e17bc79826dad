# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from pytriton.protocol.http2 import Http2Limits, frames
from pytriton.protocol.http2.frames import ConnectionViolation, Http2ErrorCode, frame
from pytriton.protocol.http2.reader import FrameReader, FrameRun

LIMITS = Http2Limits(max_frame_bytes=100_000, max_header_block_bytes=20_000)


def read(reader: FrameReader, *chunks: bytes):
    return [
        (kind, flags, stream_id, bytes(payload))
        for chunk in chunks
        for kind, flags, stream_id, payload in reader.read(chunk)
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

    assert caught.value.code is Http2ErrorCode.PROTOCOL_ERROR


def test_frame_that_costs_more_than_one_turn_waits_for_its_end():
    reader = started()
    costly = frame(frames.SETTINGS, 0, 0, bytes(16_000))

    assert read(reader, costly[:-1]) == []
    assert not reader.rest  # nothing can be done before more comes
    assert read(reader, costly[-1:]) == [(frames.SETTINGS, 0, 0, bytes(16_000))]


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


def test_large_frames_in_a_row_are_a_run():
    alike = frame(frames.DATA, 0, 1, b"a" * 20_000)

    run = started().find_run(memoryview(alike * 3 + alike[:-1]))

    assert run == FrameRun(1, rest_bytes=0, length=20_000, whole_frames=3, tail_bytes=20_008)
    assert run.end == 4 * 20_009 - 1
    assert run.data_bytes == 4 * 20_000 - 1


@pytest.mark.parametrize(
    "other",
    [
        frame(frames.DATA, 0, 3, b"b" * 20_000),
        frame(frames.DATA, frames.END_STREAM, 1, b"b" * 20_000),
        frame(frames.DATA, 0, 1, b"b" * 20_001),
        frame(frames.HEADERS, 0, 1, b"b" * 20_000),
        b"\0\0\x08",
    ],
)
def test_run_ends_where_frames_differ(other):
    alike = frame(frames.DATA, 0, 1, b"a" * 20_000)

    run = started().find_run(memoryview(alike * 2 + other + alike * bool(other[3:])))

    assert run == FrameRun(1, rest_bytes=0, length=20_000, whole_frames=2, tail_bytes=0)


def test_run_begins_with_the_rest_of_a_frame():
    reader = started()
    alike = frame(frames.DATA, 0, 1, b"a" * 20_000)
    read(reader, alike[:109])

    run = reader.find_run(memoryview(alike[109:] + alike * 2 + alike[:50]))

    assert run == FrameRun(1, rest_bytes=19_900, length=20_000, whole_frames=2, tail_bytes=50)
    reader.skip(run)
    assert read(reader, alike[50:]) == [(frames.DATA, 0, 1, b"a" * (20_009 - 50))]


@pytest.mark.parametrize(
    "begun,data",
    [
        (b"", frame(frames.DATA, 0, 1, bytes(20_000))[:-1]),
        (b"", frame(frames.DATA, 0, 1, bytes(100)) * 100),
        (b"", frame(frames.DATA, frames.END_STREAM, 1, bytes(20_000)) * 2),
        (b"", frame(frames.PING, 0, 0, b"12345678") + frame(frames.DATA, 0, 1, bytes(20_000)) * 2),
        (frame(frames.DATA, 0, 3, bytes(9)), frame(frames.DATA, 0, 1, bytes(20_000)) * 2),
        (frame(frames.DATA, 1, 1, bytes(9)), frame(frames.DATA, 0, 1, bytes(20_000)) * 2),
        (frame(frames.PING, 0, 0, b"12345678"), frame(frames.DATA, 0, 1, bytes(20_000)) * 2),
    ],
)
def test_other_frames_are_no_run(begun, data):
    reader = started()
    read(reader, begun[:-1])

    assert reader.find_run(memoryview(begun[-1:] + data)) is None


def test_frames_that_are_too_large_are_no_run():
    reader = FrameReader(Http2Limits(max_frame_bytes=16_384))
    read(reader, frames.PREFACE)

    assert reader.find_run(memoryview(frame(frames.DATA, 0, 1, bytes(16_385)))) is None


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

    assert caught.value.code is Http2ErrorCode.FRAME_SIZE_ERROR
