# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gzip
import random
import tracemalloc
import zlib

import pytest

from pytriton.protocol.compression import compress
from pytriton.protocol.grpc import GrpcError, GrpcStatus, MessageAssembler, message_prefix
from pytriton.protocol.grpc.messages import (
    MAX_INFLATED_BYTES,
    SMALL_BYTES,
    CompressionLevel,
    Inflation,
    encoding_for_level,
)

LIMIT = 1 << 20


def framed(message: bytes, *, is_compressed: bool = False) -> bytes:
    return message_prefix(len(message), is_compressed=is_compressed) + message


def collect(assembler: MessageAssembler, *chunks: bytes) -> list[bytes]:
    return [bytes(message) for chunk in chunks for message in assembler.feed(chunk)]


def test_prefix_is_a_flag_and_a_big_endian_length():
    assert message_prefix(0x01020304) == b"\0\x01\x02\x03\x04"
    assert message_prefix(1, is_compressed=True) == b"\x01\0\0\0\x01"


def test_message_in_one_piece_comes_out_whole():
    assert MessageAssembler(LIMIT).feed(framed(b"hello")) == [b"hello"]


def test_messages_are_the_same_whatever_the_chunks():
    messages = [b"", b"a", b"", b"bc" * 50, bytes(300)]
    wire = b"".join(framed(message) for message in messages)
    source = random.Random(5)

    for _ in range(200):
        cuts = sorted(source.choices(range(len(wire) + 1), k=source.randrange(8)))
        chunks = [wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True)]
        assembler = MessageAssembler(LIMIT)

        assert collect(assembler, *chunks) == messages
        assert assembler.is_between_messages


@pytest.mark.parametrize("cut", [1, 4, 5, 6, 9])
def test_stream_that_ends_inside_a_message_is_noticed(cut):
    assembler = MessageAssembler(LIMIT)

    assert assembler.feed(framed(b"hello")[:cut]) == []
    assert not assembler.is_between_messages


def test_kinds_of_buffers_are_all_taken():
    wire = framed(b"x" * 100) + framed(b"y")

    for kind in (bytes, bytearray, memoryview):
        assert collect(MessageAssembler(LIMIT), kind(wire)) == [b"x" * 100, b"y"]


def test_small_message_does_not_hold_on_to_its_chunk():
    chunk = memoryview(framed(b"small") + bytes(100))

    (message, *_) = MessageAssembler(LIMIT).feed(chunk)

    assert isinstance(message, bytes)


def test_large_message_in_one_chunk_is_not_copied():
    chunk = framed(bytes(200_000))

    (message,) = MessageAssembler(LIMIT).feed(memoryview(chunk))

    assert isinstance(message, memoryview)
    assert message.obj is chunk


def test_large_message_in_parts_is_copied_once():
    wire = framed(bytes(16 << 20))
    assembler = MessageAssembler(32 << 20)
    view = memoryview(wire)

    tracemalloc.start()
    messages = []
    for start in range(0, len(wire), 1 << 18):
        messages += assembler.feed(view[start : start + (1 << 18)])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert [len(message) for message in messages] == [16 << 20]
    assert peak < 40 << 20  # one buffer, and its predecessor while it grows


def test_declared_size_alone_allocates_nothing():
    tracemalloc.start()
    MessageAssembler(2**31 - 1).feed(message_prefix(2**31 - 1) + b"start")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 10_000


