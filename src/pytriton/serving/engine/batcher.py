# SPDX-License-Identifier: Apache-2.0
"""The rules that divide the waiting requests of a model into batches.

A batcher decides which requests of its queue run together and when. There is no I/O; the caller
passes the time.

A scheduler adds requests, calls `next` whenever an instance is free, and calls `expire` at
`next_deadline_ns`, whether an instance is free or not.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Union

from pytriton.base.errors import ServerError
from pytriton.base.messages import is_lone_batch_key
from pytriton.base.model_spec import BatcherSpec, ModelSpec
from pytriton.runtime.executor.inference import Inference
from pytriton.serving.engine.fairness import FairFifo, FairShares
from pytriton.serving.engine.request_queue import RequestQueue, add_each, first_again, make_fifo

if TYPE_CHECKING:
    from pytriton.base.messages import InferRequest

# The requests to run now, or the time in ns at which to call `next` again, or None: call it after
# the next `add`.
Decision = list[Inference] | int | None

MAX_SKIPPED = 256  # waiting requests of other shapes that are looked at for one batch

# The queue of a model and the rule that divides it into batches. `RequestQueue` says what the
# methods promise; `next` decides what a free instance does now. Requests in a list that it returns
# have left the queue, and none of them has expired.
Batcher = Union["FifoBatcher", "GreedyBatcher", "DelayingBatcher"]


def make_batcher(spec: ModelSpec) -> Batcher:
    """Returns the batcher that a model's configuration asks for."""
    if spec.batcher is None:
        return FifoBatcher()
    return make_dynamic_batcher(spec.batcher, spec.max_batch_size)


def make_dynamic_batcher(
    spec: BatcherSpec, max_batch_size: int, *, keeps_order: bool = False
) -> Batcher:
    """Returns the fastest batcher that does what the settings say; see `GreedyBatcher`."""
    max_rows = max(max_batch_size, 1)  # requests of a model without batching have one row
    if spec.max_queue_delay_us > 0 or set(spec.preferred_batch_sizes) - {max_rows}:
        return DelayingBatcher(spec, max_rows)
    return GreedyBatcher(spec, max_rows, keeps_order=keeps_order)


class FifoBatcher:
    """Executes each request on its own, in the order of arrival and without a queue timeout."""

    __slots__ = ("_inferences", "_shares")

    def __init__(self) -> None:
        self._inferences: OrderedDict[Inference, None] | FairFifo[Inference] = OrderedDict()
        self._shares: FairShares | None = None

    def share(self, shares: FairShares | None) -> None:
        """Let principals share the queue from now on; None: the order of arrival decides."""
        self._shares = shares
        self._inferences = make_fifo(shares, self._inferences.items())

    def add(self, inference: Inference, now_ns: int) -> None:
        inference.queued_ns = now_ns
        self._inferences[inference] = None

    def add_all(self, inferences: Sequence[Inference], now_ns: int) -> dict[Inference, ServerError]:
        return add_each(self.add, inferences, now_ns)

    def put_back(self, inferences: Sequence[Inference], now_ns: int) -> None:
        again = first_again(self._inferences, inferences)
        for inference in again:
            self._inferences[inference] = None
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
        if self._shares is not None:
            self._shares.charge_all((inference,))
        return [inference]

    def next_deadline_ns(self) -> int:
        return 0

    def take_all(self) -> list[Inference]:
        inferences = list(self._inferences)
        self._inferences.clear()
        return inferences

    def check_integrity(self) -> None:
        for inference in self._inferences:
            assert not inference.is_over, f"{inference} waits although it has ended"

    def __len__(self) -> int:
        return len(self._inferences)

    def __repr__(self) -> str:
        return f"<FifoBatcher {len(self)} waiting>"


class GreedyBatcher(RequestQueue):
    """Dynamic batching without a delay: a batch has as many waiting requests as fit into it.

    This is the common case. To be fast, it reads no ages and no preferred sizes: without a delay
    they cannot change the decision. Requests of another shape are skipped, so that clients which
    send several shapes get large batches, too. The request that waits longest is always the first
    of a batch: nobody waits for ever. With `keeps_order` such a request ends the batch.
    """

    __slots__ = ("_max_rows", "_max_skipped")

    def __init__(self, spec: BatcherSpec, max_rows: int, *, keeps_order: bool = False) -> None:
        super().__init__(spec)
        self._max_rows = max_rows
        self._max_skipped = 0 if keeps_order else MAX_SKIPPED

    def next(self, now_ns: int) -> Decision:  # noqa: C901, PLR0912  one pass over many requests
        if self._has_timeouts:
            self._apply_timeouts(now_ns)
        batch: list[Inference] = []
        room = self._max_rows
        skipped = 0
        request: InferRequest | None = None
        key: Any = None
        rows, fits = 0, True
        for fifo in self._fifos:
            for inference in fifo:
                if inference.request is not request:  # members of a chunk share theirs
                    if request is None:
                        key = inference.request.batch_key
                    request = inference.request
                    rows = request.rows or 1
                    fits = request.batch_key == key
                if not fits:
                    skipped += 1
                    if skipped > self._max_skipped:
                        break
                    continue
                if rows > room and batch:
                    room = 0
                    break
                room -= rows
                batch.append(inference)
            # A request never overtakes one of a higher priority.
            if room <= 0 or skipped:
                break
        if skipped:
            for inference in batch:
                self.remove(inference)
        else:
            self._drop_first(batch)
        if self._shares is not None:
            self._shares.charge_all(batch)
        return batch or None


class DelayingBatcher(RequestQueue):
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

    def check_integrity(self) -> None:
        """Check also that a batch that is held back could still run as one, and could grow."""
        super().check_integrity()
        if self._hold_until_ns:
            requests = [inference.request for inference in self._in_order()]
            rows = sum(request.rows or 1 for request in requests)
            keys = [request.batch_key == self._hold_key for request in requests]
            assert all(keys), f"{self} holds requests that cannot share a batch"
            assert rows + self._hold_room <= min(self._preferred), f"{self} holds too many rows"

    def next(self, now_ns: int) -> Decision:
        if self._has_timeouts:
            self._apply_timeouts(now_ns)
        if now_ns < self._hold_until_ns:
            return self._hold_until_ns
        self._hold_until_ns = 0
        decision = self._choose(now_ns)
        if isinstance(decision, list):
            self._drop_first(decision)
            if self._shares is not None:
                self._shares.charge_all(decision)
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
        can_grow = can_grow and rows < self._largest_preferred and not is_lone_batch_key(key)
        if is_late or not self._delay_ns or not can_grow:
            return batch
        return self._hold(key, rows, oldest_ns + self._delay_ns)

    def _hold(self, key: object, rows: int, until_ns: int) -> int:
        """Hold the whole queue back as one batch of `rows`, until `until_ns` or a deadline."""
        deadline_ns = self._deadlines.earliest_ns()
        self._hold_until_ns = min(until_ns, deadline_ns) if deadline_ns else until_ns
        self._hold_room = min(self._preferred) - rows
        self._hold_key = key
        return self._hold_until_ns
