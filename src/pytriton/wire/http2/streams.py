# SPDX-License-Identifier: Apache-2.0
"""The streams of a connection: the open ones, and a bounded memory of those that were reset."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from pytriton.wire.http2.states import StreamState

if TYPE_CHECKING:
    from collections.abc import Iterable

_CLOSED = StreamState.CLOSED  # naming an enum's member costs 0.16 us on Python 3.11


class Stream(msgspec.Struct, gc=False, eq=False):
    """One open stream, made for every call: 0.2 us as a msgspec record, 0.45 us as a class."""

    id: int
    state: StreamState
    receive_window: int  # what the peer may still send
    send_window: int  # what we may still send; negative after the peer shrank its windows
    body_left: int | None = None  # of the announced content-length
    unacknowledged: int = 0  # bytes delivered, not yet given back by `Connection.acknowledge`
    credit: int = 0  # bytes given back, not yet announced to the peer
    place: memoryview | None = None  # where the data that comes next is to be put

    is_head_sent: bool = False
    queue: deque[memoryview] | None = None  # data that waits for a window or for `take_output`
    queued_bytes: int = 0
    trailers: bytes | None = None  # header block to send once the queue is empty
    is_end_queued: bool = False  # nothing may be added to the queue
    is_scheduled: bool = False  # waits for its turn in the outbox
    is_paused: bool = False  # the writer was asked to wait

    sent_bytes: int = 0
    stall_mark_bytes: int = 0  # `sent_bytes` when progress was last seen ...
    stall_mark_ns: int = 0  # ... and when that was; 0 while nothing waits


class StreamTable:
    """Streams by id. Ids beyond the last one or not a client's are idle, forgotten ones closed."""

    __slots__ = ("_max_resets", "_resets", "last_id", "open")

    def __init__(self, max_resets: int) -> None:
        self.open: dict[int, Stream] = {}
        self.last_id = 0  # highest id the peer has used
        self._resets: dict[int, StreamState] = {}
        self._max_resets = max_resets

    def state_of(self, stream_id: int) -> StreamState:
        """The state of any stream."""
        stream = self.open.get(stream_id)
        if stream is not None:
            return stream.state
        if stream_id > self.last_id or not stream_id & 1:
            return StreamState.IDLE
        return self._resets.get(stream_id, StreamState.CLOSED)

    def close(self, stream_id: int, state: StreamState) -> Stream | None:
        """Forget a stream, but not that it was reset; returns it where it was open."""
        stream = self.open.pop(stream_id, None)
        if state is not _CLOSED:
            self._resets[stream_id] = state
            if len(self._resets) > self._max_resets:
                del self._resets[next(iter(self._resets))]
        return stream

    def waiting(self) -> Iterable[Stream]:
        """The open streams that have data queued."""
        return (stream for stream in self.open.values() if stream.queue)
