# SPDX-License-Identifier: Apache-2.0
"""What a model does next: which requests run together, when, and on which instance.

A scheduler decides and does nothing else: it has no clock, no timers and no I/O. `Model` tells it
what happened and asks it what to do. To add a kind of scheduling, write a class with these methods
and choose it in `make_scheduler`.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import Protocol

import msgspec

from pytriton.engine.batcher import Batcher, make_batcher
from pytriton.engine.model_spec import ModelSpec
from pytriton.errors import CancelledError, InternalError, ServerError
from pytriton.executor.base import Instance, Outcome, RunningBatch
from pytriton.executor.inference import Inference

_SEQUENCE_START = 1
_NOT_ITERATIVE = (
    "Failed to release request: Request is released with "
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle such a "
    "flag."
)


class Dispatch(msgspec.Struct, gc=False):
    """Requests that left the queue, and the instance that is to execute them."""

    instance: Instance
    inferences: list[Inference]


# What to run now, or the time in nanoseconds to ask again at, or None: ask when something changed.
Decision = Dispatch | int | None


class Scheduler(Protocol):
    """The queue of a model, and the rule by which its instances empty it."""

    def add(self, inference: Inference, now_ns: int) -> None:
        """Queue a request and stamp its `queued_ns` and `deadline_ns`.

        Raises:
            UnavailableError: There is no room for it.
        """

    def remove(self, inference: Inference) -> bool:
        """Take out a cancelled request; False where it does not wait here."""

    def expire(self, now_ns: int) -> list[Inference]:
        """Take out the requests whose time in the queue is over; the caller rejects them."""

    def next(self, now_ns: int, free: Collection[Instance]) -> Decision:
        """Decide what happens now; asked again and again until it dispatches nothing.

        Args:
            now_ns: The time.
            free: The instances that take a batch, at least one; the longest idle one comes first.
        """

    def finished(self, batch: RunningBatch, outcomes: list[Outcome], now_ns: int) -> list[Outcome]:
        """An instance answered requests of a batch; the outcomes to pass on.

        What is left out was queued here once more, because the model asked for it.
        """

    def next_deadline_ns(self) -> int:
        """When to call `expire`; 0: never."""

    def take_all(self) -> list[Inference]:
        """Empty the queue, for a model that will not run again; the caller answers them."""

    def __len__(self) -> int:
        """The number of waiting requests."""


def make_scheduler(spec: ModelSpec) -> Scheduler:
    """The scheduler that a model's configuration asks for."""
    batcher = make_batcher(spec)
    return IterativeScheduler(batcher) if spec.iterative else SharedQueue(batcher)


class SharedQueue:
    """One queue for all instances: the one that was idle for longest takes the next batch.

    What makes a batch is for the batcher to decide.
    """

    def __init__(self, batcher: Batcher) -> None:
        self._batcher = batcher
        self.add = batcher.add  # bound here, as one more call would cost every request 0.1 us
        self.remove = batcher.remove
        self.expire = batcher.expire
        self.next_deadline_ns = batcher.next_deadline_ns
        self.take_all = batcher.take_all

    def next(self, now_ns: int, free: Collection[Instance]) -> Decision:
        """Give the next batch to the first free instance."""
        decision = self._batcher.next(now_ns)
        if isinstance(decision, list):
            return Dispatch(next(iter(free)), decision)
        return decision

    def finished(self, batch: RunningBatch, outcomes: list[Outcome], now_ns: int) -> list[Outcome]:
        """Refuse to execute anything once more."""
        if not batch.is_rescheduled:
            return outcomes
        return [
            Outcome(outcome.position, None, InternalError(_NOT_ITERATIVE))
            if outcome.is_rescheduled
            else outcome
            for outcome in outcomes
        ]

    def __len__(self) -> int:
        return len(self._batcher)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._batcher!r}>"


class IterativeScheduler:
    """A shared queue to which requests return until their model has answered them.

    Each request is a sequence of its own. Its first execution carries the flag of a sequence's
    start, later ones none.
    """

    def __init__(self, batcher: Batcher) -> None:
        self._batcher = batcher
        self._queue = SharedQueue(batcher)
        self._sequence_ids = itertools.count(1)  # for requests whose client gave none
        self.remove = batcher.remove
        self.expire = batcher.expire
        self.next = self._queue.next
        self.next_deadline_ns = batcher.next_deadline_ns
        self.take_all = batcher.take_all

    def add(self, inference: Inference, now_ns: int) -> None:
        """Queue a request as the first one of its sequence."""
        request = inference.request
        request.correlation_id = request.correlation_id or next(self._sequence_ids)
        request.flags = _SEQUENCE_START
        self._batcher.add(inference, now_ns)

    def finished(self, batch: RunningBatch, outcomes: list[Outcome], now_ns: int) -> list[Outcome]:
        """Queue requests again that their model wants to execute once more."""
        if not batch.is_rescheduled:
            return outcomes
        passed_on = []
        for outcome in outcomes:
            if not outcome.is_rescheduled:
                passed_on.append(outcome)
                continue
            refusal = self._add_again(batch.inferences[outcome.position], now_ns)
            if refusal is not None:
                passed_on.append(Outcome(outcome.position, None, refusal))
        return passed_on

    def _add_again(self, inference: Inference, now_ns: int) -> ServerError | None:
        """Queue a request once more; the error that it ends with where that is not possible."""
        if inference.is_cancelled:
            return CancelledError("")
        inference.instance = None
        inference.taken_count = 0
        inference.request.flags = 0
        try:
            self._batcher.add(inference, now_ns)
        except ServerError as error:
            return error
        return None

    def __len__(self) -> int:
        return len(self._batcher)

    def __repr__(self) -> str:
        return f"<IterativeScheduler of {self._batcher!r}>"
