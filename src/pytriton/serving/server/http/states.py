# SPDX-License-Identifier: Apache-2.0
"""The states of an HTTP/1.1 connection, and the items of its queue that are not requests."""

from __future__ import annotations

import enum
from typing import NamedTuple


class ConnectionState(enum.Enum):
    """The state of a connection."""

    OPEN = "requests are read and answered"
    LINGERING = "the last response was sent, further input is discarded"
    CLOSING = "the written output is being sent"
    CLOSED = "the connection is closed"


TRANSITIONS: dict[ConnectionState, frozenset[ConnectionState]] = {
    ConnectionState.OPEN: frozenset(
        {ConnectionState.LINGERING, ConnectionState.CLOSING, ConnectionState.CLOSED}
    ),
    ConnectionState.LINGERING: frozenset({ConnectionState.CLOSING, ConnectionState.CLOSED}),
    ConnectionState.CLOSING: frozenset({ConnectionState.CLOSED}),
    ConnectionState.CLOSED: frozenset(),
}


class HttpRefusal(NamedTuple):
    """The last response on a connection, to an invalid request."""

    status: int
    message: str


class Expectation(NamedTuple):
    """The client waits for `100 Continue` before it sends the body of its next request."""
