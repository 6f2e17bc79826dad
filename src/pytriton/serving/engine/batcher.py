# SPDX-License-Identifier: Apache-2.0
"""Decides which requests run together and when. There is no I/O; the caller passes the time.

A scheduler adds requests, calls `next` whenever an instance is free, and calls `expire` at
`next_deadline_ns`, whether an instance is free or not.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from pytriton.base.errors import ServerError
from pytriton.base.model_spec import BatcherSpec, ModelSpec
from pytriton.runtime.executor.inference import Inference
from pytriton.serving.engine.request_queue import RequestQueue, add_each, first_again

# The requests to run now, or the time in ns at which to call `next` again, or None: call it after
# the next `add`.
Decision = list[Inference] | int | None


class Batcher(Protocol):
    """The queue of a model and the rule that divides it into batches."""

    def add(self, inference: Inference, now_ns: int) -> None:
        """Queue a request and set its `queued_ns` and `deadline_ns`.

        Raises:
            UnavailableError: The request's priority level is full.
        """

    def add_all(self, inferences: Sequence[Inference], now_ns: int) -> dict[Inference, ServerError]:
        """Queue requests like `add`; returns those that were refused, each with its error."""

    def put_back(self, inferences: Sequence[Inference], now_ns: int) -> None:
        """Queue requests again that an instance has lost: first of all with their priority."""

    def remove(self, inference: Inference) -> bool:
        """Remove a cancelled request; returns False if it is not in this queue."""

    def expire(self, now_ns: int) -> list[Inference]:
        """Remove the requests whose queue timeout is over; the caller rejects them."""

    def next(self, now_ns: int) -> Decision:
        """Decide what a free instance does now.

        Requests in a returned list have left the queue, and none of them has expired.
        """

    def next_deadline_ns(self) -> int:
        """Returns the time at which to call `expire`; 0: never."""

    def take_all(self) -> list[Inference]:
        """Empty the queue of a model that will not run again; the caller answers the requests."""

    def __len__(self) -> int:
        """Returns the number of waiting requests."""


def make_batcher(spec: ModelSpec) -> Batcher:
    """Returns the batcher that a model's configuration asks for."""
    if spec.batcher is None:
        return FifoBatcher()
    return make_dynamic_batcher(spec.batcher, spec.max_batch_size)


def make_dynamic_batcher(spec: BatcherSpec, max_batch_size: int) -> Batcher:
    """Returns the fastest batcher that does what the settings say."""
    max_rows = max(max_batch_size, 1)  # requests of a model without batching have one row
    if spec.max_queue_delay_us > 0 or set(spec.preferred_batch_sizes) - {max_rows}:
        return DynamicBatcher(spec, max_rows)
    return GreedyBatcher(spec, max_rows)


class FifoBatcher:
    """Executes each request on its own, in the order of arrival and without a queue timeout."""

    __slots__ = ("_inferences",)

    def __init__(self) -> None:
        self._inferences: OrderedDict[Inference, None] = OrderedDict()

    def add(self, inference: Inference, now_ns: int) -> None:
        inference.queued_ns = now_ns
        self._inferences[inference] = None

    def add_all(self, inferences: Sequence[Inference], now_ns: int) -> dict[Inference, ServerError]:
        return add_each(self.add, inferences, now_ns)

    def put_back(self, inferences: Sequence[Inference], now_ns: int) -> None:
        again = first_again(self._inferences, inferences)
        self._inferences.update(dict.fromkeys(again))
        for inference in again:
            self._inferences.move_to_end(inference, last=False)

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
    """Dynamic batching without a delay: a batch has as many waiting requests as fit into it.

    This is the common case. To be fast, it reads no ages and no preferred sizes: without a delay
    they cannot change the decision.
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
        request = first.request
        key = request.batch_key
        rows = request.rows or 1
        room = self._max_rows - rows
        for inference in waiting:
            if inference.request is not request:  # members of a chunk share theirs
                request = inference.request
                rows = request.rows or 1
                if request.batch_key != key:
                    break
            room -= rows
            if room < 0:
                break
            batch.append(inference)
        self._drop_first(batch)
        return batch


class DynamicBatcher(RequestQueue):
    """Dynamic batching with preferred sizes or a delay.

    A batch runs as soon as it has a preferred size or cannot grow. A batch that could grow is held
    back until its oldest request has waited for the delay; then it runs as large as it can be.
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

        # The batch that is held back, and how many more rows, with which key, leave that decision
        # as it is. Thanks to this the queue is not searched from its head for each new request.
        self._hold_until_ns = 0  # 0: no batch is held back
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

    def add_all(self, inferences: Sequence[Inference], now_ns: int) -> dict[Inference, ServerError]:
        if self._hold_until_ns:
            return add_each(self.add, inferences, now_ns)
        return super().add_all(inferences, now_ns)

    def put_back(self, inferences: Sequence[Inference], now_ns: int) -> None:
        self._hold_until_ns = 0
        super().put_back(inferences, now_ns)

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
        marked = 0  # number of requests that have a preferred size, or do not exceed the largest
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
        """Hold the whole queue back as one batch of `rows`, until `until_ns` or a deadline."""
        deadline_ns = self._deadlines.earliest_ns()
        self._hold_until_ns = min(until_ns, deadline_ns) if deadline_ns else until_ns
        self._hold_room = min(self._preferred) - rows
        self._hold_key = key
        return self._hold_until_ns
