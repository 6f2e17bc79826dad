# SPDX-License-Identifier: Apache-2.0
"""Waits until connections can be read or written: epoll where it exists, else `selectors`."""

from __future__ import annotations

import select
import selectors
from collections.abc import Callable
from typing import Any

WRITABLE = 4  # as epoll has it
_MAX_EVENTS = 256
Callback = Callable[[int], None]


class SocketPoller:
    """Calls back what has something to read, or wants to write and can."""

    def __init__(self) -> None:
        self.callbacks: dict[int, Callback] = {}
        self._epoll: Any = select.epoll() if hasattr(select, "epoll") else None
        self._selector = None if self._epoll is not None else selectors.DefaultSelector()

    def add(self, fd: int, callback: Callback) -> None:
        self.callbacks[fd] = callback
        if self._epoll is not None:
            self._epoll.register(fd, select.EPOLLIN)
        else:
            assert self._selector is not None
            self._selector.register(fd, selectors.EVENT_READ)

    def want_write(self, fd: int, *, wants: bool) -> None:
        """Say whether the callback is also wanted when the connection can be written."""
        if self._epoll is not None:
            self._epoll.modify(fd, select.EPOLLIN | (select.EPOLLOUT if wants else 0))
        else:
            assert self._selector is not None
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if wants else 0)
            self._selector.modify(fd, events)

    def remove(self, fd: int) -> None:
        del self.callbacks[fd]
        if self._epoll is not None:
            self._epoll.unregister(fd)
        else:
            assert self._selector is not None
            self._selector.unregister(fd)

    def poll(self, seconds: float) -> list[tuple[int, int]]:
        """Wait at most so long; pairs of a connection and what it can do."""
        if self._epoll is None:
            return self._poll_selector(seconds)
        if 0 < seconds < 0.02:
            # epoll's own limit counts milliseconds, which is too coarse for rates.
            select.select([self._epoll.fileno()], [], [], seconds)
            seconds = 0
        found: list[tuple[int, int]] = self._epoll.poll(seconds, _MAX_EVENTS)
        return found

    def _poll_selector(self, seconds: float) -> list[tuple[int, int]]:
        assert self._selector is not None
        return [
            (key.fd, WRITABLE if events & selectors.EVENT_WRITE else 0)
            for key, events in self._selector.select(seconds)
        ]

    def close(self) -> None:
        if self._epoll is not None:
            self._epoll.close()
        if self._selector is not None:
            self._selector.close()
