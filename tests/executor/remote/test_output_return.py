# SPDX-License-Identifier: Apache-2.0
"""Lines that go back to the process that has printed them: never waiting, and nothing unsaid."""

from __future__ import annotations

import os

import pytest

from pytriton.runtime.cluster import child
from pytriton.runtime.cluster.child import MAX_BURST_LINES, OutputReturn
from pytriton.testing import FakeClock


class Rig:
    """The pipe of a process that reads when the test wants it."""

    def __init__(self) -> None:
        self.reading, writing = os.pipe()
        self.clock = FakeClock()
        self.stdin = os.fdopen(writing, "wb")
        self.returned = OutputReturn(self.stdin, self.clock)
        os.set_blocking(self.reading, False)

    def read(self) -> list[bytes]:
        try:
            return os.read(self.reading, 1 << 20).splitlines()
        except BlockingIOError:
            return []


@pytest.fixture
def rig(monkeypatch):
    monkeypatch.setattr(child, "_SAY_AFTER_S", 3600.0)  # the test tells the time
    rig = Rig()
    yield rig
    rig.returned.close()
    os.close(rig.reading)


def test_lines_come_back_as_they_are(rig):
    for line in (b"one\n", b"two\r\n", b"a part", b"\n", b"\xff\n"):
        rig.returned.add(line)

    assert rig.read() == [b"one", b"two", b"a part", b"", b"\xff"]


def test_long_line_is_cut_so_that_it_is_written_as_a_whole(rig):
    rig.returned.add(b"x" * 100_000)

    assert rig.read() == [b"x" * 4095]


def test_endless_output_is_limited_and_what_is_left_out_is_counted(rig):
    burst = int(MAX_BURST_LINES)
    for number in range(burst + 250):
        rig.returned.add(b"%d\n" % number)
    first = rig.read()
    rig.clock.advance(0.1)
    for number in range(100):
        rig.returned.add(b"later %d\n" % number)
    later = rig.read()

    assert first == [b"%d" % number for number in range(burst)]
    assert later[0] == b"250 lines of output were left out here"
    assert later[1:] == [b"later %d" % number for number in range(50)]


def test_process_that_does_not_read_is_not_waited_for(rig):
    for number in range(200):
        rig.returned.add(b"%03d" % number + b"x" * 2000)
    kept = len(rig.read())
    rig.returned.add(b"next\n")

    assert kept < 200
    assert rig.read() == [b"%d lines of output were left out here" % (200 - kept), b"next"]


def test_what_is_left_out_is_said_also_if_nothing_follows(rig):
    for _ in range(int(MAX_BURST_LINES) + 7):
        rig.returned.add(b"x\n")
    rig.read()
    rig.returned._on_time()

    assert rig.read() == [b"7 lines of output were left out here"]


def test_process_that_has_ended_is_no_error():
    rig = Rig()
    os.close(rig.reading)
    rig.returned.add(b"one\n")
    rig.returned.close()
    rig.returned.close()
    rig.returned.add(b"two\n")
    rig.returned._on_time()

    assert rig.stdin.closed
