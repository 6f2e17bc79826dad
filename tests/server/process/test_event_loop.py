# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import socket
from typing import Any

import pytest

from pytriton.serving.server.process import event_loop
from pytriton.serving.server.process.event_loop import reader_of_parts


class Transport:
    """Only what a transport knows of its socket."""

    def __init__(self, **extra: Any) -> None:
        self.get_extra_info = extra.get


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def test_parts_are_filled_in_their_order(ends):
    ours, theirs = ends
    read = reader_of_parts(Transport(socket=ours))
    parts = [memoryview(bytearray(size)) for size in (3, 1, 5)]
    theirs.sendall(b"abcdef")

    assert read(parts) == 6
    assert [bytes(part) for part in parts] == [b"abc", b"d", b"ef\0\0\0"]


def test_nothing_is_read_if_nothing_has_come(ends):
    ours, _ = ends

    assert reader_of_parts(Transport(socket=ours))([memoryview(bytearray(3))]) == 0


def test_transport_finds_out_that_a_connection_has_ended(ends):
    ours, theirs = ends
    read = reader_of_parts(Transport(socket=ours))
    theirs.close()

    assert read([memoryview(bytearray(3))]) == 0
    ours.close()
    assert read([memoryview(bytearray(3))]) == 0


def test_only_the_transport_reads_what_is_encrypted(ends):
    ours, _ = ends

    assert reader_of_parts(Transport(socket=ours, sslcontext=object())) is None
    assert reader_of_parts(Transport()) is None


def test_processor_time_that_cannot_be_read_for_once_counts_once(monkeypatch):
    times = {7: event_loop.Activity(2.0, False)}
    monkeypatch.setattr(event_loop, "read_activity", times.get)
    monkeypatch.setattr(event_loop.time, "process_time_ns", lambda: 0)
    clock = event_loop.ProcessorClock(lambda: [7])
    readings = [clock.read()]
    for activity in (None, event_loop.Activity(3.0, False)):
        times[7] = activity
        readings.append(clock.read())

    assert readings == [2_000_000_000, 2_000_000_000, 3_000_000_000]
