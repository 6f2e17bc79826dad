# SPDX-License-Identifier: Apache-2.0
"""Random clients: whatever they send, the connection answers or ends, and holds little memory.

`PYTRITON_FUZZ_ROUNDS` and `PYTRITON_FUZZ_FRAMES` make it run longer; a failure names the seed to
repeat it with.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import tracemalloc

import pytest

from pytriton.protocol.grpc import GrpcError, MessageAssembler, message_prefix, parse_call
from pytriton.protocol.http2 import (
    ConnectionTerminated,
    DataBuffered,
    DataReceived,
    Http2Connection,
    Http2Limits,
    RequestReceived,
    frames,
)
from pytriton.protocol.http2.frames import frame
from tests.wire.http2.frame_client import (
    GRPC_HEADERS,
    RESPONSE_HEAD,
    FrameClient,
    parse_frames,
    setting,
)

ROUNDS = int(os.environ.get("PYTRITON_FUZZ_ROUNDS", "60"))
FRAMES = int(os.environ.get("PYTRITON_FUZZ_FRAMES", "5000"))
FRAMES_PER_ROUND = 150
MAX_MESSAGE_BYTES = 100_000
LIMITS = Http2Limits(
    stream_window_bytes=100_000,
    connection_window_bytes=200_000,
    max_concurrent_streams=20,
    high_water_bytes=10_000,
    low_water_bytes=1000,
)


class RandomClient:
    """Mostly plausible frames, some of them damaged; its seed decides everything."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.client = FrameClient(LIMITS, settings=setting(4, self.random.choice([0, 1, 65_535])))
        self.next_id = 1
        self.rudeness = self.random.choice([0, 0, 0.005, 0.1])

    def is_rude(self) -> bool:
        return self.random.random() < self.rudeness

    def open_ids(self) -> list[int]:
        is_open = self.client.connection.is_open
        return [number for number in range(1, self.next_id, 2) if is_open(number)]

    def stream_id(self) -> int:
        if self.is_rude():
            return self.random.randrange(0, self.next_id + 6)
        return self.random.choice(self.open_ids() or [self.next_id])

    def flags(self, *usual: int) -> int:
        return self.random.randrange(256) if self.is_rude() else self.random.choice(usual)

    def headers(self) -> bytes:
        fields = list(GRPC_HEADERS)
        if self.random.random() < 0.3:
            fields.append(("grpc-timeout", f"{self.random.randrange(10**9)}m"))
        if self.random.random() < 0.2:
            fields.append((self.random.choice(["x-bin", "X", "te", "grpc-encoding"]), "gz ip"))
        if self.is_rude():
            stream_id = self.stream_id()
        else:
            stream_id = self.next_id
            self.next_id += 2 * self.random.choice([1, 1, 1, 2])
        return frame(frames.HEADERS, self.flags(4, 4, 4, 5), stream_id, self.client.block(fields))

    def data(self) -> bytes:
        size = self.random.choice([0, 1, 5, 6, 100, 5000, 16_384, 16_384, 80_000])
        payload = bytearray(self.random.randbytes(size))
        message_bytes = self.random.choice([0, 1, 90, 40_000, 99_000])
        payload[:5] = message_prefix(message_bytes)[:size]
        flags = self.flags(0, 0, 0, 1, 8)
        if flags == frames.PADDED and not self.is_rude():
            payload = bytearray((7,)) + payload + bytes(7)
        return frame(frames.DATA, flags, self.stream_id(), bytes(payload))

    def small(self, kind: int, size: int, stream_id: int, *flags: int) -> bytes:
        if self.is_rude():
            size = self.random.randrange(40)
        return frame(kind, self.flags(*flags), stream_id, self.random.randbytes(size))

    def window_update(self) -> bytes:
        increment = self.random.choice([1, 10, 1000, 60_000])
        if self.is_rude():
            increment = self.random.choice([0, frames.MAX_WINDOW])
        stream_id = self.random.choice([0, self.stream_id()])
        return frame(frames.WINDOW_UPDATE, 0, stream_id, increment.to_bytes(4, "big"))

    def settings(self) -> bytes:
        number = self.random.choice([1, 3, 4, 4, 6, 9])
        value = self.random.choice([0, 1, 100, 16_384, 65_535, 1 << 20])
        if self.is_rude():
            number, value = self.random.randrange(10), self.random.randrange(1 << 32)
        return frame(frames.SETTINGS, self.flags(0), 0, setting(number, value))

    def frame(self) -> bytes:
        make = self.random.choices(
            [
                self.headers,
                self.data,
                self.window_update,
                self.settings,
                lambda: self.small(frames.RST_STREAM, 4, self.stream_id(), 0),
                lambda: self.small(frames.PRIORITY, 5, self.stream_id(), 0),
                lambda: self.small(frames.PING, 8, 0, 0, 1),
                lambda: self.small(frames.GOAWAY, 8, 0, 0),
                lambda: self.small(self.random.randrange(10, 256), 9, self.stream_id(), 0),
                lambda: self.small(self.random.randrange(10), 9, self.stream_id(), 0, 4),
            ],
            weights=[30, 40, 15, 3, 5, 2, 0.3, 0.3, 1, 10 * self.rudeness],
        )[0]
        made = bytearray(make() if self.open_ids() or self.is_rude() else self.headers())
        if self.is_rude():
            made[self.random.randrange(len(made))] = self.random.randrange(256)
        return bytes(made)


