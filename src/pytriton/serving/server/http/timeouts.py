# SPDX-License-Identifier: Apache-2.0
"""The timeouts of HTTP clients, and the timers by which connections check them.

`ClientTimeouts` only decides, and has no clock. The two watches have one timer each for all
connections of a port, so that requests set no timers.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Protocol

from pytriton.serving.server.api.pace import Pace

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Collection

    from pytriton.serving.server.http.reader import RequestReader
    from pytriton.serving.server.http.request import RequestHead
    from pytriton.serving.server.options.server_options import ClientLimits


class Decision(enum.Enum):
    """The verdict on a client that may be too slow to send."""

    NOTHING = "no request is expected now"
    WAIT = "the client has time left"
    REFUSE = "a part of a request was received, and the rest did not follow in time"
    END = "the client connected and sent no request in time"


class ClientTimeouts:
    """Times one client in both directions; its methods are called periodically."""

    __slots__ = (
        "_idle_since",
        "_is_new",
        "_limits",
        "_reading",
        "_timed_part",
        "_unsent",
        "_writing",
    )

    def __init__(self, limits: ClientLimits) -> None:
        self._limits = limits
        self._reading = Pace()
        self._writing = Pace()
        # The part of a request that `_reading` times: its head object, and whether it is the head.
        self._timed_part: tuple[RequestHead | None, bool] = (None, True)
        self._unsent = 0
        self._is_new = True  # the client has not begun a request yet
        self._idle_since = 0.0

    def begin(self, now: float) -> None:
        """Start timing when a client has connected."""
        self._idle_since = now
        self._reading.restart(now)

    # Reading

    def on_part(self, reader: RequestReader, nbytes: int, now: float) -> None:
        """Count `nbytes` of a request that is not complete."""
        self._is_new = False
        head, is_in_head = reader.head, reader.is_in_head
        timed_head, was_in_head = self._timed_part
        if head is not timed_head or is_in_head is not was_in_head:
            self._timed_part = (head, is_in_head)
            self._reading.restart(now)
        elif not is_in_head:  # a head has a total time, whatever is received
            self._reading.advance(nbytes, now)

    def restart_reading(self, now: float) -> None:
        """Restart timing, because the client could not or need not send until now."""
        self._reading.restart(now)

    def reading_stalled_s(self, now: float) -> float:
        """Returns how long the client has been too slow to send."""
        return self._reading.stalled_s(now)

    def timeout_s(self, reader: RequestReader) -> float:
        """Returns how long the client may be too slow with the current part of a request."""
        limits = self._limits
        is_body = reader.is_mid_request and not reader.is_in_head
        return limits.body_stall_timeout_s if is_body else limits.header_timeout_s

    def check_reading(self, reader: RequestReader, now: float, *, was_used: bool) -> Decision:
        """Returns the verdict on the client now."""
        if reader.is_over:
            return Decision.NOTHING
        if not reader.is_mid_request:
            if not self._is_new or was_used:
                return Decision.NOTHING  # between two requests: `is_idle` decides
            late = Decision.END
        else:
            late = Decision.REFUSE
        return late if self._reading.stalled_s(now) > self.timeout_s(reader) else Decision.WAIT

    # Writing

    def begin_writing(self, unsent: int, now: float) -> None:
        """Start timing when `unsent` bytes wait to be sent."""
        self._unsent = unsent
        self._writing.restart(now)

    def is_write_stalled(self, unsent: int, now: float) -> bool:
        """Returns whether the client has read too little of the output for too long."""
        self._writing.advance(max(0, self._unsent - unsent), now)
        self._unsent = unsent
        return self._writing.stalled_s(now) > self._limits.write_stall_timeout_s

    # Between requests

    def is_idle(self, now: float, *, is_in_use: bool) -> bool:
        """Returns whether there was no request for too long; `is_in_use`: there was one, or is."""
        if is_in_use:
            self._is_new = False
            self._idle_since = now
        return now - self._idle_since > self._limits.http_idle_timeout_s > 0


CHECK_INTERVAL_S = 1.0
# An idle connection is closed after the timeout, or up to this fraction of it later.
CHECKS_PER_TIMEOUT = 10
MAX_IDLE_INTERVAL_S = 60.0


class TimedConnection(Protocol):
    """A connection that checks its client when it is told the time."""

    def check_progress(self, now: float) -> bool:
        """Close the connection if the client stalls; returns whether to continue checking."""

    def check_idle(self, now: float) -> None:
        """Close the connection if it was idle for too long."""


class ProgressWatch:
    """Checks connections once a second while there are any to check."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._watched: dict[TimedConnection, None] = {}
        self._has_timer = False

    def add(self, connection: TimedConnection) -> None:
        """Check a connection periodically until `check_progress` returns False."""
        self._watched[connection] = None
        if not self._has_timer:
            self._has_timer = True
            self._loop.call_later(CHECK_INTERVAL_S, self._check)

    def discard(self, connection: TimedConnection) -> None:
        self._watched.pop(connection, None)

    def __len__(self) -> int:
        return len(self._watched)

    def _check(self) -> None:
        now = self._loop.time()
        for connection in list(self._watched):
            if not connection.check_progress(now):
                self._watched.pop(connection, None)
        self._has_timer = bool(self._watched)
        if self._has_timer:
            self._loop.call_later(CHECK_INTERVAL_S, self._check)


class IdleWatch:
    """Checks all connections periodically, so that requests need not read the clock."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connections: Collection[TimedConnection],
        timeout_s: float,
    ) -> None:
        self._loop = loop
        self._connections = connections
        self._interval_s = min(timeout_s / CHECKS_PER_TIMEOUT, MAX_IDLE_INTERVAL_S)
        self._has_timer = False

    def start(self) -> None:
        """Check the connections as long as there are any; never if the timeout is 0."""
        if not self._has_timer and self._interval_s:
            self._has_timer = True
            self._loop.call_later(self._interval_s, self._check)

    def _check(self) -> None:
        self._has_timer = False
        now = self._loop.time()
        for connection in list(self._connections):
            connection.check_idle(now)
        if self._connections:
            self.start()
