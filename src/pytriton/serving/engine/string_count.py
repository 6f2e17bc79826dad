# SPDX-License-Identifier: Apache-2.0
"""Counts the elements of large BYTES inputs in a thread.

The event loop cannot do this: millions of length prefixes have to be read one after the other. The
thread stores the result in the tensors for validation. Until then this module owns the request, and
those that come after it in its sequence.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from math import prod
from typing import TYPE_CHECKING

from pytriton.base import dtypes
from pytriton.base.errors import CancelledError, error_for_clients
from pytriton.runtime.executor.inference import Outcome
from pytriton.serving.engine.delivery import deliver, refuse

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.base.messages import InferRequest
    from pytriton.runtime.executor.inference import Inference
    from pytriton.serving.engine.served_model import WaitsFor

    Submit = Callable[[Inference], None]

logger = logging.getLogger(__name__)

_WORKERS = 2


def count_strings(request: InferRequest) -> None:
    """Count the elements of all BYTES inputs of a request."""
    for tensor in request.inputs.values():
        if tensor.dtype is dtypes.BYTES:
            tensor.strings = dtypes.walk_bytes(tensor.data, prod(tensor.shape))


class StringCounter:
    """Counts the strings of an engine's requests, and owns the requests meanwhile."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._callbacks: dict[Inference, Callable[[], None]] = {}
        # By model and sequence, if a request of the sequence is counted: those behind it.
        self.behind: dict[tuple[str, int | str], deque[tuple[Inference, Submit]]] = {}

    def holds_back(self, inference: Inference, submit: Submit) -> bool:
        """Returns whether a request has to wait for an earlier one of its sequence; then it does.

        `submit` is called with it afterwards, unless it was cancelled.
        """
        waiting = self.behind.get(_sequence(inference.request))
        if waiting is None:
            return False
        inference.owner = self
        waiting.append((inference, submit))
        return True

    def count(self, inference: Inference, submit: Submit) -> None:
        """Count the strings of a request in a thread, then submit it unless it was cancelled.

        If counting fails, the request is refused. Requests of one sequence stay in order.
        """
        if self.holds_back(inference, submit):
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # no event loop that this could block
            count_strings(inference.request)
            submit(inference)
            return
        inference.owner = self
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_WORKERS, thread_name_prefix="strings")
        counting = loop.run_in_executor(self._threads, count_strings, inference.request)
        sequence = _sequence(inference.request)
        if inference.request.fields.correlation_id:
            self.behind[sequence] = deque()

        def on_counted(counted: asyncio.Future[None]) -> None:
            waiting = self.behind.pop(sequence, ())
            self._pass_on(inference, submit, counted.exception())
            for each, submit_it in waiting:
                self._pass_on(each, submit_it, None)

        counting.add_done_callback(on_counted)

    def _pass_on(self, inference: Inference, submit: Submit, failure: BaseException | None) -> None:
        callback = self._callbacks.pop(inference, None)
        if inference.is_over:
            return
        if failure is not None:
            refuse(inference, error_for_clients(failure, "it counted strings"))
            return
        submit(inference)
        if callback is not None and not inference.is_over:
            callback()

    def cancel(self, inference: Inference) -> None:
        """Cancel it; its sink gets an error once."""
        inference.is_cancelled = True
        if inference.trace is not None:
            inference.trace.on_cancelled(inference.index)
        deliver(inference, Outcome(0, None, CancelledError("")))

    def pause(self, inference: Inference) -> None:
        """Mark it as paused: its sink is behind with its responses."""
        inference.is_paused = True

    def resume(self, inference: Inference) -> None:
        """Undo `pause`."""
        inference.is_paused = False

    def waits_for(self, inference: Inference) -> WaitsFor | None:
        """Returns None: a request continues by itself when its strings are counted."""
        return None

    def call_when_dispatched(self, inference: Inference, callback: Callable[[], None]) -> None:
        """Call `callback` after its model has queued it, unless it ends before."""
        self._callbacks[inference] = callback


def _sequence(request: InferRequest) -> tuple[str, int | str]:
    return request.model_name, request.fields.correlation_id
