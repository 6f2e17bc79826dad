# SPDX-License-Identifier: Apache-2.0
"""Polls for changes at intervals; `ModelRepositories` does the polling itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from pytriton.base.errors import ServerError

logger = logging.getLogger(__name__)


_MIN_TIMEOUT_S = 1.0  # before the next poll starts beside one that does not end


class Poller:
    """Polls repeatedly, with an interval between the end of a poll and the next one.

    A poll that does not end, because a model hangs while it is loaded, does not stop later polls.
    """

    def __init__(
        self,
        interval_s: float,
        poll: Callable[[], Awaitable[None]],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._interval_s = interval_s
        self._poll = poll
        self._sleep = sleep
        self._task: asyncio.Task[None] | None = None
        self._polls: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start; the first poll comes after the first interval."""
        self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        """Stop polling and cancel running polls."""
        tasks = [*self._polls, self._task] if self._task is not None else []
        self._task = None
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self) -> None:
        while True:
            await self._sleep(self._interval_s)
            poll = asyncio.ensure_future(self._poll_once())
            self._polls.add(poll)
            poll.add_done_callback(self._polls.discard)
            await asyncio.wait({poll}, timeout=max(self._interval_s, _MIN_TIMEOUT_S))

    async def _poll_once(self) -> None:
        try:
            await self._poll()
        except ServerError as error:
            logger.warning("the repositories could not be polled: %s", error.message)
        except Exception:  # the next poll may succeed
            logger.exception("the repositories could not be polled")
