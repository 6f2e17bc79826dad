# SPDX-License-Identifier: Apache-2.0
"""Random HTTP/2 with the whole gRPC API behind it: all frames in any order, and header blocks."""

from __future__ import annotations

import random

from pytriton.protocol.http2 import Http2Limits, frames
from pytriton.protocol.http2.frames import ConnectionViolation, frame
from pytriton.protocol.http2.headers import HeaderDecoder
from tests.cost.counting import work_of
from tests.fuzz.fuzzing import Case, assert_reveals_nothing, fuzz
from tests.fuzz.grpc_rig import (
    METHODS,
    RandomSession,
    check_session,
    literal,
    random_block,
    random_element,
)
from tests.fuzz.mutation import mutate_bytes

BLOCK_WORK = 3000  # new sizes may empty a table of 128 fields
WORK_PER_FIELD = 100
WORK_PER_FIELD_BYTE = 30  # in Huffman's code


def random_frames(source: random.Random) -> Case:
    return RandomSession(source).reads()


def mutated_frames(source: random.Random) -> Case:
    """The frames of a polite client, with some bytes changed anywhere behind the preface."""
    session = RandomSession(source, rudeness=0)
    preface, *reads = session.reads()
    reads = reads or [random_block(source, "ModelInfer")]
    for _ in range(source.choice((1, 2, 5))):
        at = source.randrange(len(reads))
        reads[at] = mutate_bytes(source, reads[at])
    return [preface, *reads]


def random_bytes(source: random.Random) -> Case:
    preface = frames.PREFACE + frame(frames.SETTINGS, 0, 0, b"")
    start = source.choice((b"", frames.PREFACE, preface, preface, preface))
    return [start + source.randbytes(source.randrange(1, 300))]


def check(reads: Case) -> None:
    check_session(reads)


def random_blocks(source: random.Random) -> Case:
    """Blocks of one connection, which share a table."""
    blocks = []
    for _ in range(source.choice((1, 3, 10))):
        kind = source.randrange(4)
        if kind == 0:
            blocks.append(random_element(source))
        elif kind == 1:
            names = [b"name%d" % source.randrange(5) for _ in range(source.choice((1, 20, 200)))]
            first = source.choice((0, 0x40))
            blocks.append(b"".join(literal(name, b"value" * 3, first) for name in names))
        else:
            blocks.append(random_block(source, source.choice(METHODS)))
    return blocks


def check_blocks(blocks: Case) -> None:
    """Assert that blocks are decoded or refused, and that work is for fields and their bytes.

    Bytes alone would not bound it: what is no field does not count for the limit of a block.
    """
    limits = Http2Limits()
    decoder = HeaderDecoder(limits)
    for block in blocks:
        fields: list[tuple[bytes, bytes]] = []
        try:
            work = work_of(lambda b=block, f=fields: f.extend(decoder.decode(b)))
        except ConnectionViolation as violation:
            assert_reveals_nothing(violation.message, block)
            return
        size = sum(len(name) + len(value) for name, value in fields)
        most = BLOCK_WORK + WORK_PER_FIELD * len(fields) + WORK_PER_FIELD_BYTE * size
        assert work <= most, f"{work} units of work for {len(fields)} fields, {most=}"
        assert size + 32 * len(fields) <= limits.max_header_list_bytes
        # The same block again: what a cache says is what the decoder says.
        head = decoder.decode_request(block)
        assert decoder.known_request(block) in (None, head)


def test_random_frames_are_answered_or_end_the_connection():
    fuzz("gRPC frames", 180, random_frames, check)


def test_mutated_frames_are_answered_or_end_the_connection():
    fuzz("mutated gRPC frames", 120, mutated_frames, check)


def test_random_bytes_end_the_connection():
    fuzz("gRPC noise", 60, random_bytes, check)


def test_random_header_blocks_are_decoded_or_refused():
    fuzz("HPACK", 400, random_blocks, check_blocks)
