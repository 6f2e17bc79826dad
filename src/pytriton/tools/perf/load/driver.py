# SPDX-License-Identifier: Apache-2.0
"""Puts lanes, choices, pacing and records together: what happens when a request ends."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from pytriton.tools.perf.load.answers import differs
from pytriton.tools.perf.load.lane import Carrier, Choices, RequestLane
from pytriton.tools.perf.load.pacing import ClosedLoop, Pacing, pacing_of
from pytriton.tools.perf.load.plan import FixedSchedule
from pytriton.tools.perf.load.recipe import Change, Recipe
from pytriton.tools.perf.load.records import Recorder

_FIRST_REST_NS, _LAST_REST_NS = 10_000_000, 200_000_000  # after lost connections


class Driver:
    """Begins requests as the level asks for, and records those that end.

    Args:
        recipe: What is sent.
        recorder: Keeps the rows.
        carrier_of: The carrier of the lane with a number.
    """

    def __init__(
        self, recipe: Recipe, recorder: Recorder, carrier_of: Callable[[int], Carrier]
    ) -> None:
        self._recipe = recipe
        self._recorder = recorder
        self._add = recorder.add
        self._carrier_of = carrier_of
        self._lanes: list[RequestLane] = []
        sizes = [len(stream) for stream in recipe.streams]
        self._choices = Choices(sizes, recipe.sequences)
        self._single = self._choices.single
        self._pacing: Pacing = ClosedLoop(self, 0, 0)
        self._rests: list[tuple[int, int]] = []  # when a lane may begin again, its number
        self._losses: dict[int, int] = {}  # lost connections of a lane, one after the other
        self._has_expected = any(each is not None for each in recipe.expected)
        self._is_plain = not (recipe.is_streaming or recipe.sequences or self.looks_at_answers)
        self._is_stopping = False
        self.under_way = 0

    @property
    def looks_at_answers(self) -> bool:
        return self._recipe.keeps_outputs or any(each for each in self._recipe.expected)

    @property
    def is_done(self) -> bool:
        """Whether nothing is under way and nothing will begin."""
        return not self.under_way and self._pacing.is_exhausted

    def change(self, change: Change, now_ns: int) -> None:
        """Take up a level."""
        is_new = isinstance(change.level, FixedSchedule)
        self._choices.share(change.worker, change.workers, is_new=is_new)
        sequences = self._recipe.sequences
        lanes = 0
        if sequences is not None:
            lanes = max(1, sequences.at_once // change.workers)
        self._rests.clear()
        self._pacing = pacing_of(
            change.level, change.requests, change.worker, change.workers, self, lanes
        )
        self._pacing.begin(now_ns)

    def stop(self, now_ns: int) -> None:
        """Begin no more requests, but for those that end sequences."""
        self._rests.clear()
        self._is_stopping = True
        self._pacing = ClosedLoop(self, 0, None if self._recipe.sequences else 0)

    @property
    def is_stopped(self) -> bool:
        return self._is_stopping and not self.under_way and not self._rests

    # What a pacing uses.

    def lane(self, number: int) -> RequestLane:
        while len(self._lanes) <= number:
            made = len(self._lanes)
            self._lanes.append(RequestLane(made, self._carrier_of(made)))
        return self._lanes[number]

    def start(self, lane: RequestLane, now_ns: int, *, delayed: bool = False) -> None:
        lane.choice = self._single or self._choices.next(lane.number)
        lane.begin_ns = now_ns
        lane.first_ns = 0
        lane.responses = 0
        lane.is_delayed = delayed
        lane.is_busy = True
        self.under_way += 1
        lane.carrier.begin(lane)

    def is_in_sequence(self, lane: RequestLane) -> bool:
        return self._recipe.sequences is not None and not self._choices.is_between(lane.number)

    # What connections tell.

    def respond(self, lane: RequestLane, now_ns: int) -> None:
        if not lane.first_ns:
            lane.first_ns = now_ns
        lane.times.append(now_ns)
        self._pacing.respond(lane)

    def keep(self, lane: RequestLane, answer: bytes, json_bytes: int) -> None:
        lane.answers.append(answer)
        lane.json_bytes.append(json_bytes)

    def finish(self, lane: RequestLane, now_ns: int, error: str = "") -> None:
        self._record(lane, now_ns, error)
        self._pacing.free(lane, now_ns)

    def lose(self, lane: RequestLane, now_ns: int, error: str) -> None:
        """The lane rests a little, longer each time, so that a dead server costs no time."""
        losses = self._losses.get(lane.number, 0)
        self._losses[lane.number] = losses + 1
        rest = min(_FIRST_REST_NS << min(losses, 10), _LAST_REST_NS)
        self._choices.end_sequence(lane.number)
        self._record(lane, now_ns, error)
        heapq.heappush(self._rests, (now_ns + rest, lane.number))

    def _record(self, lane: RequestLane, now_ns: int, error: str) -> None:
        choice = lane.choice
        if not self._is_plain:
            error = self._finish_specially(lane, error)
        if error:
            self._recorder.add_error(error)
        elif self._losses:
            self._losses.pop(lane.number, None)
        self._add(
            lane.begin_ns,
            lane.sent_ns,
            lane.first_ns or now_ns,
            now_ns,
            choice.sequence_id,
            lane.responses,
            choice.input_index,
            not error,
            lane.is_delayed,
        )
        lane.is_busy = False
        self.under_way -= 1

    def _finish_specially(self, lane: RequestLane, error: str) -> str:
        """Record times of responses and answers, and compare these; returns the error, if any."""
        recorder = self._recorder
        if self._recipe.is_streaming:
            recorder.response_ns.extend(lane.times)
            lane.times.clear()
        expected = self._recipe.expected[lane.choice.input_index] if self._has_expected else None
        if expected is not None and not error:
            error = differs(self._recipe, expected, lane.answers, lane.json_bytes)
        if self._recipe.keeps_outputs:
            recorder.answers.append(lane.answers)
            recorder.json_bytes.append(lane.json_bytes)
        if lane.answers:
            lane.answers, lane.json_bytes = [], []
        return error

    # Time.

    @property
    def due_ns(self) -> int:
        """When `tick` is needed."""
        due = self._pacing.due_ns
        return min(due, self._rests[0][0]) if self._rests else due

    def tick(self, now_ns: int) -> None:
        """Do what is due."""
        while self._rests and self._rests[0][0] <= now_ns:
            _, number = heapq.heappop(self._rests)
            lane = self._lanes[number]
            if not lane.is_busy:
                self._pacing.free(lane, now_ns)
        if self._pacing.due_ns <= now_ns:
            self._pacing.tick(now_ns)
