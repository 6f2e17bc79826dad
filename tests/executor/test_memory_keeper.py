# SPDX-License-Identifier: Apache-2.0
"""When memory for bodies is lent, and when it is given back."""

from __future__ import annotations

import pytest

from pytriton.executor.memory_keeper import (
    MAX_DIRECT_BODY_BYTES,
    MAX_DIRECT_RESERVED_BYTES,
    MemoryKeeper,
)
from pytriton.transport.arena import ALIGNMENT, IDLE_SECONDS, SEGMENT_BYTES, Arena, find_block
from pytriton.transport.channel import Channel
from pytriton.transport.link import socket_pair
from tests.fakes import FakeClock, FakeLoop

MIB = 1 << 20


@pytest.fixture
def loop():
    return FakeLoop(FakeClock())


@pytest.fixture
def keeper(loop):
    return MemoryKeeper(loop)


@pytest.fixture
def channel(keeper):
    """A channel of the keeper's arena whose peer says nothing."""
    ours, theirs = socket_pair()
    made = Channel(ours, keeper.arena)
    keeper.add(made)
    yield made
    keeper.remove(made)
    made.close()
    theirs.close()


@pytest.mark.parametrize("header_bytes", [0, 1, 63, 64, 200])
def test_body_lies_so_that_what_follows_its_header_is_aligned(keeper, header_bytes):
    body = keeper.body_memory(MIB, header_bytes)
    block, offset = find_block(body[header_bytes:])

    assert len(body) == MIB
    assert (block.offset + offset) % ALIGNMENT == 0
    assert keeper.arena.owns(block)


def test_body_that_is_very_large_is_not_received_there(keeper):
    assert keeper.body_memory(MAX_DIRECT_BODY_BYTES + 1, 0) is None


def test_bodies_that_may_never_arrive_do_not_take_all_room(keeper, monkeypatch):
    monkeypatch.setattr(Arena, "reserved_bytes", MAX_DIRECT_RESERVED_BYTES + 1)

    assert keeper.body_memory(MIB, 0) is None


def test_body_goes_elsewhere_where_no_memory_can_be_shared(keeper, monkeypatch):
    def fail(*_):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(Arena, "allocate", fail)

    assert keeper.body_memory(MIB, 0) is None


def test_idle_memory_goes_after_a_while(keeper, loop, channel, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("pytriton.transport.arena.time.monotonic", lambda: now[0])
    body = keeper.body_memory(MIB, 0)
    assert keeper.arena.reserved_bytes == SEGMENT_BYTES
    loop.advance(2 * IDLE_SECONDS)
    assert keeper.arena.reserved_bytes == SEGMENT_BYTES

    del body
    for _ in range(3):
        now[0] += IDLE_SECONDS
        loop.advance(IDLE_SECONDS)

    assert keeper.arena.reserved_bytes == 0


def test_memory_goes_with_the_last_channel(keeper):
    channels = []
    for _ in range(2):
        ours, theirs = socket_pair()
        theirs.close()
        channels.append(Channel(ours, keeper.arena))
        keeper.add(channels[-1])
    keeper.body_memory(MIB, 0)
    for channel in channels:
        assert keeper.arena.reserved_bytes == SEGMENT_BYTES
        channel.close()
        keeper.remove(channel)

    assert keeper.arena.reserved_bytes == 0


def test_memory_of_a_body_that_outlives_its_model_goes_after_it(keeper, loop, channel):
    body = keeper.body_memory(MIB, 0)
    keeper.remove(channel)
    loop.advance(2 * IDLE_SECONDS)
    assert keeper.arena.reserved_bytes == SEGMENT_BYTES

    del body
    loop.advance(IDLE_SECONDS)

    assert keeper.arena.reserved_bytes == 0


def test_channel_whose_peer_is_gone_does_not_stop_the_others(keeper, loop):
    told = []

    class Fake:
        maps_memory = False

        def __init__(self, error=None):
            self._error = error

        def forget_segments(self, segments):
            pass

        def send_notes(self):
            told.append(self)
            if self._error is not None:
                raise self._error

    for each in (Fake(BrokenPipeError()), Fake(), Fake(OSError(9, "Bad file descriptor"))):
        keeper.add(each)
    keeper.touch()
    loop.advance(IDLE_SECONDS)

    assert len(told) == 3
