# SPDX-License-Identifier: Apache-2.0
"""The timeouts of one HTTP client. This module only decides: callers pass the time."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from pytriton.serving.server.api.pace import Pace

if TYPE_CHECKING:
    from pytriton.serving.server.http.reader import RequestHead, RequestReader
    from pytriton.serving.server.options.server_options import Limits

# How long a refused client may continue to send. If the connection were closed at once, unread
# bytes would make the system reset it, and the refusal might be lost (RFC 9112, 9.6).
LINGER_S = 5.0


class Decision(enum.Enum):
    """What to do about a client that may be too slow to send."""

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

    def __init__(self, limits: Limits) -> None:
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
        """Returns what to do about the client now."""
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
        """Returns whether the connection had no request for too long.

        Args:
            now: The time.
            is_in_use: Whether there was a request since the last call, or is one now.
        """
        if is_in_use:
            self._is_new = False
            self._idle_since = now
        return now - self._idle_since > self._limits.http_idle_timeout_s > 0
