# SPDX-License-Identifier: Apache-2.0
"""Decides when a model with a free instance forms its next batch, and does it then.

A request that arrives leads here to one of three starts: now, at the end of this iteration of the
event loop, or when the gather window closes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Collection

    from pytriton.base.model_spec import ModelSpec
    from pytriton.runtime.executor.inference import Instance
    from pytriton.serving.engine.stats import ModelStatistics

# The gather window. While a decoupled model is busy, or a quick one waits for its next answer,
# requests are gathered this long and sent as one batch.
GATHER_NS = 1_000_000

_MIN_EARLY_REQUESTS = 16
_MIN_EARLY_WORK_NS = 100_000
_MAX_EARLY_WORK_NS = 1_000_000

# Sending a batch and reading its answer takes about this long, so this process can keep as many
# instances busy as a batch takes multiples of it. Another one gains nothing while less than a full
# batch waits.
_QUICK_BATCH_NS = 100_000
# Waiting requests that take this long together are worth another instance in any case: up to a
# sixth more requests with 8 instances and 1,024 clients, in a simulation with the measured costs.
_LARGE_WORK_NS = 2 * _QUICK_BATCH_NS


class EarliestTimer:
    """Calls a function at the earliest of the times that it was set to, and never before it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._timer: asyncio.TimerHandle | None = None
        self._at_ns = 0

    def set(self, at_ns: int) -> None:
        """Fire at `at_ns` (of `time.monotonic_ns`), unless an earlier time is set already."""
        if self._timer is not None and not self._timer.cancelled():
            if self._at_ns <= at_ns:
                return
            self._timer.cancel()
        self._at_ns = at_ns
        delay_s = max(0, at_ns - time.monotonic_ns()) / 1e9
        self._timer = self._loop.call_later(delay_s, self._on_timer)

    @property
    def is_set(self) -> bool:
        """Whether it will fire."""
        return self._timer is not None and not self._timer.cancelled()

    def cancel(self) -> None:
        """Stop the timer; it can be set again."""
        if self._timer is not None:
            self._timer.cancel()

    def _on_timer(self) -> None:
        self._timer = None
        # The event loop's timers have a resolution of 1 ms and may fire up to 1 ms too early.
        if time.monotonic_ns() < self._at_ns:
            self.set(self._at_ns)
        else:
            self._callback()


class BatchStart:
    """When the next batch of a model starts; it learns from batches how long requests take.

    A start is early, before this iteration of the event loop has read every request, if executing
    the waiting requests takes about as long as reading them, because the two then overlap: 64
    clients of a small model.py get 17 % more throughput. A model with longer executions gains
    nothing from that and is better off with the larger batch.

    It calls `form_batches`, which forms batches, sends them and calls `began`. Of the `free`
    instances, the next one to use is first.
    """

    __slots__ = (
        "_batch_ns", "_form_batches", "_free", "_gather_timer", "_gather_until_ns", "_gathers",
        "_instances", "_is_due", "_loop", "_max_batch_size", "_request_ns", "_statistics",
    )  # fmt: skip

    def __init__(
        self,
        spec: ModelSpec,
        statistics: ModelStatistics,
        instances: Collection[Instance],
        free: Collection[Instance],
        loop: asyncio.AbstractEventLoop,
        form_batches: Callable[[], None],
    ) -> None:
        self._statistics = statistics
        self._instances = instances
        self._free = free
        self._loop = loop
        self._form_batches = form_batches
        self._max_batch_size = spec.max_batch_size if spec.batcher is not None else 1
        self._gathers = spec.decoupled and self._max_batch_size > 1
        self._is_due = False  # at the end of this iteration of the event loop
        self._gather_until_ns = 0  # 0: the gather window is closed
        self._gather_timer = EarliestTimer(loop, self._on_gather_timer)
        self._request_ns = 0
        self._batch_ns = 0  # of the last batch; 0: none yet

    def learn(self, count: int, work_ns: int) -> None:
        """Learn from how long a batch of `count` requests took."""
        self._batch_ns = work_ns
        if count >= _MIN_EARLY_REQUESTS:
            self._request_ns = work_ns // count

    def soon(self) -> None:
        """Start a batch of the waiting requests as soon as that is best; an instance is free."""
        if self._gathers and not next(iter(self._free)).is_idle:
            self._gather()
        elif self._statistics.pending_count >= _MIN_EARLY_REQUESTS and self._starts_early(
            self._statistics.pending_count
        ):
            self._form_batches()
        else:
            self.after_iteration()

    def is_early(self, count: int) -> bool:
        """Returns whether a batch would start at once if `count` more requests came."""
        free = self._free
        if not free or (self._gathers and not next(iter(free)).is_idle):
            return False
        return self._starts_early(self._statistics.pending_count + count)

    def _starts_early(self, waiting_count: int) -> bool:
        work_ns = waiting_count * self._request_ns
        return (
            waiting_count >= _MIN_EARLY_REQUESTS
            and _MIN_EARLY_WORK_NS <= work_ns <= _MAX_EARLY_WORK_NS
        )

    def after_iteration(self) -> None:
        """Start when this iteration of the event loop has read all its requests.

        They then share a batch.
        """
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self.now)

    def now(self) -> None:
        """Start now, unless it is better to gather more requests until the next answer."""
        busy_count = len(self._instances) - len(self._free)
        if busy_count and self.gathers_more(self._statistics.pending_count, busy_count):
            self._is_due = False
            self._gather()
        else:
            self._form_batches()

    def gathers_more(self, waiting_count: int, busy_count: int) -> bool:
        """Returns whether a batch should wait for the next answer, with which more will come."""
        if not self._batch_ns or waiting_count >= self._max_batch_size:
            return False
        if waiting_count * self._request_ns >= _LARGE_WORK_NS:
            return False
        return busy_count > self._batch_ns // _QUICK_BATCH_NS

    def began(self) -> None:
        """Note that batches are being formed, which closes the gather window."""
        self._is_due = False
        self._gather_until_ns = 0

    @property
    def is_scheduled(self) -> bool:
        """Whether batches will be formed without another request."""
        return self._is_due or self._gather_until_ns > 0

    def stop(self) -> None:
        """Stop the timer of the gather window."""
        self._gather_until_ns = 0
        self._gather_timer.cancel()

    def _gather(self) -> None:
        """Open the gather window, unless it is open already."""
        if not self._gather_until_ns:
            self._gather_until_ns = time.monotonic_ns() + GATHER_NS
            self._gather_timer.set(self._gather_until_ns)

    def _on_gather_timer(self) -> None:
        # The timer of a window that was closed early goes on and is set again here, so that there
        # is one timer in a millisecond and not one for each batch.
        if not self._gather_until_ns:
            return
        if time.monotonic_ns() < self._gather_until_ns:
            self._gather_timer.set(self._gather_until_ns)
        else:
            self._form_batches()
