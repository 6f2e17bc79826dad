# SPDX-License-Identifier: Apache-2.0
"""The open connections of a port, with a notification of changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

ConnectionT = TypeVar("ConnectionT")


class ConnectionSet(set[ConnectionT]):
    """A set that calls `on_changed` after a connection was opened or closed."""

    on_changed: Callable[[], None] | None = None

    def add(self, connection: ConnectionT) -> None:
        """Add a connection that was opened."""
        super().add(connection)
        if self.on_changed is not None:
            self.on_changed()

    def discard(self, connection: object) -> None:
        """Remove a connection that was closed."""
        super().discard(connection)
        if self.on_changed is not None:
            self.on_changed()
