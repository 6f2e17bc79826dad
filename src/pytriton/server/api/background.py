# SPDX-License-Identifier: Apache-2.0
"""Threads for work whose cost a client chooses: few at once, so that its memory stays bounded.

A thread helps only where what it calls releases the interpreter lock, or is cut into short pieces:
zlib does and numpy mostly, JSON parsers and `bytes.join` do not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")

# Whatever takes longer than reading so much JSON, or inflating it, does not run on the event loop:
# it takes 20 ms at the very worst.
SMALL_BYTES = 256 << 10
WORKERS = 2  # of each kind


class Background:
    """Runs functions beside the event loop, in the order of their coming."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, workers: int = WORKERS) -> None:
        self._loop = loop
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix=name)

    async def run(self, function: Callable[..., Result], *arguments: object) -> Result:
        """What the function returns or raises; one that is cancelled before its turn never runs."""
        return await self._loop.run_in_executor(self._threads, function, *arguments)

    def close(self) -> None:
        """Drop what waits. What runs is finished, and nobody hears of it."""
        self._threads.shutdown(wait=False, cancel_futures=True)
