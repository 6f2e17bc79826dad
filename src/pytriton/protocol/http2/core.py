# SPDX-License-Identifier: Apache-2.0
"""The state that both directions of a connection share: how streams are closed, and windows.

Both directions may close a stream, so this is where it happens. Nothing here does I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from pytriton.protocol.http2 import frames
from pytriton.protocol.http2.events import ConnectionTerminated, StreamReset
from pytriton.protocol.http2.frames import (
    ConnectionViolation,
    Http2ErrorCode,
    LocalProtocolError,
    PeerSettings,
    StreamViolation,
)
from pytriton.protocol.http2.limits import STREAM_RESET, WorkBudget
from pytriton.protocol.http2.outbox import Outbox
from pytriton.protocol.http2.streams import StreamInput, StreamState, StreamTable, next_state

if TYPE_CHECKING:
    from pytriton.protocol.http2.events import Event
    from pytriton.protocol.http2.limits import Cost, Http2Limits
    from pytriton.protocol.http2.outbox import Buffer
    from pytriton.protocol.http2.streams import Stream

_RECEIVING = (StreamState.OPEN, StreamState.HALF_CLOSED_LOCAL)

SHUTDOWN_PING = b"shutdown"
_MAX_DEBUG_BYTES = 256
# Looking up an enum's member takes 0.16 us on Python 3.11, and every call needs these.
_SEND_END = StreamInput.SEND_END
_HALF_CLOSED_LOCAL = StreamState.HALF_CLOSED_LOCAL
_HALF_CLOSED_REMOTE = StreamState.HALF_CLOSED_REMOTE


class ConnectionCore:
    """The state of one connection."""

    __slots__ = (
        "_budget",
        "events",
        "is_refusing",
        "is_shutting_down",
        "is_terminated",
        "limits",
        "now_ns",
        "outbox",
        "peer",
        "receive_windows",
        "streams",
    )

    def __init__(self, limits: Http2Limits) -> None:
        self.limits = limits
        self.streams = StreamTable(limits.max_closed_streams)
        self.outbox = Outbox(limits)
        self.receive_windows = ReceiveWindows(limits, self.outbox)
        self.peer = PeerSettings()
        self._budget = WorkBudget(limits, self.outbox)
        self.events: list[Event] = []
        self.now_ns = 0
        self.is_shutting_down = False  # the first GOAWAY of a shutdown was sent
        self.is_refusing = False  # its last GOAWAY was sent
        self.is_terminated = False

    def close(self, stream_id: int, state: StreamState) -> None:
        """Remove a stream and release its bytes that were never acknowledged."""
        stream = self.streams.close(stream_id, state)
        if stream is None:
            return
        if stream.queue:
            self.outbox.drop(stream)
        if stream.unacknowledged:
            # Nobody will acknowledge these any more. Without this, the window of the connection
            # would shrink with each reset until no stream could send.
            self.receive_windows.discard(stream.unacknowledged)
            stream.unacknowledged = 0

    def end_sent(self, stream: Stream, output: list[Buffer] | None = None) -> None:
        """Close our half of a stream after END_STREAM.

        A client that still sends is asked to stop with RST_STREAM, because its data will not be
        read. That frame is added to `output` if END_STREAM is in there, too.
        """
        if stream.state is _HALF_CLOSED_REMOTE and not stream.queue:
            # Nearly always the client has sent everything: the rest would take 0.3 us more.
            self.streams.open.pop(stream.id, None)
            if stream.unacknowledged:
                self.receive_windows.discard(stream.unacknowledged)
                stream.unacknowledged = 0
            return
        # RFC 9113, 8.1: a server may end its response before the request has ended. It then resets
        # the stream with NO_ERROR, and the client must not discard the response.
        state = next_state(stream.id, stream.state, _SEND_END)
        if state is _HALF_CLOSED_LOCAL:
            frame = frames.rst_stream(stream.id, Http2ErrorCode.NO_ERROR)
            if output is None:
                self.outbox.add(frame)
            else:
                output.append(frame)
            state = StreamState.RESET_BY_US
        self.close(stream.id, state)

    def reset_by_peer(self, stream: Stream, code: int) -> None:
        """Close an open stream that the peer reset."""
        self.charge(STREAM_RESET)
        self.close(stream.id, StreamState.RESET_BY_PEER)
        message = f"the client reset the stream with code {code}"
        self.events.append(StreamReset(stream.id, code, by_peer=True, message=message))

    def reset_violated(self, violation: StreamViolation) -> None:
        """Reset a stream because of a violation by the peer; it counts as a reset by the peer.

        Otherwise a peer that never sends RST_STREAM could make us start and cancel work forever.
        """
        stream_id = violation.stream_id
        # There is no stream to reset: RST_STREAM on an idle stream is a violation by us (6.4).
        if self.streams.state_of(stream_id) is StreamState.IDLE:
            raise ConnectionViolation(violation.code, violation.message)
        self.charge(STREAM_RESET)
        self.outbox.reply(frames.rst_stream(stream_id, violation.code))
        was_open = stream_id in self.streams.open
        self.close(stream_id, StreamState.RESET_BY_US)
        if was_open:
            code, message = violation.code, violation.message
            self.events.append(StreamReset(stream_id, code, by_peer=False, message=message))

    def terminate(self, code: Http2ErrorCode, message: str) -> None:
        """End the connection with a GOAWAY that contains `message`, for the peer's log.

        Streams stay open so that the owner can end them with a status, but queued data is dropped.
        """
        if self.is_terminated:
            return
        self.is_terminated = True
        # RFC 9113, 6.8: debug data is not interpreted, but clients log it.
        debug = message.encode("utf-8", "replace")[:_MAX_DEBUG_BYTES]
        self.outbox.add(frames.goaway(self.streams.last_id, code, debug))
        for stream in list(self.streams.open.values()):
            stream.buffer = None
            if stream.queue:
                self.outbox.drop(stream)
            if stream.is_end_queued:
                self.streams.close(stream.id, StreamState.CLOSED)
        self.events.append(ConnectionTerminated(code, message))

    def begin_shutdown(self) -> None:
        """Send a GOAWAY that allows all streams, and a ping that shows when the client read it."""
        if self.is_shutting_down or self.is_terminated:
            return
        self.is_shutting_down = True
        # RFC 9113, 6.8: the first GOAWAY names the largest id, because streams may be on their way
        # that this side has not seen. The answer to the ping proves that the client has read it.
        self.outbox.add(frames.goaway(frames.MAX_STREAM_ID, Http2ErrorCode.NO_ERROR))
        self.outbox.add(frames.ping(SHUTDOWN_PING))

    def finish_shutdown(self) -> None:
        """Send a GOAWAY with the last stream that is served, and refuse later ones."""
        if self.is_refusing or self.is_terminated:
            return
        self.is_shutting_down = True
        self.is_refusing = True
        self.outbox.add(frames.goaway(self.streams.last_id, Http2ErrorCode.NO_ERROR))

    def charge(self, cost: Cost, times: int = 1) -> None:
        """Let the peer pay for the work that it causes; ConnectionViolation if it cannot."""
        self._budget.charge(cost, times, self.now_ns)


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
        # RFC 9113, 6.9.1: padding counts like data in both windows.
        total = size + padding
        stream.unacknowledged += total
        stream.receive_window -= total
        self._window -= total
        # First the window of the connection: its overrun ends more than this stream.
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
        # A stream that the client has ended gets no WINDOW_UPDATE: it would be a wasted frame.
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
