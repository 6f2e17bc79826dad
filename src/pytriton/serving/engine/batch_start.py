# SPDX-License-Identifier: Apache-2.0
"""Calls a model's pump, which forms batches, as soon as the start policy says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.serving.engine.gathering import Gathering
from pytriton.serving.engine.start_policy import Start

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Collection

    from pytriton.runtime.executor.base import Instance
    from pytriton.serving.engine.start_policy import StartPolicy
    from pytriton.serving.engine.stats import ModelStatistics


class BatchStart:
    """When the next batch of a model starts.

    Args:
        policy: Decides.
        statistics: Has the number of waiting requests.
        instances: All instances of the model.
        free: Those that can take a batch.
        loop: The event loop.
        pump: Forms batches and sends them; it calls `began`.
    """

    __slots__ = (
        "_free",
        "_gathering",
        "_instances",
        "_is_due",
        "_loop",
        "_policy",
        "_pump",
        "_statistics",
    )

    def __init__(
        self,
        policy: StartPolicy,
        statistics: ModelStatistics,
        instances: Collection[Instance],
        free: Collection[Instance],
        loop: asyncio.AbstractEventLoop,
        pump: Callable[[], None],
    ) -> None:
        self._policy = policy
        self._statistics = statistics
        self._instances = instances
        self._free = free
        self._loop = loop
        self._pump = pump
        self._gathering = Gathering(loop, pump)
        self._is_due = False

    def would_be_now(self, count: int) -> bool:
        """Returns whether a batch would start at once if `count` more requests came."""
        waiting = self._statistics.pending_count + count
        return bool(self._free) and self._policy.decide(waiting, self._free) is Start.NOW

    def soon(self) -> None:
        """Start a batch of the waiting requests, as soon as the policy says."""
        start = self._policy.decide(self._statistics.pending_count, self._free)
        if start is Start.END_OF_ITERATION:
            self.after_iteration()
        elif start is Start.NOW:
            self._pump()
        else:
            self._gathering.begin()

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
        if self._policy.gathers_more(self._statistics.pending_count, busy_count):
            self._is_due = False
            self._gathering.begin()
        else:
            self._pump()

    def began(self) -> None:
        """Note that batches are being formed."""
        self._is_due = False
        self._gathering.end()

    def stop(self) -> None:
        """Stop the timer."""
        self._gathering.stop()

    def __repr__(self) -> str:
        return f"<BatchStart is_due={self._is_due} {self._gathering!r}>"
