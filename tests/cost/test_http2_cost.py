# SPDX-License-Identifier: Apache-2.0
"""Frames of a hostile client: however many, they cause no more work than their bytes pay for."""

from __future__ import annotations

import pytest

from pytriton.protocol.http2 import Http2Limits, frames
from pytriton.protocol.http2.frames import frame
from tests.cost.counting import Attack, assert_paid
from tests.wire.http2.frame_client import (
    INITIAL_WINDOW_SIZE,
    RESPONSE_HEAD,
    FrameClient,
    data,
    ping,
    rst_stream,
    setting,
    settings,
    window_update,
)

# A small budget, so that what it allows at once is little work.
LIMITS = Http2Limits(work_burst=100, work_per_second=0)
READ_BYTES = 64 << 10


def opened(client: FrameClient, count: int) -> bytes:
    """The heads of many calls, fewer than a connection may have."""
    count = min(count, LIMITS.max_concurrent_streams - 1)
    return b"".join(client.headers(2 * number + 1) for number in range(count))


def resets(count: int) -> bytes:
    return b"".join(rst_stream(2 * number + 1) for number in range(count))


def window_sizes(count: int) -> list[bytes]:
    return [setting(INITIAL_WINDOW_SIZE, 1000 + number % 2) for number in range(count)]


def block(*parts: bytes) -> bytes:
    return frame(frames.HEADERS, frames.END_HEADERS, 1, b"".join(parts))


ATTACKS = {
    "calls": opened,
    "calls above the limit": lambda client, count: b"".join(
        client.headers(2 * number + 1) for number in range(2 * count)
    ),
    "settings of one frame": lambda client, count: (
        opened(client, count) + settings(*window_sizes(count))
    ),
    "settings of many frames": lambda client, count: (
        opened(client, count) + b"".join(map(settings, window_sizes(count)))
    ),
    "acknowledged settings": lambda client, count: settings(flags=frames.ACK) * count,
    "windows of the connection": lambda client, count: window_update(0, 1) * count,
    "windows of a stream": lambda client, count: (
        opened(client, count) + window_update(1, 1) * count
    ),
    "pings": lambda client, count: ping() * count,
    "answers to pings": lambda client, count: ping(flags=frames.ACK) * count,
    "resets": lambda client, count: opened(client, count) + resets(count),
    "late resets": lambda client, count: opened(client, 1) + rst_stream(1) * count,
    "priorities": lambda client, count: frame(frames.PRIORITY, 0, 1, bytes(5)) * count,
    "unknown frames": lambda client, count: frame(99, 0, 1, b"") * count,
    "GOAWAY": lambda client, count: frame(frames.GOAWAY, 0, 0, bytes(8)) * count,
    "empty data": lambda client, count: opened(client, 1) + data(1, b"") * count,
    "single bytes": lambda client, count: opened(client, count) + data(1, b"x") * count,
    "single bytes of two calls": lambda client, count: (
        opened(client, 2) + (data(1, b"x") + data(3, b"x")) * count
    ),
    "padding": lambda client, count: (
        opened(client, 1) + frame(frames.DATA, frames.PADDED, 1, b"\x01\0") * count
    ),
    "data of malformed calls": lambda client, count: (
        block(client.block([(":method", "POST")])) + data(1, b"x") * count
    ),
    "heads of malformed calls": lambda client, count: b"".join(
        frame(frames.HEADERS, frames.END_HEADERS, 2 * number + 1, b"\x82")
        for number in range(count)
    ),
    "table sizes": lambda client, count: block(b"\x20" * count, client.block()),
    "indexed fields": lambda client, count: block(client.block(), b"\x83" * count),
    "fields of the table": lambda client, count: block(client.block(), b"\x40\x01a\x01b" * count),
    "names": lambda client, count: block(client.block([(f"a{x}", "b") for x in range(count)])),
    "long values": lambda client, count: block(client.block([("a", "\xe9" * 10 * count)])),
    "continuations": lambda client, count: (
        frame(frames.HEADERS, 0, 1, client.block()) + frame(frames.CONTINUATION, 0, 1, b"") * count
    ),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_frames_are_paid_for(name):
    def make(count: int) -> Attack:
        client = FrameClient(LIMITS)
        wire = ATTACKS[name](client, count)

        def run() -> None:
            for at in range(0, len(wire), READ_BYTES):
                client.send(wire[at : at + READ_BYTES])
                client.connection.take_output()

        return Attack(len(wire), run)

    assert_paid(make)


@pytest.mark.parametrize("name", ["calls", "single bytes", "names", "settings of many frames"])
def test_frames_that_come_byte_by_byte_are_paid_for(name):
    def make(count: int) -> Attack:
        client = FrameClient(LIMITS)
        wire = ATTACKS[name](client, count)

        def run() -> None:
            for at in range(len(wire)):
                client.send(wire[at : at + 1])

        return Attack(len(wire), run, reads=len(wire))

    assert_paid(make, (5, 40, 320))


def test_small_windows_are_paid_for():
    def make(count: int) -> Attack:
        client = FrameClient(LIMITS, settings=setting(INITIAL_WINDOW_SIZE, 0))
        client.send(opened(client, count))
        for number in range(count):
            client.connection.send_headers(2 * number + 1, RESPONSE_HEAD)
            client.connection.send_data(2 * number + 1, bytes(10_000))
        client.output()
        wire = window_update(1, 1) * count

        def run() -> None:
            for _ in range(count):
                client.send(window_update(1, 1))
                client.connection.take_output()

        return Attack(len(wire), run, reads=count)

    assert_paid(make)


def test_reads_do_not_look_at_all_calls():
    def make(count: int) -> Attack:
        client = FrameClient(LIMITS)
        client.send(opened(client, count))
        client.connection.set_buffer(2 * count - 1, memoryview(bytearray(10 * count)))

        def run() -> None:
            for _ in range(count):
                client.send(data(2 * count - 1, b"x"))
                assert client.connection.has_buffers

        return Attack(10 * count, run, reads=count)

    assert_paid(make)
