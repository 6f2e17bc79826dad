# SPDX-License-Identifier: Apache-2.0
"""Counts the work that an input causes: lines of Python that run, and calls of C functions.

Counts are the same on every machine. What happens inside a C function is not counted.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable
from typing import NamedTuple

FIXED_WORK = 6000  # what even the smallest request may take
WORK_PER_READ = 100  # each read of a socket is a system call, which takes longer
# The most expensive bytes are those of requests, for each of which some layers do a little: one of
# five bytes takes 270.
WORK_PER_BYTE = 55
# Where work grows faster than its input by this factor, it is not linear, unless it is so little
# that a parser has only changed from C to Python.
GROWTH = 1.5
LITTLE_WORK_PER_BYTE = 5


class Attack(NamedTuple):
    """An input of a client, and the call that gives it to the server."""

    size_bytes: int
    run: Callable[[], object]
    reads: int = 1


class TooMuchWork(BaseException):
    """A call causes more work than a test allows; nothing on the way may catch this."""


def work_of(action: Callable[[], object], most: float = math.inf) -> int:
    """Returns the work that a call causes in this thread; TooMuchWork if it is more than `most`."""
    work = 0

    def on_call(frame, event, arg):
        nonlocal work
        work += event == "c_call"

    def on_line(frame, event, arg):
        nonlocal work
        work += event == "line"
        if work > most:
            raise TooMuchWork(f"expected at most {most} lines and calls, got more")
        return on_line

    tracer, profiler = sys.gettrace(), sys.getprofile()
    sys.setprofile(on_call)
    sys.settrace(on_line)
    try:
        action()
    finally:
        sys.settrace(tracer)
        sys.setprofile(profiler)
    return work


def assert_paid(make: Callable[[int], Attack], sizes: tuple[int, ...] = (30, 240, 1920)) -> None:
    """Assert that the work for an input grows no faster than its bytes.

    Args:
        make: Makes an input of a size, for example a number of frames.
        sizes: Sizes, each eight times the one before.
    """
    make(sizes[0]).run()  # the first one may import modules and fill caches
    seen = []
    for size in sizes:
        attack = make(size)
        seen.append((attack.size_bytes, work_of(attack.run)))
        most = WORK_PER_BYTE * attack.size_bytes + WORK_PER_READ * attack.reads
        assert seen[-1][1] <= FIXED_WORK + most, seen
    for (few_bytes, little), (many_bytes, much) in itertools.pairwise(seen):
        linear = GROWTH * little * many_bytes / few_bytes
        assert much <= FIXED_WORK + max(linear, LITTLE_WORK_PER_BYTE * many_bytes), seen
