# SPDX-License-Identifier: Apache-2.0
"""Decides how soon after a request arrived a model with a free instance forms a batch."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytriton.base.model_spec import ModelSpec
    from pytriton.runtime.executor.base import Instance

# While a decoupled model is busy, requests are gathered this long and sent as one batch.
GATHER_NS = 1_000_000

_MIN_EARLY_REQUESTS = 16
_MIN_EARLY_WORK_NS = 100_000
_MAX_EARLY_WORK_NS = 1_000_000

# Sending a batch and reading its answer takes about this long, so this process can keep as many
# instances busy as a batch takes multiples of it. Another one gains nothing while less than a full
# batch waits.
_QUICK_BATCH_NS = 100_000


class Start(enum.Enum):
    """When to form a batch of the waiting requests."""

    END_OF_ITERATION = 0  # when this iteration of the event loop has read all its requests
    NOW = 1
    AFTER_GATHERING = 2  # within `GATHER_NS`


class StartPolicy:
    """Decides when to start, and learns from a model's batches how long its requests take.

    An idle instance starts before this iteration of the event loop has read every request if
    executing them takes about as long as reading them, because the two then overlap: 64 clients of
    a small model.py get 17 % more throughput. A model with longer executions gains nothing from
    that and is better off with the larger batch.
    """

    __slots__ = ("_batch_ns", "_gathers", "_max_batch_size", "_request_ns")

    def __init__(self, spec: ModelSpec) -> None:
        self._gathers = spec.decoupled and spec.batcher is not None and spec.max_batch_size > 1
        self._request_ns = 0
        self._batch_ns = 0  # of the last batch; 0: none yet
        self._max_batch_size = spec.max_batch_size if spec.batcher is not None else 1

    def learn(self, count: int, work_ns: int) -> None:
        """Learn from how long a batch of `count` requests took."""
        self._batch_ns = work_ns
        if count >= _MIN_EARLY_REQUESTS:
            self._request_ns = work_ns // count

    @property
    def is_quick(self) -> bool:
        """Whether the last batch took less time than sending one."""
        return 0 < self._batch_ns < _QUICK_BATCH_NS

    def gathers_more(self, waiting_count: int, busy_count: int) -> bool:
        """Returns whether a batch should wait for the next answer, with which more will come.

        Args:
            waiting_count: The number of waiting requests.
            busy_count: The number of instances that execute a batch.
        """
        if not self._batch_ns or waiting_count >= self._max_batch_size:
            return False
        return busy_count > self._batch_ns // _QUICK_BATCH_NS

    def decide(self, waiting_count: int, free: Iterable[Instance]) -> Start:
        """Decide, given the number of waiting requests and the instance that is next."""
        if self._gathers and not next(iter(free)).is_idle:
            return Start.AFTER_GATHERING
        if waiting_count >= _MIN_EARLY_REQUESTS:
            work_ns = waiting_count * self._request_ns
            if _MIN_EARLY_WORK_NS <= work_ns <= _MAX_EARLY_WORK_NS:
                return Start.NOW
        return Start.END_OF_ITERATION
