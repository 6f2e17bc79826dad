# SPDX-License-Identifier: Apache-2.0
"""Sends what a socket did not take at once, when its event loop says that it takes more."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from pytriton.transport.link import Link


class UnsentSender:
    """Watches a link for room; whoever sends asks it to, once something is left over.

    Args:
        loop: the event loop of the link's socket.
        link: a link whose socket does not block.
        on_failure: called when nothing can be sent any more.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        link: Link,
        on_failure: Callable[[OSError], None],
    ) -> None:
        self._loop = loop
        self._link = link
        self._on_failure = on_failure

    def watch(self) -> None:
        """Send the rest when there is room."""
        self._loop.add_writer(self._link.socket.fileno(), self._on_writable)

    def stop(self) -> None:
        """Watch no more, as before the link is closed."""
        self._loop.remove_writer(self._link.socket.fileno())

    def _on_writable(self) -> None:
        try:
            self._link.flush()
        except OSError as error:
            self._on_failure(error)
            return
        if not self._link.has_unsent:
            self.stop()
