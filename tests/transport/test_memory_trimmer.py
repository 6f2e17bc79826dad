# SPDX-License-Identifier: Apache-2.0
"""When memory for bodies is lent, and when it is given back."""

from __future__ import annotations

import pytest

from pytriton.runtime.transport.arena import (
    ALIGNMENT,
    IDLE_SECONDS,
    MAX_DIRECT_BODY_BYTES,
    MAX_DIRECT_RESERVED_BYTES,
    SEGMENT_BYTES,
    Arena,
    MemoryTrimmer,
    find_block,
)
from pytriton.runtime.transport.link import socket_pair
from pytriton.runtime.transport.memory_channel import MemoryChannel
from tests.fakes import FakeClock, FakeLoop

MIB = 1 << 20


@pytest.fixture
def loop():
    return FakeLoop(FakeClock())


@pytest.fixture
def trimmer(loop):
    return MemoryTrimmer(loop)


class Peer(MemoryChannel):
    """A channel that tells at once which segments were dropped, as one on an event loop does."""

    def drop_segments(self, segments):
        self.queue_dropped_segments(segments)
        self.send_memory_update()


@pytest.fixture
def channel(trimmer):
    """A channel of the trimmer's arena whose peer says nothing."""
    ours, theirs = socket_pair()
    made = Peer(ours, trimmer.arena)
    trimmer.add(made)
    yield made
    trimmer.remove(made)
    made.close()
    theirs.close()


@pytest.mark.parametrize("header_bytes", [0, 1, 63, 64, 200])
def test_body_lies_so_that_what_follows_its_header_is_aligned(trimmer, header_bytes):
    body = trimmer.body_memory(MIB, header_bytes)
    block, offset = find_block(body[header_bytes:])

    assert len(body) == MIB
    assert (block.offset + offset) % ALIGNMENT == 0
    assert trimmer.arena.owns(block)


def test_body_that_is_very_large_is_not_received_there(trimmer):
    assert trimmer.body_memory(MAX_DIRECT_BODY_BYTES + 1, 0) is None


def test_bodies_that_may_never_arrive_do_not_take_all_room(trimmer, monkeypatch):
    monkeypatch.setattr(Arena, "reserved_bytes", MAX_DIRECT_RESERVED_BYTES - MIB)

    assert trimmer.body_memory(MIB, 0) is not None
    assert trimmer.body_memory(MIB + 1, 0) is None


def test_body_of_some_hundred_megabytes_is_received_there(trimmer):
    assert trimmer.body_memory(500 * MIB, 0) is not None


def test_body_goes_elsewhere_where_no_memory_can_be_shared(trimmer, monkeypatch):
    def fail(*_):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("pytriton.runtime.transport.arena.Segment", fail)

    assert trimmer.body_memory(MIB, 0) is None


def test_idle_memory_goes_after_a_while(trimmer, loop, channel, monkeypatch):
    monkeypatch.setattr("pytriton.runtime.transport.arena.time", loop.clock)
    body = trimmer.body_memory(MIB, 0)
    assert trimmer.arena.reserved_bytes == SEGMENT_BYTES
    loop.advance(2 * IDLE_SECONDS)
    assert trimmer.arena.reserved_bytes == SEGMENT_BYTES

    del body
    for _ in range(3):
        loop.advance(IDLE_SECONDS)

    assert trimmer.arena.reserved_bytes == 0


def test_memory_goes_with_the_last_channel(trimmer):
    channels = []
    for _ in range(2):
        ours, theirs = socket_pair()
        theirs.close()
        channels.append(MemoryChannel(ours, trimmer.arena))
        trimmer.add(channels[-1])
    trimmer.body_memory(MIB, 0)
    for channel in channels:
        assert trimmer.arena.reserved_bytes == SEGMENT_BYTES
        channel.close()
        trimmer.remove(channel)

    assert trimmer.arena.reserved_bytes == 0


def test_memory_of_a_body_that_outlives_its_model_goes_after_it(trimmer, loop, channel):
    body = trimmer.body_memory(MIB, 0)
    trimmer.remove(channel)
    loop.advance(2 * IDLE_SECONDS)
    assert trimmer.arena.reserved_bytes == SEGMENT_BYTES

    del body
    loop.advance(IDLE_SECONDS)

    assert trimmer.arena.reserved_bytes == 0
