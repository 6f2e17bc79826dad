# SPDX-License-Identifier: Apache-2.0
"""The timer around looking for changes; what a look does is for `ModelRepositories`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from pytriton.errors import ServerError

logger = logging.getLogger(__name__)


_PATIENCE_S = 1.0  # with a look that takes longer than the time between two


class Poller:
    """Looks again and again, with the same time between the end of a look and the next.

    A look that does not end, because a model hangs while it is loaded, does not stop the others.
    """

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
        self._looks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin; the first look is after the first interval."""
        self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        """Look no more; looks that have begun are given up."""
        tasks = [*self._looks, self._task] if self._task is not None else []
        self._task = None
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self) -> None:
        while True:
            await self._sleep(self._interval_s)
            look = asyncio.ensure_future(self._look_once())
            self._looks.add(look)
            look.add_done_callback(self._looks.discard)
            await asyncio.wait({look}, timeout=max(self._interval_s, _PATIENCE_S))

    async def _look_once(self) -> None:
        try:
            await self._look()
        except ServerError as error:
            logger.warning("the repositories could not be polled: %s", error.message)
        except Exception:  # the next look may be better
            logger.exception("the repositories could not be polled")
