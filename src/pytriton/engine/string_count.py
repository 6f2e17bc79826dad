# SPDX-License-Identifier: Apache-2.0
"""Counts the elements of large BYTES inputs in a thread.

The event loop cannot do this: millions of length prefixes have to be read one after the other. The
thread stores the result in the tensors for validation. Until then this module owns the request.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from math import prod
from typing import TYPE_CHECKING

from pytriton import dtypes
from pytriton.errors import CancelledError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytriton.executor.base import Instance
    from pytriton.executor.inference import Inference
    from pytriton.messages import InferRequest

_WORKERS = 2


def count_strings(request: InferRequest) -> None:
    """Count the elements of all BYTES inputs of a request."""
    for tensor in request.inputs.values():
        if tensor.dtype is dtypes.BYTES:
            tensor.strings = dtypes.walk_bytes(tensor.data, prod(tensor.shape))


class StringCounter:
    """Counts the strings of an engine's requests, and owns the requests meanwhile."""

    instances: Sequence[Instance] = ()
    missing_instances = 0

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._callbacks: dict[int, list[Callable[[], None]]] = {}  # by the inference's id()

    def count(self, inference: Inference, submit: Callable[[Inference], None]) -> None:
        """Count the strings of a request in a thread, then submit it unless it was cancelled."""
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

        def on_counted(_: asyncio.Future[None]) -> None:
            callbacks = self._callbacks.pop(id(inference), [])
            if inference.is_over:
                return
            submit(inference)
            owner = inference.owner
            if owner is not self and owner is not None and not inference.is_over:
                for callback in callbacks:
                    owner.when_dispatched(inference, callback)

        counting.add_done_callback(on_counted)

    def cancel(self, inference: Inference) -> None:
        """Cancel it; its sink gets an error once."""
        inference.is_cancelled = True
        inference.end().on_error(CancelledError(""))

    def pause(self, inference: Inference) -> None:
        """Mark it as paused: its sink is behind with its responses."""
        inference.is_paused = True

    def resume(self, inference: Inference) -> None:
        """Undo `pause`."""
        inference.is_paused = False

    def when_dispatched(self, inference: Inference, callback: Callable[[], None]) -> None:
        """Call `callback` after it was sent to an instance, unless it ends before."""
        self._callbacks.setdefault(id(inference), []).append(callback)
