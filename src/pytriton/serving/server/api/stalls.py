# SPDX-License-Identifier: Apache-2.0
"""Decides which clients of HTTP/2 stall, whatever their requests are.

Nothing here has a clock: callers pass the time. Stalls are timed from the first check that noticed
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pytriton.serving.server.api.pace import Pace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytriton.protocol.http2 import IncompleteInput

_SECOND_NS = 1_000_000_000


class StallLimits(Protocol):
    """How long a client may make no progress."""

    @property
    def header_timeout_s(self) -> float:
        """For all of a head, or of another small part."""

    @property
    def body_stall_timeout_s(self) -> float:
        """While a body is received."""

    @property
    def write_stall_timeout_s(self) -> float:
        """While a response is sent."""


class ClientStalls:
    """Watches one connection; its methods are called periodically."""

    __slots__ = ("_calls", "_connection_input", "_limits", "_unsent_bytes", "_writing")

    def __init__(self, limits: StallLimits) -> None:
        self._limits = limits
        self._unsent_bytes: int | None = None  # None while the transport accepts output
        self._writing = Pace()
        self._connection_input = _InputTimer(limits)
        self._calls: dict[int, _InputTimer] = {}  # by stream

    def is_write_stalled(self, now_ns: int, unsent_bytes: int | None) -> bool:
        """Returns whether the client has read no output for too long.

        `unsent_bytes` is the size of the transport's write buffer; None if writing is not paused.
        """
        if unsent_bytes is None:
            self._unsent_bytes = None
            return False
        now_s = now_ns / _SECOND_NS
        if self._unsent_bytes is None:
            self._writing.restart(now_s)
        else:
            self._writing.advance(max(0, self._unsent_bytes - unsent_bytes), now_s)
        self._unsent_bytes = unsent_bytes
        return self._writing.stalled_s(now_s) > self._limits.write_stall_timeout_s

    def is_input_stalled(self, now_ns: int, incomplete: IncompleteInput | None) -> bool:
        """Returns whether a preface, header block or frame has been incomplete for too long."""
        return self._connection_input.is_overdue(now_ns / _SECOND_NS, incomplete)

    def stalled_requests(self, now_ns: int, incomplete: Mapping[int, IncompleteInput]) -> list[int]:
        """Returns the streams, of those with an incomplete request, that have been so too long."""
        now_s = now_ns / _SECOND_NS
        last, self._calls = self._calls, {}
        stalled = []
        for stream_id, part in incomplete.items():
            timer = self._calls[stream_id] = last.get(stream_id) or _InputTimer(self._limits)
            if timer.is_overdue(now_s, part):
                stalled.append(stream_id)
        return stalled


class _InputTimer:
    """Times how long the rest of an incomplete input takes."""

    __slots__ = ("_last", "_limits", "_pace")

    def __init__(self, limits: StallLimits) -> None:
        self._limits = limits
        self._last: IncompleteInput | None = None
        self._pace = Pace()

    def is_overdue(self, now_s: float, incomplete: IncompleteInput | None) -> bool:
        last, self._last = self._last, incomplete
        if incomplete is None:
            return False
        if last is None or incomplete[:2] != last[:2]:
            self._pace.restart(now_s)
            return False
        if not incomplete.data_left:  # the limit for heads is a total time, whatever is received
            return self._pace.stalled_s(now_s) > self._limits.header_timeout_s
        self._pace.advance(max(0, last.data_left - incomplete.data_left), now_s)
        return self._pace.stalled_s(now_s) > self._limits.body_stall_timeout_s
