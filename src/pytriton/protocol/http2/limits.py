# SPDX-License-Identifier: Apache-2.0
"""All limits on the work and the memory that a peer can cause on one connection.

Requests and their bodies are free: what they cost is what the server is for, and the limits on
streams, windows and messages bound it. Every other frame has a price in the table of costs, which
a budget pays that grows with time and with responses. Pings have a limit of gRPC's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from pytriton.protocol.http2.frames import ConnectionViolation, Http2ErrorCode

if TYPE_CHECKING:
    from pytriton.protocol.http2.outbox import Outbox

_KIB = 1 << 10
_MIB = 1 << 20
_SECOND_NS = 1_000_000_000


class Http2Limits(msgspec.Struct, frozen=True):
    """Limits of one connection; the defaults suit tensors, and the ping policy is gRPC's.

    Attributes:
        max_concurrent_streams: Open streams; further ones are refused.
        stream_window_bytes: How much a peer may send on a stream before it is acknowledged.
        connection_window_bytes: The same for all streams together: bounds unread data in memory.
        max_frame_bytes: The largest DATA frame; the limit for other frames is
            `max_header_block_bytes`, if that is smaller.
        max_header_block_bytes: An encoded header block, including its CONTINUATION frames.
        max_header_list_bytes: A decoded header list, counted as in RFC 7541, section 4.1.
        max_continuations: CONTINUATION frames of one header block.
        cached_header_blocks: Header blocks whose decoded form is cached.
        max_settings: Entries of one SETTINGS frame.
        work_burst: The units of work (see `work`) that the peer may cause at once,
        work_per_second: and those that it regains with time; responses give it more.
        max_pending_replies: Acknowledgements and resets that wait to be written.
        max_closed_streams: Closed streams whose reset is remembered, so that late frames can be
            told from invalid ones.
        high_water_bytes: The writer of a stream is asked to pause if this much is queued.
        low_water_bytes: A paused writer resumes once no more than this is queued.
        max_queued_bytes: A stream with this much queued accepts no more data.
        max_waiting_frame_bytes: Reading pauses if finished frames of this size wait to be written,
        max_waiting_data_bytes: or if all streams together have this much data queued.
        max_stall_ns: How long a stream with queued data may make no progress.
        min_progress_bytes: The smallest progress; a window that opens byte by byte is none.
        min_ping_interval_ns: Time between pings while streams are open and no data is sent.
        min_idle_ping_interval_ns: The same while no stream is open.
        max_ping_strikes: Pings that may come too early.
    """

    max_concurrent_streams: int = 2048
    stream_window_bytes: int = 16 * _MIB
    connection_window_bytes: int = 256 * _MIB
    max_frame_bytes: int = _MIB
    max_header_block_bytes: int = 64 * _KIB
    max_header_list_bytes: int = 64 * _KIB
    max_continuations: int = 16
    cached_header_blocks: int = 64
    max_settings: int = 32
    work_burst: int = 10_000
    work_per_second: int = 2000
    max_pending_replies: int = 1000
    max_closed_streams: int = 4096
    high_water_bytes: int = _MIB
    low_water_bytes: int = 256 * _KIB
    max_queued_bytes: int = 64 * _MIB
    max_waiting_frame_bytes: int = _MIB
    max_waiting_data_bytes: int = 64 * _MIB
    max_stall_ns: int = 60 * _SECOND_NS
    min_progress_bytes: int = 16 * _KIB
    min_ping_interval_ns: int = 300 * _SECOND_NS
    min_idle_ping_interval_ns: int = 7200 * _SECOND_NS
    max_ping_strikes: int = 2


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
# Opening and resetting streams in a loop ("rapid reset", CVE-2023-44487) starts calls that are
# cancelled at once, so resets are the most expensive.
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
    """The work a peer may still cause: costs shrink it, time and responses make it grow."""

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
        """Pay for some work; ConnectionViolation if it costs more than is left."""
        # The floods of CVE-2019-9512 to 9518 (pings, settings, resets, empty frames) end here.
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
        """Count a ping of the peer; False if it exceeds the limit. New `activity` restarts it."""
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
