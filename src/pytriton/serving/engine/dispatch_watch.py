# SPDX-License-Identifier: Apache-2.0
"""Calls back when requests were sent to an instance."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from pytriton.runtime.executor.inference import Inference


class DispatchWatch:
    """The callbacks of queued requests; each is called at most once, by the event loop."""

    __slots__ = ("_callbacks", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._callbacks: dict[Inference, Callable[[], None]] = {}

    def add(self, inference: Inference, callback: Callable[[], None]) -> None:
        """Call `callback` after the request was sent to an instance."""
        self._callbacks[inference] = callback

    def discard(self, inference: Inference) -> None:
        """Forget a request that ended before."""
        self._callbacks.pop(inference, None)

    def notify(self, inferences: Iterable[Inference]) -> None:
        """Call back for requests that were sent."""
        for inference in inferences:
            callback = self._callbacks.pop(inference, None)
            if callback is not None:
                self._loop.call_soon(callback)

    def __len__(self) -> int:
        return len(self._callbacks)

    def __repr__(self) -> str:
        return f"<DispatchWatch of {len(self)} requests>"
