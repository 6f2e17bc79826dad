# SPDX-License-Identifier: Apache-2.0
"""The timer around looking for changes; what a look does is the manager's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from pytriton.errors import ServerError

logger = logging.getLogger(__name__)


class Poller:
    """Looks again and again, with the same time between the end of a look and the next."""

    def __init__(
        self,
        interval_s: float,
        look: Callable[[], Awaitable[None]],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._interval_s = interval_s
        self._look = look
        self._sleep = sleep
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; the first look is after the first interval."""
        self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        """Look no more; a look that has begun is given up."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _run(self) -> None:
        while True:
            await self._sleep(self._interval_s)
            try:
                await self._look()
            except ServerError as error:
                logger.warning("the repositories could not be polled: %s", error.message)
            except Exception:  # the next look may be better
                logger.exception("the repositories could not be polled")