class EchoServer:
    """Uses the connection as a front end would, and answers at random."""

    def __init__(self, connection: Http2Connection, source: random.Random) -> None:
        self.connection = connection
        self.random = source
        self.assemblers: dict[int, MessageAssembler] = {}
        self.heads_sent: set[int] = set()
        self.ended: set[int] = set()

    def handle(self, events) -> bool:
        for event in events:
            if isinstance(event, ConnectionTerminated):
                assert event is events[-1]
                return False
            if isinstance(event, RequestReceived):
                parse_call(event.head)
                self.assemblers[event.stream_id] = MessageAssembler(
                    MAX_MESSAGE_BYTES, "gzip", self.allocate
                )
            elif isinstance(event, DataReceived):
                self.feed(event)
            elif isinstance(event, DataBuffered):
                self.assemblers[event.stream_id].buffer_updated(event.size)
                self.connection.acknowledge(event.stream_id, event.size)
        for stream_id in list(self.assemblers):
            if not self.connection.is_open(stream_id):
                del self.assemblers[stream_id]
            elif stream_id not in self.ended and self.random.random() < 0.3:
                self.answer(stream_id)
        return True

    def allocate(self, size: int, start: memoryview) -> memoryview | None:
        return memoryview(bytearray(size)) if self.random.random() < 0.5 else None

    def feed(self, event: DataReceived) -> None:
        assembler = self.assemblers[event.stream_id]
        try:
            assembler.feed(event.data)
        except GrpcError:
            self.connection.reset(event.stream_id)
        self.connection.set_buffer(event.stream_id, assembler.buffer)
        if self.random.random() < 0.9:
            self.connection.acknowledge(event.stream_id, len(event.data))

    def answer(self, stream_id: int) -> None:
        if stream_id not in self.heads_sent:
            self.connection.send_headers(stream_id, RESPONSE_HEAD)
            self.heads_sent.add(stream_id)
        if self.connection.queued_bytes(stream_id) < LIMITS.high_water_bytes:
            self.connection.send_data(stream_id, bytes(self.random.choice([0, 3, 500, 20_000])))
        if self.random.random() < 0.4:
            self.connection.send_trailers(stream_id, b"\x88")
            self.ended.add(stream_id)


def run(seed: int) -> tuple[int, bool]:
    """Play one client; returns how many frames it could send, and whether it was thrown out."""
    hostile = RandomClient(seed)
    connection = hostile.client.connection
    server = EchoServer(connection, hostile.random)
    for number in range(FRAMES_PER_ROUND):
        wire = hostile.frame()
        cut = hostile.random.randrange(len(wire) + 1)
        hostile.client.now_ns += 10_000_000
        for chunk in (wire[:cut], wire[cut:]):
            for events in hostile.client.deliver(chunk):
                if not server.handle(events):
                    assert parse_frames(hostile.client.output_bytes())[-1].kind == frames.GOAWAY
                    return number, True
        if hostile.random.random() < 0.7:
            parse_frames(hostile.client.output_bytes())
        server.handle(connection.take_events())
        assert connection.open_streams <= LIMITS.max_concurrent_streams
    return FRAMES_PER_ROUND, False


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_random_client_is_served_or_thrown_out(seed):
    frames_sent, was_thrown_out = run(seed)

    assert was_thrown_out or frames_sent == FRAMES_PER_ROUND


def test_random_clients_reach_both_ends():
    results = [run(seed) for seed in range(20)]

    assert {was_thrown_out for _, was_thrown_out in results} == {True, False}
    assert sum(frames_sent for frames_sent, _ in results) > 500


def test_noise_after_the_preface_ends_quietly():
    for seed in range(ROUNDS):
        noise = random.Random(seed)
        client = FrameClient(LIMITS)
        events = client.send(noise.randbytes(noise.randrange(1, 2000)))
        assert all(not isinstance(event, RequestReceived) for event in events)


def test_random_client_makes_us_hold_little_memory():
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for seed in range(10):
        run(seed)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak - before < 4 << 20


def test_random_clients_leave_nothing_behind():
    run(0)
    gc.collect()
    before = sys.getallocatedblocks()
    frames_sent = 0
    seed = 0
    while frames_sent < FRAMES:
        frames_sent += run(seed)[0]
        seed += 1
    gc.collect()

    assert sys.getallocatedblocks() - before < 1000
