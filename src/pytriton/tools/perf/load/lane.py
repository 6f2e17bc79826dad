# SPDX-License-Identifier: Apache-2.0
"""Places on which one request at a time is under way, and which request is next on each. No I/O."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pytriton.tools.perf.load.plan import Sequences

clock = time.monotonic_ns


class Choice(NamedTuple):
    """The next request of a place.

    Attributes:
        input_index: Its input set, counted through all streams.
        sequence_id: Its sequence; 0: none.
        is_start: Whether it begins the sequence.
        is_end: Whether it ends the sequence.
    """

    input_index: int
    sequence_id: int = 0
    is_start: bool = False
    is_end: bool = False


class _RunningSequence:
    """A sequence under way."""

    __slots__ = ("first", "length", "number", "position", "size")

    def __init__(self, number: int, first: int, size: int, length: int) -> None:
        self.number = number
        self.first = first  # index of the first set of its stream
        self.size = size  # sets in its stream
        self.length = length
        self.position = 0


class Choices:
    """Chooses requests for places; each place has one sequence at a time.

    Args:
        sizes: How many input sets each stream has.
        sequences: How requests form sequences; None: they do not.
    """

    def __init__(self, sizes: Sequence[int], sequences: Sequences | None) -> None:
        self._all = [Choice(index) for index in range(sum(sizes))]
        self._next = 0
        self._step = 1
        self._sequences = sequences
        self._sizes = sizes
        self._firsts = [sum(sizes[:stream]) for stream in range(len(sizes))]
        self._running: dict[int, _RunningSequence] = {}
        self._lengths = random.Random(sequences.seed if sequences else 0)  # noqa: S311
        self.single = self._all[0] if len(self._all) == 1 and sequences is None else None

    def next(self, place: int) -> Choice:
        """The next request of a place."""
        if self._sequences is not None:
            return self._next_of_sequence(place, self._sequences)
        choice = self._all[self._next % len(self._all)]
        self._next += self._step
        return choice

    def share(self, worker: int, workers: int, *, is_new: bool) -> None:
        """Take each `workers`-th set and sequence from now on; `is_new` begins with the first."""
        rounds = 0 if is_new else -(-self._next // workers)
        self._next = rounds * workers + worker
        self._step = workers

    def is_between(self, place: int) -> bool:
        """Whether no sequence is under way at a place."""
        return place not in self._running

    def end_sequence(self, place: int) -> None:
        """Let the next request of a place begin a sequence, after one that failed."""
        self._running.pop(place, None)

    def _next_of_sequence(self, place: int, sequences: Sequences) -> Choice:
        running = self._running.get(place)
        if running is None:
            running = self._running[place] = self._begin(sequences)
        position = running.position
        running.position += 1
        is_end = running.position >= running.length
        if is_end:
            del self._running[place]
        index = running.first + position % running.size
        return Choice(index, running.number, position == 0, is_end)

    def _begin(self, sequences: Sequences) -> _RunningSequence:
        count = self._next
        self._next += self._step
        number = sequences.first_id + count
        if sequences.last_id is not None:
            number = sequences.first_id + count % (sequences.last_id - sequences.first_id + 1)
        stream = count % len(self._sizes)
        return _RunningSequence(
            number, self._firsts[stream], self._sizes[stream], self._length(stream)
        )

    def _length(self, stream: int) -> int:
        assert self._sequences is not None
        if self._sequences.length is None:
            return self._sizes[stream]
        spread = self._sequences.length_variation / 100
        factor = self._lengths.uniform(1 - spread, 1 + spread)
        return max(1, round(self._sequences.length * factor))


class RequestLane:
    """One place, and the request on it."""

    __slots__ = (
        "answers",
        "begin_ns",
        "carrier",
        "choice",
        "first_ns",
        "is_busy",
        "is_delayed",
        "json_bytes",
        "number",
        "responses",
        "sent_ns",
        "times",
    )

    def __init__(self, number: int, carrier: Carrier) -> None:
        self.number = number
        self.carrier = carrier
        self.choice = Choice(0)
        self.begin_ns = 0
        self.sent_ns = 0
        self.first_ns = 0
        self.responses = 0
        self.is_busy = False
        self.is_delayed = False
        self.times: list[int] = []
        self.answers: list[bytes] = []
        self.json_bytes: list[int] = []


class Carrier(Protocol):
    """Carries the requests of lanes to the server: a connection, or calls on one."""

    def begin(self, lane: RequestLane) -> None:
        """Send the request of a lane; what comes of it is told to the `LaneListener`."""

    def open(self) -> object:
        """Connect now, if that has not happened; OSError if it cannot be done."""

    def close(self) -> None:
        """Close the connection; requests under way are forgotten."""


class LaneListener(Protocol):
    """Receives the events of requests from their carriers."""

    @property
    def looks_at_answers(self) -> bool:
        """Whether `keep` is wanted."""

    def respond(self, lane: RequestLane, now_ns: int) -> None:
        """A response of a stream came."""

    def keep(self, lane: RequestLane, answer: bytes, json_bytes: int) -> None:
        """The content of a response, told only if `looks_at_answers`."""

    def finish(self, lane: RequestLane, now_ns: int, error: str = "") -> None:
        """The request ended."""

    def lose(self, lane: RequestLane, now_ns: int, error: str) -> None:
        """The request ended because its connection failed; the lane rests before the next."""
