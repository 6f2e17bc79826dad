# SPDX-License-Identifier: Apache-2.0
"""The life of an HTTP/1.1 connection, and what may wait on it beside requests."""

from __future__ import annotations

import enum
from typing import NamedTuple


class ConnectionState(enum.Enum):
    """Where a connection is in its life."""

    OPEN = "requests are read and answered"
    LINGERING = "the last answer was sent, what still comes is thrown away"
    CLOSING = "what was written is being sent"
    CLOSED = "the connection is gone"


TRANSITIONS: dict[ConnectionState, frozenset[ConnectionState]] = {
    ConnectionState.OPEN: frozenset(
        {ConnectionState.LINGERING, ConnectionState.CLOSING, ConnectionState.CLOSED}
    ),
    ConnectionState.LINGERING: frozenset({ConnectionState.CLOSING, ConnectionState.CLOSED}),
    ConnectionState.CLOSING: frozenset({ConnectionState.CLOSED}),
    ConnectionState.CLOSED: frozenset(),
}


class Refusal(NamedTuple):
    """The last answer of a connection that cannot be read on."""

    status: int
    message: str


class Expectation(NamedTuple):
    """A client waits for `100 Continue` before it sends the body of its next request."""
