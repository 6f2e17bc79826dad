# SPDX-License-Identifier: Apache-2.0
"""Which requests run together, and when: decisions only, asked with the time and answered at once.

A scheduler adds requests, asks `next` whenever an instance is free, and calls `expire` when
`next_deadline_ns` comes, whether an instance is free or not.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from pytriton.engine.model_spec import BatcherSpec, ModelSpec
from pytriton.engine.request_queue import RequestQueue
from pytriton.executor.inference import Inference

# The requests to run now, or the time in nanoseconds to ask again at, or None: ask after an `add`.
Decision = list[Inference] | int | None


class Batcher(Protocol):
    """The queue of a model and the rule that cuts it into executions."""

    def add(self, inference: Inference, now_ns: int) -> None:
        """Queue a request and stamp its `queued_ns` and `deadline_ns`.

        Raises:
            UnavailableError: The request's priority level is full.
        """

    def remove(self, inference: Inference) -> bool:
        """Take out a cancelled request; False where it does not wait here."""

    def expire(self, now_ns: int) -> list[Inference]:
        """Take out the requests whose time in the queue is over; the caller rejects them."""

    def next(self, now_ns: int) -> Decision:
        """Decide what a free instance does now; a list is taken out of the queue.

        An expired request is never in it.
        """

    def next_deadline_ns(self) -> int:
        """When to call `expire`; 0: never."""

    def take_all(self) -> list[Inference]:
        """Empty the queue, for a model that will not run again; the caller answers them."""

    def __len__(self) -> int:
        """The number of waiting requests."""


def make_batcher(spec: ModelSpec) -> Batcher:
    """The batcher that a model's configuration asks for."""
    if spec.batcher is None:
        return FifoBatcher()
    max_rows = max(spec.max_batch_size, 1)  # a model that does not batch has requests of one row
    waits = spec.batcher.max_queue_delay_us > 0
    if waits or set(spec.batcher.preferred_batch_sizes) - {max_rows}:
        return DynamicBatcher(spec.batcher, max_rows)
    return GreedyBatcher(spec.batcher, max_rows)


class FifoBatcher:
    """Every request is an execution of its own, in the order of arrival; it may wait for ever."""

    __slots__ = ("_inferences",)

    def __init__(self) -> None:
        self._inferences: OrderedDict[Inference, None] = OrderedDict()

    def add(self, inference: Inference, now_ns: int) -> None:
        inference.queued_ns = now_ns
        self._inferences[inference] = None

    def remove(self, inference: Inference) -> bool:
        if inference not in self._inferences:
            return False
        del self._inferences[inference]
        return True

    def expire(self, now_ns: int) -> list[Inference]:
        return []

    def next(self, now_ns: int) -> Decision:
        inference = next(iter(self._inferences), None)
        if inference is None:
            return None
        del self._inferences[inference]
        return [inference]

    def next_deadline_ns(self) -> int:
        return 0

    def take_all(self) -> list[Inference]:
        inferences = list(self._inferences)
        self._inferences.clear()
        return inferences

    def __len__(self) -> int:
        return len(self._inferences)

    def __repr__(self) -> str:
        return f"<FifoBatcher {len(self)} waiting>"


class GreedyBatcher(RequestQueue):
    """Dynamic batching without a delay: a batch is what waits when it is asked for, while it fits.

    The common case, so it does not look at ages and sizes that cannot change its answer.
    """

    __slots__ = ("_max_rows",)

    def __init__(self, spec: BatcherSpec, max_rows: int) -> None:
        super().__init__(spec)
        self._max_rows = max_rows

    def next(self, now_ns: int) -> Decision:
        if self._has_timeouts:
            self._apply_timeouts(now_ns)
        waiting = self._in_order()
        first = next(waiting, None)
        if first is None:
            return None
        batch = [first]
        key = first.request.batch_key
        room = self._max_rows - (first.request.rows or 1)
        for inference in waiting:
            request = inference.request
            room -= request.rows or 1
            if room < 0 or request.batch_key != key:
                break
            batch.append(inference)
        self._drop_first(batch)
        return batch


class DynamicBatcher(RequestQueue):
    """Dynamic batching with preferred sizes or a delay.

    A batch leaves as soon as it has a preferred size or cannot grow. One that could grow is held
    back until its oldest request has waited for the delay; then it leaves as large as it can be.
    """

    __slots__ = (
        "_delay_ns",
        "_hold_key",
        "_hold_room",
        "_hold_until_ns",
        "_largest_preferred",
        "_max_rows",
        "_preferred",
    )

    def __init__(self, spec: BatcherSpec, max_rows: int) -> None:
        super().__init__(spec)
        self._max_rows = max_rows
        self._delay_ns = 1000 * spec.max_queue_delay_us
        self._preferred = frozenset(spec.preferred_batch_sizes or (max_rows,))
        self._largest_preferred = max(self._preferred)

        # A batch that is held back, and which requests join it without changing that: so that the
        # queue is not searched from its head for each of them.
        self._hold_until_ns = 0  # 0: none is held back
        self._hold_room = 0
        self._hold_key: object = None

    def add(self, inference: Inference, now_ns: int) -> None:
        super().add(inference, now_ns)
        if self._hold_until_ns:
            self._hold_room -= inference.request.rows or 1
            if self._hold_room <= 0 or inference.request.batch_key != self._hold_key:
                self._hold_until_ns = 0
            elif inference.deadline_ns:
                self._hold_until_ns = min(self._hold_until_ns, inference.deadline_ns)

    def remove(self, inference: Inference) -> bool:
        self._hold_until_ns = 0
        return super().remove(inference)

    def next(self, now_ns: int) -> Decision:
        if self._has_timeouts:
            self._apply_timeouts(now_ns)
        if now_ns < self._hold_until_ns:
            return self._hold_until_ns
        self._hold_until_ns = 0
        decision = self._choose(now_ns)
        if isinstance(decision, list):
            self._drop_first(decision)
        return decision

    def _choose(self, now_ns: int) -> Decision:
        batch: list[Inference] = []
        rows = 0
        marked = 0  # length of the part that has a preferred size, or does not pass the largest
        can_grow = True
        oldest_ns = now_ns
        key = None
        for inference in self._in_order():
            request = inference.request
            grown = rows + (request.rows or 1)
            if not batch:
                key = request.batch_key
            else:
                if grown > self._max_rows or request.batch_key != key:
                    can_grow = False
                    break
                if grown > self._largest_preferred and not marked:
                    marked = len(batch)
            batch.append(inference)
            rows = grown
            if inference.queued_ns < oldest_ns:  # noqa: PLR1730  min() costs 0.1 us a request
                oldest_ns = inference.queued_ns
            if rows in self._preferred:
                marked = len(batch)
        if not batch:
            return None
        is_late = 0 < self._delay_ns <= now_ns - oldest_ns
        if marked and not is_late:
            return batch[:marked]
        if is_late or not self._delay_ns or not can_grow or rows >= self._largest_preferred:
            return batch
        return self._hold(key, rows, oldest_ns + self._delay_ns)

    def _hold(self, key: object, rows: int, until_ns: int) -> int:
        """Hold the whole queue back as one batch of `rows`, at most until a deadline changes it."""
        deadline_ns = self._deadlines.earliest_ns()
        self._hold_until_ns = min(until_ns, deadline_ns) if deadline_ns else until_ns
        self._hold_room = min(self._preferred) - rows
        self._hold_key = key
        return self._hold_until_ns
