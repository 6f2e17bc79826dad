# SPDX-License-Identifier: Apache-2.0
"""How long one HTTP client may take: decisions only, with all times given. Limits are `Limits`."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from pytriton.server.api.pace import Pace

if TYPE_CHECKING:
    from pytriton.server.http.reader import RequestHead, RequestReader
    from pytriton.server.options.server_options import Limits


class Verdict(enum.Enum):
    """What is to be done about what a client sends, or does not send."""

    NOTHING = "nothing is due from the client"
    WAIT = "the client has time left"
    REFUSE = "part of a request came, and the rest did not follow"
    END = "the client connected and never began a request"


class Patience:
    """Watches one client in both directions; asked every now and then."""

    __slots__ = ("_idle_since", "_is_new", "_limits", "_paced", "_reading", "_unsent", "_writing")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._reading = Pace()
        self._writing = Pace()
        self._paced: tuple[RequestHead | None, bool] = (None, True)  # what `_reading` is about
        self._unsent = 0
        self._is_new = True  # no request began yet
        self._idle_since = 0.0

    def begin(self, now: float) -> None:
        """A client connected."""
        self._idle_since = now
        self._reading.restart(now)

    # Reading

    def on_part(self, reader: RequestReader, nbytes: int, now: float) -> None:
        """Part of a request came: the rest has to follow."""
        self._is_new = False
        head, is_in_head = reader.head, reader.is_in_head
        paced_head, was_in_head = self._paced
        if head is not paced_head or is_in_head is not was_in_head:
            self._paced = (head, is_in_head)
            self._reading.restart(now)
        elif not is_in_head:  # more of a head wins no time
            self._reading.advance(nbytes, now)

    def restart_reading(self, now: float) -> None:
        """The client could not send, or need not have sent, until now."""
        self._reading.restart(now)

    def reading_stalled_s(self, now: float) -> float:
        """For how long the client has been too slow."""
        return self._reading.stalled_s(now)

    def allowed_s(self, reader: RequestReader) -> float:
        """How long the client may be too slow with what is due."""
        limits = self._limits
        is_body = reader.is_mid_request and not reader.is_in_head
        return limits.body_stall_timeout_s if is_body else limits.header_timeout_s

    def judge_reading(self, reader: RequestReader, now: float, *, was_used: bool) -> Verdict:
        """Whether what came so far is too little."""
        if reader.is_over:
            return Verdict.NOTHING
        if not reader.is_mid_request:
            if not self._is_new or was_used:
                return Verdict.NOTHING  # between two requests: `is_idle` decides
            late = Verdict.END
        else:
            late = Verdict.REFUSE
        return late if self._reading.stalled_s(now) > self.allowed_s(reader) else Verdict.WAIT

    # Writing

    def begin_writing(self, unsent: int, now: float) -> None:
        """So many bytes wait for the client to take them."""
        self._unsent = unsent
        self._writing.restart(now)

    def takes_too_long(self, unsent: int, now: float) -> bool:
        """Whether the client has stopped to take what waits for it."""
        self._writing.advance(max(0, self._unsent - unsent), now)
        self._unsent = unsent
        return self._writing.stalled_s(now) > self._limits.write_stall_timeout_s

    # Between requests

    def is_idle(self, now: float, *, is_in_use: bool) -> bool:
        """Whether nothing was asked for too long; `is_in_use` since the last time, or right now."""
        if is_in_use:
            self._is_new = False
            self._idle_since = now
        return now - self._idle_since > self._limits.http_idle_timeout_s > 0
