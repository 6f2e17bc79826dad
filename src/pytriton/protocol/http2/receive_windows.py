# SPDX-License-Identifier: Apache-2.0
"""Flow control of received data: windows shrink as data comes and grow as it is consumed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from pytriton.protocol.http2 import frames
from pytriton.protocol.http2.errors import (
    ConnectionViolation,
    Http2ErrorCode,
    LocalProtocolError,
    StreamViolation,
)
from pytriton.protocol.http2.streams import StreamState

if TYPE_CHECKING:
    from pytriton.protocol.http2.limits import Http2Limits
    from pytriton.protocol.http2.outbox import Outbox
    from pytriton.protocol.http2.streams import Stream

_RECEIVING = (StreamState.OPEN, StreamState.HALF_CLOSED_LOCAL)


class ReceiveWindows:
    """The receive windows of a connection and its streams.

    WINDOW_UPDATE is sent when half a window has been consumed, so that few of them are needed.
    """

    __slots__ = ("_connection_step", "_credit", "_outbox", "_stream_step", "_window")

    def __init__(self, limits: Http2Limits, outbox: Outbox) -> None:
        self._outbox = outbox
        self._window = max(limits.connection_window_bytes, frames.DEFAULT_WINDOW)
        self._connection_step = self._window // 2
        self._stream_step = max(limits.stream_window_bytes // 2, 1)
        self._credit = 0

    def take(self, stream: Stream, size: int, padding: int) -> None:
        """Count received DATA of an open stream; its padding is released at once."""
        total = size + padding
        stream.unacknowledged += total
        stream.receive_window -= total
        self._window -= total
        if self._window < 0:
            self._raise_overrun()
        if stream.receive_window < 0:
            message = f"the peer sent {-stream.receive_window} bytes more than the window allows"
            raise StreamViolation(stream.id, Http2ErrorCode.FLOW_CONTROL_ERROR, message)
        if padding:
            self.acknowledge(stream, padding)

    def is_open(self, stream: Stream) -> bool:
        """Returns whether the peer may send more on a stream."""
        return stream.state in _RECEIVING and stream.receive_window > 0 and self._window > 0

    def allows(self, stream: Stream, size: int) -> bool:
        """Returns whether the peer may send `size` bytes on a stream."""
        return size <= stream.receive_window and size <= self._window

    def take_whole(self, size: int) -> bool:
        """Count the only DATA of a new stream; returns False, and counts nothing, if too much."""
        if size > self._window:
            return False
        self._window -= size
        return True

    def take_unread(self, size: int) -> None:
        """Count received DATA that belongs to no open stream, and release it at once."""
        self._window -= size
        if self._window < 0:
            self._raise_overrun()
        self.discard(size)

    def acknowledge(self, stream: Stream, size: int) -> None:
        """Release `size` consumed bytes of a stream."""
        if not 0 <= size <= stream.unacknowledged:
            message = f"expected to acknowledge up to {stream.unacknowledged} bytes, got {size}"
            raise LocalProtocolError(message)
        stream.unacknowledged -= size
        stream.credit += size
        if stream.credit >= self._stream_step and stream.state in _RECEIVING:
            self._outbox.add(frames.window_update(stream.id, stream.credit))
            stream.receive_window += stream.credit
            stream.credit = 0
        self.discard(size)

    def discard(self, size: int) -> None:
        """Release `size` bytes of the connection's window."""
        self._credit += size
        if self._credit >= self._connection_step:
            self._outbox.add(frames.window_update(0, self._credit))
            self._window += self._credit
            self._credit = 0

    def _raise_overrun(self) -> NoReturn:
        message = f"the peer sent {-self._window} bytes more than the connection window allows"
        raise ConnectionViolation(Http2ErrorCode.FLOW_CONTROL_ERROR, message)
