# SPDX-License-Identifier: Apache-2.0
"""Decides which requests of a model run together, when, and on which instance.

To add a kind of scheduling, write a class with the methods of `Scheduler` and choose it in
`make_scheduler`. The schedulers of sequences are in `pytriton.serving.engine.sequence`.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pytriton.base.errors import CancelledError, InternalError, ServerError, UnavailableError
from pytriton.base.lazy_module import LazyModule
from pytriton.base.model_spec import ModelSpec
from pytriton.runtime.executor.inference import Inference, Instance, Outcome, RunningBatch
from pytriton.serving.engine.batcher import Batcher, make_batcher
from pytriton.serving.engine.request_queue import add_each
from pytriton.serving.engine.scheduling import (
    NOT_ITERATIVE,
    Decision,
    Dispatch,
    QueueRefusal,
    Scheduler,
)
from pytriton.serving.engine.stats import FailureReason

if TYPE_CHECKING:
    from pytriton.serving.engine.sequence import sequence_inputs, strategies
    from pytriton.serving.engine.sequence.sequence_inputs import IterativeInputs
else:
    sequence_inputs = LazyModule("pytriton.serving.engine.sequence.sequence_inputs")
    strategies = LazyModule("pytriton.serving.engine.sequence.strategies")

_SEQUENCE_START = 1
_EXPIRED = "Request timeout expired"


def make_scheduler(spec: ModelSpec) -> Scheduler:
    """Returns the scheduler that a model's configuration asks for."""
    if spec.sequence is not None and not spec.iterative:
        return strategies.make_sequence_scheduler(spec)
    batcher = make_batcher(spec)
    if spec.iterative:
        return IterativeScheduler(batcher, sequence_inputs.make_iterative_inputs(spec))
    return SharedQueue(batcher, is_idempotent=spec.is_idempotent)


class SharedQueue:
    """One queue for all instances: the first of the free instances takes the next batch.

    The batcher decides on the batches. Requests of an idempotent model whose instance is lost are
    put back, once.
    """

    def __init__(self, batcher: Batcher, *, is_idempotent: bool = False) -> None:
        self._batcher = batcher
        self._is_idempotent = is_idempotent
        self.add = batcher.add  # a method that calls it would cost 0.1 us more per request
        self.add_all = batcher.add_all
        self.share = batcher.share
        self.next_deadline_ns = batcher.next_deadline_ns
        self.take_all = batcher.take_all
        self.check_integrity = batcher.check_integrity

    def add_instance(self, instance: Instance) -> None:
        """Nothing to do: every instance executes any request."""

    def retire_instance(self, instance: Instance) -> None:
        """Nothing to do: it is not free any more."""

    def holds(self, instance: Instance) -> bool:
        """Returns False: every instance executes any request."""
        return False

    def remove_instance(self, instance: Instance) -> list[QueueRefusal]:
        """Nothing to do: other instances execute the waiting requests."""
        return []

    def remove(self, inference: Inference) -> Sequence[Inference]:
        """Remove a cancelled request; no other depends on it."""
        return (inference,) if self._batcher.remove(inference) else ()

    def expire(self, now_ns: int) -> list[QueueRefusal]:
        """Remove the requests whose queue timeout is over."""
        return [
            QueueRefusal(inference, UnavailableError(_EXPIRED), FailureReason.REJECTED)
            for inference in self._batcher.expire(now_ns)
        ]

    def next(self, now_ns: int, free: Collection[Instance]) -> Decision:
        """Give the next batch to the first free instance."""
        decision = self._batcher.next(now_ns)
        if isinstance(decision, list):
            return Dispatch(next(iter(free)), decision)
        return decision

    def finished(self, batch: RunningBatch, outcomes: list[Outcome], now_ns: int) -> list[Outcome]:
        """Replace demands for another execution by errors: this model is not iterative."""
        if batch.is_lost and self._is_idempotent:
            return self._put_back(batch, outcomes, now_ns)
        if not batch.is_rescheduled:
            return outcomes
        return [
            Outcome(outcome.position, None, InternalError(NOT_ITERATIVE))
            if outcome.is_rescheduled
            else outcome
            for outcome in outcomes
        ]

    def _put_back(self, batch: RunningBatch, outcomes: list[Outcome], now_ns: int) -> list[Outcome]:
        """Queue the unanswered requests of a lost instance again; returns what ends the others."""
        again: list[Inference] = []
        passed_on = []
        for outcome in outcomes:
            inference = batch.inferences[outcome.position]
            if inference.is_cancelled:
                passed_on.append(Outcome(outcome.position, None, CancelledError("")))
            elif inference.is_put_back or inference.response_count:
                passed_on.append(outcome)
            else:
                inference.is_put_back = True
                inference.instance = None
                again.append(inference)
        batch.is_rescheduled = bool(again)
        self._batcher.put_back(again, now_ns)
        return passed_on

    def __len__(self) -> int:
        return len(self._batcher)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._batcher!r}>"


class IterativeScheduler(SharedQueue):
    """A shared queue to which a request returns until its model has answered it.

    Each request is a sequence of its own. Its first execution has the flag for the start of a
    sequence, later ones have no flag.
    """

    def __init__(self, batcher: Batcher, inputs: IterativeInputs | None = None) -> None:
        super().__init__(batcher)
        self._inputs = inputs  # None if the model gets no control inputs and states
        self._sequence_ids = itertools.count(1)  # for requests without a correlation id
        self.add = self._add_first
        self.add_all = partial(add_each, self._add_first)

    def _add_first(self, inference: Inference, now_ns: int) -> None:
        """Queue a request as the first one of its sequence."""
        request = inference.request
        number = request.fields.correlation_id or next(self._sequence_ids)
        request.fields = request.fields.changed(correlation_id=number, flags=_SEQUENCE_START)
        if self._inputs is not None:
            self._inputs.add(request)
        self._batcher.add(inference, now_ns)

    def finished(self, batch: RunningBatch, outcomes: list[Outcome], now_ns: int) -> list[Outcome]:
        """Queue those requests again that their model wants to execute once more."""
        if self._inputs is not None:
            outcomes = [self._with_kept_states(batch, outcome) for outcome in outcomes]
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

    def _with_kept_states(self, batch: RunningBatch, outcome: Outcome) -> Outcome:
        """Move states from a response to its request; returns an error if they are wrong."""
        assert self._inputs is not None
        if outcome.response is not None:
            try:
                self._inputs.keep(batch.inferences[outcome.position].request, outcome.response)
            except ServerError as error:
                return Outcome(outcome.position, None, error, outcome.is_final)
        return outcome

    def _add_again(self, inference: Inference, now_ns: int) -> ServerError | None:
        """Queue a request once more; returns the error that ends it if this is not possible."""
        if inference.is_cancelled:
            return CancelledError("")
        inference.instance = None
        inference.taken_count = 0
        inference.request.fields = inference.request.fields.changed(flags=0)
        if self._inputs is not None:
            self._inputs.add_again(inference.request)
        try:
            self._batcher.add(inference, now_ns)
        except ServerError as error:
            return error
        return None
