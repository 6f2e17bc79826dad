# SPDX-License-Identifier: Apache-2.0
"""Decides which requests of a model run together, when, and on which instance.

A scheduler only decides: it has no clock, no timers and no I/O. `Model` reports events to it and
asks for decisions. To add a kind of scheduling, write a class with the methods of `Scheduler` and
choose it in `make_scheduler`.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec

from pytriton.engine.batcher import Batcher, make_batcher
from pytriton.engine.model_spec import ModelSpec
from pytriton.engine.request_queue import add_each
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
    """Requests that left the queue, and the instance that executes them."""

    instance: Instance
    inferences: list[Inference]


# The requests to run now, or the time in ns at which to call `next` again, or None: call it after
# the next change.
Decision = Dispatch | int | None


class Scheduler(Protocol):
    """The queue of a model, and the rule by which its requests go to instances."""

    def add(self, inference: Inference, now_ns: int) -> None:
        """Queue a request and set its `queued_ns` and `deadline_ns`.

        Raises:
            UnavailableError: The queue is full.
        """

    def add_all(self, inferences: Sequence[Inference], now_ns: int) -> dict[Inference, ServerError]:
        """Queue requests like `add`; returns those that were refused, each with its error."""

    def remove(self, inference: Inference) -> bool:
        """Remove a cancelled request; returns False if it is not in the queue."""

    def expire(self, now_ns: int) -> list[Inference]:
        """Remove the requests whose queue timeout is over; the caller rejects them."""

    def next(self, now_ns: int, free: Collection[Instance]) -> Decision:
        """Decide what happens now. The caller repeats the call until nothing is dispatched.

        Args:
            now_ns: The time.
            free: The instances that can take a batch, at least one; the one to prefer is first:
                that which was idle for longest, or for a quick model that which was so last.
        """

    def finished(self, batch: RunningBatch, outcomes: list[Outcome], now_ns: int) -> list[Outcome]:
        """Handle outcomes of a batch; returns those to pass on to the clients.

        The requests of the others were queued again, because the model asked for that.
        """

    def next_deadline_ns(self) -> int:
        """Returns the time at which to call `expire`; 0: never."""

    def take_all(self) -> list[Inference]:
        """Empty the queue of a model that will not run again; the caller answers the requests."""

    def __len__(self) -> int:
        """Returns the number of waiting requests."""


def make_scheduler(spec: ModelSpec) -> Scheduler:
    """Returns the scheduler that a model's configuration asks for."""
    batcher = make_batcher(spec)
    return IterativeScheduler(batcher) if spec.iterative else SharedQueue(batcher)


class SharedQueue:
    """One queue for all instances: the first of the free instances takes the next batch.

    The batcher decides on the batches.
    """

    def __init__(self, batcher: Batcher) -> None:
        self._batcher = batcher
        self.add = batcher.add  # a method that calls it would cost 0.1 us more per request
        self.add_all = batcher.add_all
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
        """Replace demands for another execution by errors: this model is not iterative."""
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
    """A shared queue to which a request returns until its model has answered it.

    Each request is a sequence of its own. Its first execution has the flag for the start of a
    sequence, later ones have no flag.
    """

    def __init__(self, batcher: Batcher) -> None:
        self._batcher = batcher
        self._queue = SharedQueue(batcher)
        self._sequence_ids = itertools.count(1)  # for requests without a correlation id
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

    def add_all(self, inferences: Sequence[Inference], now_ns: int) -> dict[Inference, ServerError]:
        """Queue requests, each as the first one of its sequence."""
        return add_each(self.add, inferences, now_ns)

    def finished(self, batch: RunningBatch, outcomes: list[Outcome], now_ns: int) -> list[Outcome]:
        """Queue those requests again that their model wants to execute once more."""
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
        """Queue a request once more; returns the error that ends it if this is not possible."""
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
