# SPDX-License-Identifier: Apache-2.0
"""The price of the work that a peer causes, the budget that pays it, and gRPC's limit on pings.

Requests and their bodies are free: what they cost is what the server is for, and the limits on
streams, windows and messages bound it. Everything else has a price in the table below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pytriton.protocol.http2.errors import ConnectionViolation, Http2ErrorCode

if TYPE_CHECKING:
    from pytriton.protocol.http2.limits import Http2Limits
    from pytriton.protocol.http2.outbox import Outbox

_SECOND_NS = 1_000_000_000


class Cost(NamedTuple):
    """The price of one kind of work; a unit is about two microseconds."""

    name: str
    units: int


WINDOW_UPDATE: Final = Cost("WINDOW_UPDATE", 1)
PING: Final = Cost("PING", 1)
PRIORITY: Final = Cost("PRIORITY", 1)
GOAWAY: Final = Cost("GOAWAY", 1)
CONTINUATION: Final = Cost("CONTINUATION", 1)
UNKNOWN_FRAME: Final = Cost("a frame of an unknown type", 1)
EMPTY_DATA: Final = Cost("DATA without data", 1)
UNREAD_DATA: Final = Cost("little DATA on a stream that was reset", 1)
UNREAD_HEADERS: Final = Cost("HEADERS on a stream that was reset", 1)  # for each 16 bytes
LATE_RESET: Final = Cost("RST_STREAM on a closed stream", 1)
SETTINGS: Final = Cost("SETTINGS", 1)  # for the frame and for each entry
WINDOWS_RESIZED: Final = Cost("INITIAL_WINDOW_SIZE", 1)  # for each 8 streams that are open
STREAM_REFUSED: Final = Cost("a stream above the limit", 4)
STREAM_RESET: Final = Cost("a reset of a stream", 10)  # a call was started, and is cancelled

UNREAD_HEADER_BYTES: Final = 16
RESIZED_STREAMS: Final = 8
# More data than this pays for its frame: streams of small messages may be reset while many of
# these are on the way.
LITTLE_DATA_BYTES: Final = 64

# What the peer regains for each part of a response, which it may confirm with a WINDOW_UPDATE for
# the stream and one for the connection, and for each byte: small windows need many of them. A part
# that ended where the window did gives only the latter, or windows of one byte would pay for
# themselves.
_UNITS_PER_PART = 4
_UNITS_PER_BYTE = 1 / 64


class WorkBudget:
    """What a peer may still cause: it shrinks by costs, and grows with time and with responses."""

    __slots__ = ("_burst", "_bytes", "_left", "_outbox", "_parts", "_per_second", "_updated_ns")

    def __init__(self, limits: Http2Limits, outbox: Outbox) -> None:
        self._outbox = outbox
        self._burst = float(limits.work_burst)
        self._per_second = limits.work_per_second
        self._left = self._burst
        self._updated_ns = 0
        self._parts = 0
        self._bytes = 0

    def charge(self, cost: Cost, times: int, now_ns: int) -> None:
        """Pay for some work.

        Raises:
            ConnectionViolation: It costs more than is left.
        """
        # What was sent is computed from counters that the outbox has anyway, so that sending costs
        # nothing more.
        outbox = self._outbox
        parts = outbox.activity - outbox.cut_turns
        sent_bytes = outbox.granted_bytes - outbox.window
        gained = (
            max(0, now_ns - self._updated_ns) * self._per_second / _SECOND_NS
            + (parts - self._parts) * _UNITS_PER_PART
            + (sent_bytes - self._bytes) * _UNITS_PER_BYTE
        )
        self._updated_ns, self._parts, self._bytes = now_ns, parts, sent_bytes
        self._left = min(self._burst, self._left + gained) - cost.units * times
        if self._left < 0:
            message = f"expected less work beside requests and responses, got {cost.name} too often"
            raise ConnectionViolation(Http2ErrorCode.ENHANCE_YOUR_CALM, message)


class PingPolicy:
    """gRPC's limit on pings that come too early; sending HEADERS or DATA restarts the count."""

    __slots__ = ("_activity", "_last_ns", "_limits", "_strikes")

    def __init__(self, limits: Http2Limits) -> None:
        self._limits = limits
        self._strikes = 0
        self._last_ns: int | None = None
        self._activity = 0

    def allows(self, now_ns: int, activity: int, *, is_idle: bool) -> bool:
        """Count a ping of the peer; False if it exceeds the limit.

        Args:
            now_ns: When the ping was received.
            activity: A counter of the HEADERS and DATA sent; a new value restarts the count.
            is_idle: Whether no stream is open.
        """
        if activity != self._activity:
            self._activity = activity
            self._strikes = 0
            self._last_ns = None
        limits = self._limits
        interval_ns = limits.min_idle_ping_interval_ns if is_idle else limits.min_ping_interval_ns
        is_early = self._last_ns is not None and now_ns - self._last_ns < interval_ns
        self._last_ns = now_ns
        self._strikes += is_early
        return self._strikes <= limits.max_ping_strikes
