# SPDX-License-Identifier: Apache-2.0
"""Waits until a model has no requests."""

from __future__ import annotations

import asyncio


class IdleWait:
    """Those who wait for a model to be idle."""

    __slots__ = ("_future",)

    def __init__(self) -> None:
        self._future: asyncio.Future[None] | None = None

    @property
    def is_awaited(self) -> bool:
        """Whether anybody waits."""
        return self._future is not None and not self._future.done()

    async def wait(self, timeout_s: float | None) -> None:
        """Wait for `tell`, at most for `timeout_s`."""
        if self._future is None or self._future.done():
            self._future = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._future], timeout=timeout_s)

    def tell(self) -> None:
        """Tell those who wait that the model is idle."""
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def __repr__(self) -> str:
        return f"<IdleWait is_awaited={self.is_awaited}>"