class Memory:
    """Has memory for every message, and remembers what for."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, bytes]] = []
        self.buffers: list[bytearray] = []

    def find(self, size: int, start: memoryview) -> memoryview:
        self.asked.append((size, bytes(start)))
        self.buffers.append(bytearray(size))
        return memoryview(self.buffers[-1])


def test_message_in_parts_is_put_into_the_memory_for_it():
    memory = Memory()
    assembler = MessageAssembler(LIMIT, allocate=memory.find)

    assert assembler.feed(framed(b"whole") + framed(b"begins and ends")[:11]) == [b"whole"]
    (message,) = assembler.feed(b" and ends")

    assert memory.asked == [(15, b"begins")]
    assert message == b"begins and ends"
    assert message.obj is memory.buffers[0]


def test_rest_of_a_message_can_be_written_to_its_memory():
    assembler = MessageAssembler(LIMIT, allocate=Memory().find)
    assembler.feed(framed(b"0123456789")[:8])

    assembler.buffer[:3] = b"345"
    assert assembler.buffer_updated(3) is None
    assert not assembler.is_between_messages
    assembler.buffer[:] = b"6789"

    assert assembler.buffer_updated(4) == b"0123456789"
    assert assembler.is_between_messages
    assert assembler.buffer is None


def test_memory_is_asked_for_once_a_message_shows_its_beginning():
    memory = Memory()
    assembler = MessageAssembler(LIMIT, allocate=memory.find)

    assembler.feed(message_prefix(10))
    assert assembler.buffer is None
    assembler.feed(b"012")
    assembler.feed(b"345")

    assert memory.asked == [(10, b"012")]
    assert len(assembler.buffer) == 4


def test_message_without_memory_grows_as_it_comes():
    asked = []
    assembler = MessageAssembler(LIMIT, allocate=lambda *start: asked.append(start))

    assert collect(assembler, *(framed(b"0123456789")[at : at + 1] for at in range(15))) == [
        b"0123456789"
    ]
    assert assembler.buffer is None
    assert len(asked) == 1


def test_message_that_another_takes_the_place_of_is_not_kept():
    assembler = MessageAssembler(LIMIT, allocate=lambda _size, start: bytes(start[:3]))
    wire = framed(b"0123456789") + framed(b"abc")
    assembler.feed(wire[:9])

    assert (assembler.left, assembler.buffer, assembler.is_between_messages) == (6, None, False)
    assert not assembler._message
    assert assembler.feed(wire[9:]) == [b"012", b"abc"]
    assert assembler.is_between_messages


def test_compressed_message_has_no_memory_of_its_own():
    memory = Memory()
    assembler = MessageAssembler(LIMIT, "gzip", memory.find)
    wire = framed(gzip.compress(b"tensor" * 100), is_compressed=True)

    assert collect(assembler, wire[:20], wire[20:]) == [b"tensor" * 100]
    assert not memory.asked


def test_too_large_message_is_refused_at_its_prefix():
    assembler = MessageAssembler(100)
    assert collect(assembler, framed(bytes(100))) == [bytes(100)]

    with pytest.raises(GrpcError, match=r"larger than max \(101 vs. 100\)") as caught:
        assembler.feed(message_prefix(101))

    assert caught.value.status is GrpcStatus.RESOURCE_EXHAUSTED


def test_too_large_message_in_one_piece_is_refused():
    with pytest.raises(GrpcError, match=r"larger than max \(101 vs. 100\)"):
        MessageAssembler(100).feed(framed(bytes(101)))


@pytest.mark.parametrize("flag", [2, 128, 255])
def test_unknown_flag_is_refused(flag):
    with pytest.raises(GrpcError, match=f"got {flag}") as caught:
        MessageAssembler(LIMIT).feed(bytes((flag, 0, 0, 0, 1, 7)))

    assert caught.value.status is GrpcStatus.INTERNAL


@pytest.mark.parametrize("encoding,pack", [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_compressed_messages_are_unpacked(encoding, pack):
    assembler = MessageAssembler(LIMIT, encoding)
    wire = framed(pack(b"tensor" * 100), is_compressed=True) + framed(b"plain")

    assert collect(assembler, wire[:20], wire[20:]) == [b"tensor" * 100, b"plain"]


def test_compressed_flag_without_an_encoding_is_refused():
    with pytest.raises(GrpcError) as caught:
        MessageAssembler(LIMIT).feed(framed(gzip.compress(b"x"), is_compressed=True))

    assert caught.value.status is GrpcStatus.INTERNAL


def decompress(data, encoding, max_bytes) -> bytes:
    return bytes(Inflation(data, encoding, max_bytes).finish())


def joined(data, encoding) -> bytes:
    return b"".join(compress([data], encoding))


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_bomb_is_refused_without_being_unpacked(encoding):
    bomb = joined(bytes(200 << 20), encoding)

    tracemalloc.start()
    with pytest.raises(GrpcError, match="larger than max") as caught:
        decompress(bomb, encoding, LIMIT)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert caught.value.status is GrpcStatus.RESOURCE_EXHAUSTED
    assert peak < 4 * LIMIT


def test_message_of_exactly_the_limit_is_unpacked():
    assert decompress(joined(bytes(LIMIT), "gzip"), "gzip", LIMIT) == bytes(LIMIT)


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"not compressed",
        gzip.compress(b"x", mtime=0)[:-1],
        gzip.compress(b"x", mtime=0) + b"more",
    ],
    ids=["empty", "plain", "cut", "more"],
)
def test_damaged_message_is_refused(damaged):
    with pytest.raises(GrpcError, match="gzip") as caught:
        decompress(damaged, "gzip", LIMIT)

    assert caught.value.status is GrpcStatus.INTERNAL


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compression_is_undone_by_decompression(encoding):
    assert decompress(joined(memoryview(b"abc" * 999), encoding), encoding, LIMIT) == b"abc" * 999


@pytest.mark.parametrize(
    "level,accepted,expected",
    [
        ("none", ("gzip", "deflate"), "identity"),
        ("low", ("identity", "deflate", "gzip"), "gzip"),
        ("medium", ("gzip", "deflate"), "deflate"),
        ("high", ("gzip", "deflate"), "deflate"),
        ("high", ("gzip",), "gzip"),
        ("low", ("deflate",), "deflate"),
        ("high", ("identity", "snappy"), "identity"),
        ("high", (), "identity"),
    ],
)
def test_level_picks_an_encoding_that_the_client_accepts(level, accepted, expected):
    assert encoding_for_level(CompressionLevel(level), accepted) == expected


def test_small_message_is_inflated_at_once():
    assert Inflation(gzip.compress(b"abc"), "gzip", LIMIT).begin() == b"abc"


@pytest.mark.parametrize("content", [bytes(1 << 20), random.Random(1).randbytes(1 << 20)])
def test_large_message_is_only_begun(content):
    inflation = Inflation(gzip.compress(content), "gzip", 2 << 20)

    assert inflation.begin() is None
    assert inflation.finish() == content


def test_message_is_inflated_later_by_whoever_took_it():
    content = bytes(2 * SMALL_BYTES)
    assembler = MessageAssembler(2 * SMALL_BYTES, "gzip")
    (message,) = assembler.feed(framed(gzip.compress(content), is_compressed=True))

    assert isinstance(message, Inflation)
    assert message.finish() == content


def test_inflated_message_has_a_limit_of_its_own():
    bomb = joined(bytes(MAX_INFLATED_BYTES + 1), "deflate")

    with pytest.raises(GrpcError, match=f"more than {MAX_INFLATED_BYTES}"):
        decompress(bomb, "deflate", (2 << 30) - 1)


def test_several_parts_are_compressed_as_one():
    parts = [b"abc", memoryview(bytes(1 << 20)), b"", bytearray(b"def")]

    assert gzip.decompress(b"".join(compress(parts, "gzip"))) == b"".join(parts)
