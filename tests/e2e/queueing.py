# SPDX-License-Identifier: Apache-2.0
"""A model whose instance can be kept busy, and requests that wait for it in a known order."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from tests.e2e import http_client
from tests.e2e.waiting import DEADLINE_S, eventually


class Gate:
    """A callable that notes its batches and waits in the first until it is opened."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()
        self.batches: list[list[np.ndarray]] = []  # the first input of each request

    def __call__(self, requests):
        self.batches.append([next(iter(request.values())).copy() for request in requests])
        self.entered.set()
        self.opened.wait(DEADLINE_S)
        return [{"y": next(iter(request.values()))} for request in requests]

    @property
    def values(self) -> list[list[float]]:
        """The first number of each request, by batch."""
        return [[array.flat[0] for array in batch] for batch in self.batches]


class Backlog:
    """Requests to a gated model, sent one after the other while its instance is busy."""

    def __init__(self, host, model: str, gate: Gate) -> None:
        self._host, self._model, self._gate = host, model, gate
        self._pool = ThreadPoolExecutor(64)
        self._pending = 0
        self.first = self._pool.submit(self._ask, {"x": np.array([[-1]], np.float32)}, {})
        assert gate.entered.wait(DEADLINE_S)

    def send(self, value: float | np.ndarray, *, is_queued: bool = True, **members) -> Future:
        """Send a request and wait until it is in the queue, or leave that open."""
        array = value if isinstance(value, np.ndarray) else np.array([[value]], np.float32)
        return self.send_inputs({"x": array}, is_queued=is_queued, **members)

    def send_inputs(self, inputs, *, is_queued: bool = True, **members) -> Future:
        future = self._pool.submit(self._ask, inputs, members)
        if is_queued:
            self._pending += 1
            self.await_pending(self._pending)
        return future

    def await_pending(self, count: int) -> None:
        """Wait until so many requests are in the queue."""
        self._pending = count
        assert eventually(lambda: self.pending() == count), (count, self.pending())

    def pending(self) -> int:
        return int(self._host.metric("nv_inference_pending_request_count", self._model))

    def open(self) -> None:
        """Let the instance go on, and wait for all answers."""
        self._gate.opened.set()
        self._pool.shutdown()

    def _ask(self, inputs, members):
        return http_client.infer(self._host.port, self._model, inputs, **members)

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        self.open()
