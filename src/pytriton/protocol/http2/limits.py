# SPDX-License-Identifier: Apache-2.0
"""All limits on the work and the memory that a peer can cause on one connection."""

from __future__ import annotations

import msgspec

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
