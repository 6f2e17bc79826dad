# SPDX-License-Identifier: Apache-2.0
"""Counting the elements of large BYTES inputs, which takes too long for the event loop.

Millions of length prefixes can only be followed one by one. A thread does it, and leaves the result
with the tensors for validation. Until then the request belongs to nobody but this module.
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
    """Counts for the requests of an engine; their owner meanwhile."""

    instances: Sequence[Instance] = ()
    missing_instances = 0

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._placed: dict[int, list[Callable[[], None]]] = {}  # by the inference's id()

    def count(self, inference: Inference, submit: Callable[[Inference], None]) -> None:
        """Have the strings of a request counted; it is submitted then, unless it is given up."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # no loop that others could wait for
            count_strings(inference.request)
            submit(inference)
            return
        inference.owner = self
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_WORKERS, thread_name_prefix="strings")
        counting = loop.run_in_executor(self._threads, count_strings, inference.request)

        def go_on(_: asyncio.Future[None]) -> None:
            placed = self._placed.pop(id(inference), [])
            if inference.is_over:
                return
            submit(inference)
            owner = inference.owner
            if owner is not self and owner is not None and not inference.is_over:
                for callback in placed:
                    owner.when_placed(inference, callback)

        counting.add_done_callback(go_on)

    def cancel(self, inference: Inference) -> None:
        """Give it up; its sink hears of that once, with an error."""
        inference.is_cancelled = True
        inference.end().on_error(CancelledError(""))

    def pause(self, inference: Inference) -> None:
        """Its sink takes no more responses for now."""
        inference.is_paused = True

    def resume(self, inference: Inference) -> None:
        """Its sink takes responses again."""
        inference.is_paused = False

    def when_placed(self, inference: Inference, callback: Callable[[], None]) -> None:
        """Call back once it was handed to an instance; never if it ends before that."""
        self._placed.setdefault(id(inference), []).append(callback)
