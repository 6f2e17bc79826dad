# SPDX-License-Identifier: Apache-2.0
"""Shortens the delay of a restart when its cause may be gone."""

from __future__ import annotations

import asyncio


class Recovery:
    """Wakes delayed restarts when the cluster is reachable again or gains a node.

    Attributes:
        count: How often it did.
    """

    def __init__(self) -> None:
        self.count = 0
        self._pauses: set[asyncio.Future[None]] = set()

    def announce(self) -> None:
        """End all pauses."""
        self.count += 1
        for pause in self._pauses:
            if not pause.done():
                pause.set_result(None)

    async def pause(self, delay_s: float) -> None:
        """Wait for `delay_s`, or until the next announcement."""
        pause: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pauses.add(pause)
        try:
            await asyncio.wait([pause], timeout=delay_s)
        finally:
            self._pauses.discard(pause)

    def __repr__(self) -> str:
        return f"<Recovery {self.count} times, {len(self._pauses)} pauses>"
