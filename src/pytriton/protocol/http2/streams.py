# SPDX-License-Identifier: Apache-2.0
"""The streams of a connection: the open ones, and a bounded number of those that were reset."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from pytriton.protocol.http2.states import StreamState

if TYPE_CHECKING:
    from collections.abc import Iterable

_CLOSED = StreamState.CLOSED  # looking up an enum's member takes 0.16 us on Python 3.11


class Stream(msgspec.Struct, gc=False, eq=False):
    """One open stream. Every call makes one: 0.2 us as a msgspec record, 0.45 us as a class."""

    id: int
    state: StreamState
    receive_window: int  # how much the peer may send
    send_window: int  # how much we may send; negative if the peer shrank its windows
    body_left: int | None = None  # missing bytes of the announced content-length
    unacknowledged: int = 0  # bytes delivered, but not passed to `Connection.acknowledge`
    credit: int = 0  # bytes acknowledged, but not yet announced to the peer
    buffer: memoryview | None = None  # the memory for the next data

    is_head_sent: bool = False
    queue: deque[memoryview] | None = None  # data that waits for a window or for `take_output`
    queued_bytes: int = 0
    trailers: bytes | None = None  # header block to send once the queue is empty
    is_end_queued: bool = False  # no more data may be queued
    is_scheduled: bool = False  # it is in `Outbox.turns`
    is_paused: bool = False  # the writer was asked to pause

    sent_bytes: int = 0
    stall_mark_bytes: int = 0  # `sent_bytes` at the last progress
    stall_mark_ns: int = 0  # the time of the last progress; 0 if nothing is queued


class StreamTable:
    """Streams by id. Unknown ids are closed, but idle if above the last one or not a client's."""

    __slots__ = ("_max_resets", "_resets", "last_id", "open")

    def __init__(self, max_resets: int) -> None:
        self.open: dict[int, Stream] = {}
        self.last_id = 0  # highest id the peer has used
        self._resets: dict[int, StreamState] = {}
        self._max_resets = max_resets

    def state_of(self, stream_id: int) -> StreamState:
        """Returns the state of any stream."""
        stream = self.open.get(stream_id)
        if stream is not None:
            return stream.state
        if stream_id > self.last_id or not stream_id & 1:
            return StreamState.IDLE
        return self._resets.get(stream_id, StreamState.CLOSED)

    def close(self, stream_id: int, state: StreamState) -> Stream | None:
        """Remove a stream and remember whether it was reset; returns it if it was open."""
        stream = self.open.pop(stream_id, None)
        if state is not _CLOSED:
            self._resets[stream_id] = state
            if len(self._resets) > self._max_resets:
                del self._resets[next(iter(self._resets))]
        return stream

    def waiting(self) -> Iterable[Stream]:
        """Returns the open streams that have data queued."""
        return (stream for stream in self.open.values() if stream.queue)
