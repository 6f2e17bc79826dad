# SPDX-License-Identifier: Apache-2.0
"""Messages of several streams at once are the same, however they are cut and wherever they go."""

from __future__ import annotations

import random

import pytest

from pytriton.protocol.grpc import MessageAssembler, message_prefix
from pytriton.protocol.http2 import DataBuffered, DataReceived
from tests.wire.http2.frame_client import FrameClient, data

LIMIT = 1 << 20
SIZES = (0, 1, 300, 5000, 70_000, 200_000)


class Receiver:
    """Puts the messages of all streams together, in memory that it may or may not have."""

    def __init__(self, source: random.Random) -> None:
        self.client = FrameClient()
        self.assemblers: dict[int, MessageAssembler] = {}
        self.messages: dict[int, list[bytes]] = {}
        self.placed_bytes = 0
        self._random = source

    def open(self, stream_id: int) -> None:
        self.client.open(stream_id)
        self.assemblers[stream_id] = MessageAssembler(LIMIT, allocate=self._allocate)
        self.messages[stream_id] = []

    def _allocate(self, size: int, start: memoryview) -> memoryview | None:
        return memoryview(bytearray(size)) if self._random.random() < 0.7 else None

    def receive(self, chunk: bytes) -> None:
        for events in self.client.deliver(chunk):
            for event in events:
                self._take(event)

    def _take(self, event) -> None:
        assembler = self.assemblers[event.stream_id]
        messages = self.messages[event.stream_id]
        if isinstance(event, DataBuffered):
            self.placed_bytes += event.size
            message = assembler.buffer_updated(event.size)
            messages += [] if message is None else [bytes(message)]
            size = event.size
        else:
            assert isinstance(event, DataReceived)
            messages += [bytes(message) for message in assembler.feed(event.data)]
            size = len(event.data)
        self.client.connection.set_buffer(event.stream_id, assembler.buffer)
        self.client.connection.acknowledge(event.stream_id, size)


def mixed_frames(source: random.Random, bodies: dict[int, bytes]) -> bytes:
    """The bodies in frames of any size, those of all streams in any order."""
    left = dict(bodies)
    wire = []
    while left:
        stream_id = source.choice(list(left))
        for _ in range(source.choice((1, 5))):
            size = source.choice((1, 9, 4000, 16_384, 16_384, 150_000))
            wire.append(data(stream_id, left[stream_id][:size]))
            left[stream_id] = left[stream_id][size:]
            if not left[stream_id]:
                del left[stream_id]
                break
    return b"".join(wire)


@pytest.mark.parametrize("seed", range(40))
def test_messages_are_the_same_however_they_come(seed):
    source = random.Random(seed)
    receiver = Receiver(source)
    sent = {
        stream_id: [source.randbytes(source.choice(SIZES)) for _ in range(4)]
        for stream_id in (1, 3, 5)
    }
    for stream_id in sent:
        receiver.open(stream_id)
    bodies = {
        stream_id: b"".join(message_prefix(len(message)) + message for message in messages)
        for stream_id, messages in sent.items()
    }

    wire = mixed_frames(source, bodies)
    while wire:
        size = source.choice((1, 100, 20_000, 1 << 18))
        receiver.receive(wire[:size])
        wire = wire[size:]

    assert receiver.messages == sent
    assert all(assembler.is_between_messages for assembler in receiver.assemblers.values())


def test_random_messages_do_use_memory():
    source = random.Random(0)
    receiver = Receiver(source)
    receiver.open(1)
    wire = mixed_frames(source, {1: (message_prefix(200_000) + bytes(200_000)) * 10})
    for start in range(0, len(wire), 30_000):
        receiver.receive(wire[start : start + 30_000])

    assert len(receiver.messages[1]) == 10
    assert receiver.placed_bytes > 1_000_000
