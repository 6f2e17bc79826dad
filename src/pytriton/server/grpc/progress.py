# SPDX-License-Identifier: Apache-2.0
"""Whether a gRPC client stands still: with its answers, a half-sent frame or a half-sent request.

Decides only, and has no clock. It counts from the first time that it was asked about something.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.server.api.pace import Pace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytriton.server.options.server_options import Limits
    from pytriton.wire.http2 import IncompleteInput

_SECOND_NS = 1_000_000_000


class Progress:
    """Watches one connection; asked every now and then."""

    __slots__ = ("_calls", "_frames", "_limits", "_unsent_bytes", "_writing")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._unsent_bytes: int | None = None  # None while the client takes what comes
        self._writing = Pace()
        self._frames = _Ending(limits)
        self._calls: dict[int, _Ending] = {}  # by stream

    def takes_nothing(self, now_ns: int, unsent_bytes: int | None) -> bool:
        """Whether the client has taken nothing of what is written for too long.

        Args:
            now_ns: The time.
            unsent_bytes: What the transport holds; None while it takes more.
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

    def is_stuck(self, now_ns: int, incomplete: IncompleteInput | None) -> bool:
        """Whether the client has not ended for too long what it began on its connection."""
        return self._frames.is_overdue(now_ns / _SECOND_NS, incomplete)

    def stuck_streams(self, now_ns: int, incomplete: Mapping[int, IncompleteInput]) -> list[int]:
        """The streams among those with an incomplete request where it is so for too long."""
        now_s = now_ns / _SECOND_NS
        last, self._calls = self._calls, {}
        stuck = []
        for stream_id, part in incomplete.items():
            ending = self._calls[stream_id] = last.get(stream_id) or _Ending(self._limits)
            if ending.is_overdue(now_s, part):
                stuck.append(stream_id)
        return stuck


class _Ending:
    """How long the end of something has been waited for."""

    __slots__ = ("_last", "_limits", "_pace")

    def __init__(self, limits: Limits) -> None:
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
        if not incomplete.data_left:  # more of a head wins no time
            return self._pace.stalled_s(now_s) > self._limits.header_timeout_s
        self._pace.advance(max(0, last.data_left - incomplete.data_left), now_s)
        return self._pace.stalled_s(now_s) > self._limits.body_stall_timeout_s
