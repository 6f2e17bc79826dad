# SPDX-License-Identifier: Apache-2.0
"""The server's side of an HTTP/2 connection.

Nothing here waits, reads a clock or has callbacks: the owner passes the time and does the I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytriton.protocol.http2 import frames
from pytriton.protocol.http2.core import SHUTDOWN_PING, ConnectionCore
from pytriton.protocol.http2.events import WriteResumed
from pytriton.protocol.http2.frames import (
    ConnectionViolation,
    Http2ErrorCode,
    LocalProtocolError,
    server_preface,
)
from pytriton.protocol.http2.limits import Http2Limits
from pytriton.protocol.http2.receiving import Receiver
from pytriton.protocol.http2.streams import StreamInput, StreamState, next_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytriton.protocol.http2.events import Event
    from pytriton.protocol.http2.frames import BodyFrames, PeerSettings, ResponseFrames
    from pytriton.protocol.http2.outbox import Buffer
    from pytriton.protocol.http2.receiving import IncompleteInput
    from pytriton.protocol.http2.streams import Stream

_DEFAULT_LIMITS = Http2Limits()
# Looking up an enum's member takes 0.16 us on Python 3.11.
_SEND_HEADERS, _SEND_DATA = StreamInput.SEND_HEADERS, StreamInput.SEND_DATA


class Http2Connection:
    """One client's connection.

    The owner calls `receive` with the bytes that it read, handles the events, and after any call
    writes the buffers that `take_output` returns. Header blocks are bytes from
    `encode_header_block`. Sending on a closed stream does nothing, because the client may reset it
    at any time; sending frames that HTTP/2 forbids raises `LocalProtocolError`.
    """

    __slots__ = ("_buffered", "_core", "_receiver", "outbox")

    def __init__(self, limits: Http2Limits = _DEFAULT_LIMITS) -> None:
        self._core = ConnectionCore(limits)
        self.outbox = self._core.outbox  # only to be read: every write of output asks it
        self._buffered: set[int] = set()  # streams that have a buffer, or had one
        self._receiver = Receiver(self._core)
        self._core.outbox.add(server_preface(limits))

    def __repr__(self) -> str:
        core = self._core
        state = "terminated" if core.is_terminated else "open"
        return f"<Connection {state}, {self.open_streams} streams, last {core.streams.last_id}>"

    @property
    def peer_settings(self) -> PeerSettings:
        return self._core.peer

    def forget_memos(self) -> None:
        """Forget what the layer above has kept in the heads of requests."""
        self._receiver.decoder.forget_memos()

    def watched(self, stream_id: int) -> Any:
        """Returns what a subclass that observes calls notes about an open stream."""
        return None

    @property
    def open_streams(self) -> int:
        return len(self._core.streams.open)

    @property
    def activity(self) -> int:
        """A counter that grows whenever HEADERS or DATA are sent."""
        return self._core.outbox.activity

    @property
    def has_output(self) -> bool:
        """Whether `take_output` would return anything."""
        outbox = self._core.outbox
        return bool(outbox.frames or (outbox.turns and outbox.window > 0))

    @property
    def is_output_full(self) -> bool:
        """Whether so much output waits that the owner should stop reading from the client.

        It should do so only while the transport accepts no output, either: the client's
        WINDOW_UPDATE frames have to be read before queued data can be sent.
        """
        outbox, limits = self._core.outbox, self._core.limits
        return (
            outbox.frame_bytes >= limits.max_waiting_frame_bytes
            or outbox.queued_bytes >= limits.max_waiting_data_bytes
        )

    @property
    def is_terminated(self) -> bool:
        """Whether we ended the connection because of a violation, or with `abort`."""
        return self._core.is_terminated

    @property
    def should_close(self) -> bool:
        """Whether the transport has to be closed once the output is written."""
        core = self._core
        return core.is_terminated or (core.is_refusing and not core.streams.open)

    def is_open(self, stream_id: int) -> bool:
        """Returns whether a response on this stream can still reach the client."""
        return stream_id in self._core.streams.open

    def queued_bytes(self, stream_id: int) -> int:
        """Returns how many bytes of a stream's data are queued and not yet written."""
        stream = self._core.streams.open.get(stream_id)
        return 0 if stream is None else stream.queued_bytes

    @property
    def unread_bytes(self) -> int:
        """How much memory waits for the client: queued buffers are kept to their last byte."""
        outbox = self.outbox
        return outbox.frame_bytes + outbox.queued_bytes + outbox.cut_bytes

    @property
    def read_bytes(self) -> int:
        """How much data was passed on to the transport since the connection began."""
        return self.outbox.granted_bytes - self.outbox.window

    def fullest_streams(self) -> list[int]:
        """Returns the streams with queued data; first the one that has the most."""
        waiting = sorted(
            self._core.streams.waiting(),
            key=lambda stream: stream.queued_bytes + stream.cut_bytes,
            reverse=True,
        )
        return [stream.id for stream in waiting]

    def abandon(self) -> None:
        """Called when the owner has forgotten all streams, as the client cannot get answers."""

    def receive(self, data: bytes | memoryview, now_ns: int) -> list[Event]:
        """Process bytes from the client.

        Args:
            data: The received bytes; frames may be cut anywhere. Events may refer to `data` if it
                is bytes, but never if it is a memoryview: its memory may be reused at once.
            now_ns: The time of a monotonic clock.

        Returns:
            The events. If the client violated the protocol, GOAWAY is queued and the last event is
            `ConnectionTerminated`.
        """
        core = self._core
        if core.is_terminated:
            return []
        core.now_ns = now_ns
        try:
            self._receiver.receive(data)
        except ConnectionViolation as violation:
            core.terminate(violation.code, violation.message)
        return self.take_events()

    @property
    def has_rest(self) -> bool:
        """Whether bytes were received that are not processed; the last event was `InputLeft`."""
        return bool(self._receiver.reader.rest)

    def keep(self, data: bytes | memoryview) -> None:
        """Keep bytes from the client for `receive_rest`, as it is not time to process them."""
        self._receiver.keep(data)

    def receive_rest(self, now_ns: int) -> list[Event]:
        """Process some more of what was received; see `receive`."""
        core = self._core
        if core.is_terminated:
            self._receiver.reader.rest = b""
            return []
        core.now_ns = now_ns
        try:
            self._receiver.receive_rest()
        except ConnectionViolation as violation:
            core.terminate(violation.code, violation.message)
        return self.take_events()

    def set_buffer(self, stream_id: int, memory: memoryview | None) -> None:
        """Write the next data of a stream into `memory` until it is full.

        Events are `DataBuffered` until then, and `DataReceived` again afterwards. This does not
        affect data that was received before; the buffer may be changed after each event.
        """
        streams, buffered = self._core.streams.open, self._buffered
        stream = streams.get(stream_id)
        if stream is None:
            return
        # The set may hold streams that have ended; it is cut down when it is twice as large as the
        # table, so that the work stays constant for each message.
        stream.buffer = memory or None
        buffered.add(stream_id)
        if len(buffered) > 2 * len(streams):
            buffered.intersection_update(streams)

    @property
    def has_buffers(self) -> bool:
        """Whether any stream has a buffer for its next data."""
        # Every read asks, so it must not look at all streams, of which a client may open many.
        streams, buffered = self._core.streams.open, self._buffered
        while buffered:
            stream_id = next(iter(buffered))
            stream = streams.get(stream_id)
            if stream is not None and stream.buffer is not None:
                return True
            buffered.discard(stream_id)
        return False

    def incomplete_input(self) -> IncompleteInput | None:
        """Returns the preface, header block or frame that has been received in part, if any."""
        return self._receiver.incomplete_input()

    def can_peer_send(self, stream_id: int) -> bool:
        """Returns whether the client may send more on a stream: it is open and has a window."""
        stream = self._core.streams.open.get(stream_id)
        return stream is not None and self._core.receive_windows.is_open(stream)

    def get_buffer(self, *, reads_more: bool = False) -> memoryview | None:
        """Returns the memory that the owner should read into, if any; see `buffer_updated`.

        With `reads_more` it also reads into the buffers from `expect_more`.
        """
        return self._receiver.get_buffer(reads_more=reads_more)

    def expect_more(self) -> list[memoryview]:
        """Returns the buffers to fill with what follows, once the one from `get_buffer` is full.

        `buffer_updated` has to be called next, even if nothing follows yet.
        """
        return self._receiver.expect_more()

    def buffer_updated(self, size: int, now_ns: int) -> list[Event]:
        """Process `size` bytes that were read into these buffers, all together; see `receive`."""
        core = self._core
        if core.is_terminated:
            return []
        core.now_ns = now_ns
        try:
            self._receiver.buffer_updated(size)
        except ConnectionViolation as violation:
            core.terminate(violation.code, violation.message)
        return self.take_events()

    def take_events(self) -> list[Event]:
        """Returns the events since the last call; `take_output` can add some."""
        core = self._core
        events = core.events
        core.events = []
        return events

    def drop_output(self) -> None:
        """Drop what waits for a client that has left: the owner may be kept for a while."""
        core = self._core
        core.outbox.frames.clear()
        core.outbox.frame_bytes = 0
        for stream in list(core.streams.waiting()):
            core.outbox.drop(stream)

    def take_output(self, max_bytes: int = 4 << 20) -> list[Buffer]:
        """Returns the buffers to write now, in order, for one gathering write.

        Args:
            max_bytes: The largest amount of queued data to return. Call again until `has_output`
                is false, unless the transport pauses writing.
        """
        core = self._core
        outbox = core.outbox
        output = outbox.take(max_bytes)
        # Frames are taken before streams are closed: RST_STREAM has to follow END_STREAM.
        if outbox.ended:
            for stream in outbox.ended:
                core.end_sent(stream, output)
            outbox.ended.clear()
        if outbox.resumed:
            core.events.extend(WriteResumed(stream.id) for stream in outbox.resumed)
            outbox.resumed.clear()
        return output

    def acknowledge(self, stream_id: int, size: int) -> None:
        """Mark `size` bytes of a stream's data as consumed: the client may send as many more.

        Bytes that were not acknowledged when a stream was closed are released automatically.
        """
        stream = self._core.streams.open.get(stream_id)
        if stream is not None:
            self._core.receive_windows.acknowledge(stream, size)

    def send_response(
        self, stream_id: int, head: bytes, body: Sequence[Buffer], trailers: bytes
    ) -> None:
        """Send a whole response: in one buffer if it is small, else as the windows allow.

        Large buffers are not copied, so they must not change until they are written.
        """
        core = self._core
        stream = core.streams.open.get(stream_id)
        size = sum(map(len, body))
        if stream is not None and not stream.is_head_sent:
            if core.outbox.add_response(stream, head, body, size, trailers):
                core.end_sent(stream)
                return
            if size:
                core.outbox.queue_response(stream, head, body, trailers)
                return
        self.send_headers(stream_id, head)
        for part in body:
            self.send_data(stream_id, part)
        self.send_trailers(stream_id, trailers)

    def send_body(self, stream_id: int, head: bytes, body: Sequence[Buffer]) -> None:
        """Send a whole response without trailers, like `send_response`; the body may be empty."""
        size = sum(map(len, body))
        if not size:
            self.send_headers(stream_id, head, end_stream=True)
            return
        stream = self._sendable(stream_id, _SEND_HEADERS)
        if stream is None:
            return
        outbox = self._core.outbox
        if outbox.add_response(stream, head, body, size, None):
            self._core.end_sent(stream)
        else:
            outbox.queue_response(stream, head, body, None)

    def send_interim(self, stream_id: int, block: bytes) -> None:
        """Send the head of an interim response, such as 100; the real one follows."""
        if self._sendable(stream_id, _SEND_HEADERS) is not None:
            self._core.outbox.add_header_block(stream_id, block, is_end=False)

    def send_whole(
        self, stream_id: int, frames: ResponseFrames | BodyFrames, data: Iterable[bytes]
    ) -> bool:
        """Send a small response; returns False if it cannot be sent at once, and sends nothing."""
        core = self._core
        stream = core.streams.open.get(stream_id)
        # The client has reset the stream: there is nothing to send, and nothing went wrong.
        if stream is None:
            return True
        response = frames.join(stream_id, data)
        if not core.outbox.add_whole(stream, response, frames.data_bytes):
            return False
        core.end_sent(stream)
        return True

    def send_headers(self, stream_id: int, block: bytes, *, end_stream: bool = False) -> None:
        """Send the head of a response; with `end_stream`, it is the whole response."""
        stream = self._sendable(stream_id, _SEND_HEADERS)
        if stream is None:
            return
        stream.is_head_sent = True
        self._core.outbox.add_header_block(stream_id, block, is_end=end_stream)
        if end_stream:
            self._core.end_sent(stream)

    def send_data(self, stream_id: int, data: Buffer, *, end_stream: bool = False) -> bool:
        """Send data as the client's windows allow.

        A large buffer is not copied, so it must not change until it is written.

        Returns:
            False if so much is queued that the caller should pause until `WriteResumed`.
        """
        stream = self._sendable(stream_id, _SEND_DATA)
        if stream is None:
            return True
        core = self._core
        size = len(data)
        # A small part of a response goes with its header in one buffer, if the windows allow it.
        if core.outbox.fits_inline(stream, size):
            if size or end_stream:
                core.outbox.add_data(stream, data, is_end=end_stream)
            if end_stream:
                core.end_sent(stream)
            return True
        core.outbox.enqueue(stream, data)
        stream.is_end_queued = end_stream
        if stream.queued_bytes >= core.limits.high_water_bytes:
            stream.is_paused = True  # until `WriteResumed`, even if more data is sent before it
        return not stream.is_paused

    def send_trailers(self, stream_id: int, block: bytes) -> None:
        """End a response; the trailers are sent after all of its data."""
        stream = self._sendable(stream_id, _SEND_DATA)
        if stream is None:
            return
        core = self._core
        # Trailers must not overtake queued data.
        if stream.queue:
            stream.trailers = block
            stream.is_end_queued = True
        else:
            core.outbox.add_header_block(stream_id, block, is_end=True)
            core.end_sent(stream)

    def reset(self, stream_id: int, code: Http2ErrorCode = Http2ErrorCode.CANCEL) -> None:
        """Reset a stream; its queued data is dropped."""
        if stream_id in self._core.streams.open:
            self._core.outbox.add(frames.rst_stream(stream_id, code))
            self._core.close(stream_id, StreamState.RESET_BY_US)

    def ping(self, payload: bytes) -> None:
        """Send a PING of 8 bytes; the client's answer is the event `PingAcknowledged`."""
        if len(payload) != len(SHUTDOWN_PING) or payload == SHUTDOWN_PING:
            message = f"expected a ping of 8 bytes other than {SHUTDOWN_PING!r}, got {payload!r}"
            raise LocalProtocolError(message)
        self._core.outbox.add(frames.ping(payload))

    def begin_shutdown(self) -> None:
        """Ask the client to open no more streams; those that it has already sent are still served.

        The final GOAWAY is sent automatically one round trip later, or by `finish_shutdown` if the
        client does not answer. `should_close` becomes true once the open streams have ended.
        """
        self._core.begin_shutdown()

    def finish_shutdown(self) -> None:
        """Refuse every new stream from now on."""
        self._core.finish_shutdown()

    def abort(self, code: Http2ErrorCode, message: str) -> None:
        """End the connection at once with GOAWAY; open streams can only be ended then."""
        self._core.terminate(code, message)

    def stalled_streams(self, now_ns: int) -> list[int]:
        """Returns the streams whose queued data made no progress for `max_stall_ns`.

        Has to be called periodically: a stall is timed from the first call that notices it.
        """
        limits = self._core.limits
        stalled = []
        for stream in self._core.streams.waiting():
            # A peer that opens its window byte by byte makes no progress ("data dribble",
            # CVE-2019-9511).
            progress = stream.sent_bytes - stream.stall_mark_bytes
            if not stream.stall_mark_ns or progress >= limits.min_progress_bytes:
                stream.stall_mark_ns = now_ns
                stream.stall_mark_bytes = stream.sent_bytes
            elif now_ns - stream.stall_mark_ns >= limits.max_stall_ns:
                stalled.append(stream.id)
        return stalled

    def _sendable(self, stream_id: int, event: StreamInput) -> Stream | None:
        """Returns the stream to send on; None if it is closed."""
        stream = self._core.streams.open.get(stream_id)
        if stream is None:
            if self._core.streams.state_of(stream_id) is StreamState.IDLE:
                raise LocalProtocolError(f"stream {stream_id} was never opened")
            return None
        next_state(stream_id, stream.state, event)
        if stream.is_end_queued:
            raise LocalProtocolError(f"the response on stream {stream_id} has ended already")
        if stream.is_head_sent is not (event is _SEND_DATA):
            state = "a head already" if stream.is_head_sent else "no head yet"
            raise LocalProtocolError(f"the response on stream {stream_id} has {state}")
        return stream
