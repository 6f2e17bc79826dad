# SPDX-License-Identifier: Apache-2.0
"""What a peer may make one connection do or hold, in one place."""

from __future__ import annotations

from dataclasses import dataclass

_KIB = 1 << 10
_MIB = 1 << 20
_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one connection; the defaults suit a server of tensors, the ping policy is gRPC's.

    Attributes:
        max_concurrent_streams: Streams open at once; a further one is refused.
        stream_window_bytes: What a peer may send on a stream before it is acknowledged.
        connection_window_bytes: The same for all streams together: bounds unread data in memory.
        max_frame_bytes: The largest DATA frame; other frames end at `max_header_block_bytes`.
        max_header_block_bytes: A header block as sent, all its CONTINUATION frames included.
        max_header_list_bytes: A header list as decoded, counted as RFC 7541, section 4.1 does.
        max_continuations: CONTINUATION frames of one header block.
        cached_header_blocks: Header blocks whose decoded form is kept.
        reset_burst: Streams that may be reset by or because of the peer at once ...
        resets_per_second: ... and how quickly that allowance comes back.
        idle_frame_burst: Frames that do nothing (empty DATA, PRIORITY, unknown ones) at once ...
        idle_frames_per_second: ... and how quickly that allowance comes back.
        max_pending_replies: Acknowledgements and resets that wait for the peer to read them.
        max_closed_streams: Streams whose reset is remembered, to tell late frames from wrong ones.
        high_water_bytes: A stream with this much queued asks its writer to pause.
        low_water_bytes: A paused writer resumes once no more than this is queued.
        max_queued_bytes: A stream with this much queued takes no more data at all.
        max_waiting_frame_bytes: Finished frames that wait before a peer is not read on ...
        max_waiting_data_bytes: ... and queued data of all streams that does.
        max_stall_ns: How long a stream with queued data may make no progress.
        min_progress_bytes: What counts as progress; a window opened byte by byte does not.
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
    reset_burst: int = 1000
    resets_per_second: int = 200
    idle_frame_burst: int = 10_000
    idle_frames_per_second: int = 1000
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
