# SPDX-License-Identifier: Apache-2.0
"""The server's side of an HTTP/2 connection.

Nothing here waits, reads a clock or calls back: the owner passes the time and does the I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.wire.http2 import frames
from pytriton.wire.http2.core import SHUTDOWN_PING, ConnectionCore
from pytriton.wire.http2.data import MIN_ROOM_BYTES
from pytriton.wire.http2.errors import ConnectionViolation, ErrorCode, LocalProtocolError
from pytriton.wire.http2.events import WriteResumed
from pytriton.wire.http2.limits import Limits
from pytriton.wire.http2.receiving import Receiver
from pytriton.wire.http2.settings import server_preface
from pytriton.wire.http2.states import StreamInput, StreamState, next_state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytriton.wire.http2.events import Event
    from pytriton.wire.http2.outbox import Buffer
    from pytriton.wire.http2.receiving import Unfinished
    from pytriton.wire.http2.settings import PeerSettings
    from pytriton.wire.http2.streams import Stream

_DEFAULT_LIMITS = Limits()


class Connection:
    """One client's connection.

    The owner calls `receive` with what it read, acts on the events, and after any call writes what
    `take_output` returns. Header blocks are bytes from `encode_header_block`. Sending on a stream
    that is gone does nothing, as the client may leave at any time; sending what HTTP/2 forbids
    raises `LocalProtocolError`.
    """

    __slots__ = ("_core", "_receiver")

    def __init__(self, limits: Limits = _DEFAULT_LIMITS) -> None:
        self._core = ConnectionCore(limits)
        self._receiver = Receiver(self._core)
        self._core.outbox.add(server_preface(limits))

    def __repr__(self) -> str:
        core = self._core
        state = "terminated" if core.is_terminated else "open"
        return f"<Connection {state}, {self.open_streams} streams, last {core.streams.last_id}>"

    @property
    def peer_settings(self) -> PeerSettings:
        """What the client asks of us."""
        return self._core.peer

    @property
    def open_streams(self) -> int:
        """How many streams are open."""
        return len(self._core.streams.open)

    @property
    def activity(self) -> int:
        """A count that grows with every HEADERS and DATA frame that is sent."""
        return self._core.outbox.activity

    @property
    def has_output(self) -> bool:
        """Whether `take_output` would return anything."""
        outbox = self._core.outbox
        return bool(outbox.frames or (outbox.turns and outbox.window > 0))

    @property
    def is_clogged(self) -> bool:
        """Whether so much waits to be written that a client which takes none of it is not read on.

        Only where the transport takes nothing, either: reading is what opens the client's windows.
        """
        outbox, limits = self._core.outbox, self._core.limits
        return (
            outbox.frame_bytes >= limits.max_waiting_frame_bytes
            or outbox.queued_bytes >= limits.max_waiting_data_bytes
        )

    @property
    def should_close(self) -> bool:
        """Whether the transport is to be closed once the output is written."""
        core = self._core
        return core.is_terminated or (core.is_refusing and not core.streams.open)

    def is_open(self, stream_id: int) -> bool:
        """Whether an answer on this stream can still reach the client."""
        return stream_id in self._core.streams.open

    def queued_bytes(self, stream_id: int) -> int:
        """How much of what was sent on a stream waits for the client."""
        stream = self._core.streams.open.get(stream_id)
        return 0 if stream is None else stream.queued_bytes

    def receive(self, data: bytes | memoryview, now_ns: int) -> list[Event]:
        """Take bytes of the client.

        Args:
            data: What came, cut anywhere. Events may hold views of bytes, but never of a
                memoryview: the memory behind it may be used again at once.
            now_ns: The time, of a clock that never goes back.

        Returns:
            What happened. A client that broke the protocol is told here too: its last event is
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

    def place(self, stream_id: int, memory: memoryview | None) -> None:
        """Have the data that comes next on a stream put into `memory` until that is full.

        It is announced by `DataPlaced`; what comes after it, by `DataReceived` again. Data that
        events have announced already has come: with each of them, the place may be another.
        """
        stream = self._core.streams.open.get(stream_id)
        if stream is not None:
            stream.place = memory or None

    @property
    def has_places(self) -> bool:
        """Whether there is memory for what comes next on any stream."""
        return any(stream.place is not None for stream in self._core.streams.open.values())

    def unfinished(self) -> Unfinished | None:
        """What the client has begun and not ended: its preface, a header block or a frame."""
        return self._receiver.unfinished()

    def is_awaited(self, stream_id: int) -> bool:
        """Whether the client has more to send on a stream, and may."""
        stream = self._core.streams.open.get(stream_id)
        return stream is not None and self._core.inflow.is_open(stream)

    def room(self) -> memoryview | None:
        """The memory that the bytes which come next belong in, where there is such: see `fill`."""
        receiver = self._receiver
        # Asked before every read, and answered with None nearly always.
        return receiver.room() if receiver.reader.data_left >= MIN_ROOM_BYTES else None

    def fill(self, size: int, now_ns: int) -> list[Event]:
        """Like `receive`, for `size` bytes of the client that were written to `room` instead."""
        core = self._core
        if core.is_terminated:
            return []
        core.now_ns = now_ns
        try:
            self._receiver.fill(size)
        except ConnectionViolation as violation:
            core.terminate(violation.code, violation.message)
        return self.take_events()

    def take_events(self) -> list[Event]:
        """The events since the last call; `take_output` can add some."""
        core = self._core
        events = core.events
        core.events = []
        return events

    def take_output(self, max_bytes: int = 4 << 20) -> list[Buffer]:
        """The buffers to write now, in order, for one gathering write.

        Args:
            max_bytes: How much queued data to release at most. Call again until `has_output` is
                false, unless the transport asks for a pause.
        """
        core = self._core
        outbox = core.outbox
        output = outbox.take(max_bytes)
        if outbox.ended:
            for stream in outbox.ended:
                core.end_sent(stream, output)
            outbox.ended.clear()
        if outbox.resumed:
            core.events.extend(WriteResumed(stream.id) for stream in outbox.resumed)
            outbox.resumed.clear()
        return output

    def acknowledge(self, stream_id: int, size: int) -> None:
        """Say that `size` bytes of a stream's data were used: the client may send as many more.

        What a closed stream never acknowledged is given back by itself.
        """
        stream = self._core.streams.open.get(stream_id)
        if stream is not None:
            self._core.inflow.acknowledge(stream, size)

    def send_response(
        self, stream_id: int, head: bytes, body: Sequence[Buffer], trailers: bytes
    ) -> None:
        """Send a whole response: one buffer if it is small, else as the calls below would."""
        core = self._core
        stream = core.streams.open.get(stream_id)
        if (
            stream is not None
            and not stream.is_head_sent
            and core.outbox.add_response(stream, head, body, sum(map(len, body)), trailers)
        ):
            core.end_sent(stream)
            return
        self.send_headers(stream_id, head)
        for part in body:
            self.send_data(stream_id, part)
        self.send_trailers(stream_id, trailers)

    def send_headers(self, stream_id: int, block: bytes, *, end_stream: bool = False) -> None:
        """Send the head of a response, alone or as all of it."""
        stream = self._sendable(stream_id, StreamInput.SEND_HEADERS)
        if stream is None:
            return
        if stream.is_head_sent:
            message = f"the response on stream {stream_id} has a head already"
            raise LocalProtocolError(message)
        stream.is_head_sent = True
        self._core.outbox.add_header_block(stream_id, block, is_end=end_stream)
        if end_stream:
            self._core.end_sent(stream)

    def send_data(self, stream_id: int, data: Buffer, *, end_stream: bool = False) -> bool:
        """Send data as the client's windows allow.

        A large buffer is never copied: views of it are written, so it must not change until then.

        Returns:
            False where so much waits already that the caller should pause until `WriteResumed`.
        """
        stream = self._sendable(stream_id, StreamInput.SEND_DATA)
        if stream is None:
            return True
        if not stream.is_head_sent:
            message = f"the response on stream {stream_id} has no head yet"
            raise LocalProtocolError(message)
        core = self._core
        size = len(data)
        if core.outbox.fits_inline(stream, size):
            if size or end_stream:
                core.outbox.add_data(stream, data, is_end=end_stream)
            if end_stream:
                core.end_sent(stream)
            return True
        core.outbox.enqueue(stream, data)
        stream.is_end_queued = end_stream
        if stream.queued_bytes >= core.limits.high_water_bytes:
            stream.is_paused = True  # until `WriteResumed`, whatever is sent before it
        return not stream.is_paused

    def send_trailers(self, stream_id: int, block: bytes) -> None:
        """End a response; the trailers follow all of its data."""
        stream = self._sendable(stream_id, StreamInput.SEND_DATA)
        if stream is None:
            return
        if not stream.is_head_sent:
            message = f"the response on stream {stream_id} has no head yet"
            raise LocalProtocolError(message)
        core = self._core
        if stream.queue:
            stream.trailers = block
            stream.is_end_queued = True
        else:
            core.outbox.add_header_block(stream_id, block, is_end=True)
            core.end_sent(stream)

    def reset(self, stream_id: int, code: ErrorCode = ErrorCode.CANCEL) -> None:
        """Give a stream up; what it has queued is dropped."""
        if stream_id in self._core.streams.open:
            self._core.outbox.add(frames.rst_stream(stream_id, code))
            self._core.close(stream_id, StreamState.RESET_BY_US)

    def ping(self, payload: bytes) -> None:
        """Ask the client for a sign of life: `PingAcknowledged` with these 8 bytes."""
        if len(payload) != len(SHUTDOWN_PING) or payload == SHUTDOWN_PING:
            message = f"expected a ping of 8 bytes other than {SHUTDOWN_PING!r}, got {payload!r}"
            raise LocalProtocolError(message)
        self._core.outbox.add(frames.ping(payload))

    def begin_shutdown(self) -> None:
        """Ask the client to open no more streams; those on their way are still served.

        The last word follows by itself one round trip later, or with `finish_shutdown` for a client
        that does not answer. `should_close` becomes true once the open streams are done.
        """
        self._core.begin_shutdown()

    def finish_shutdown(self) -> None:
        """Refuse every new stream from now on."""
        self._core.finish_shutdown()

    def abort(self, code: ErrorCode, message: str) -> None:
        """End the connection at once with GOAWAY."""
        self._core.terminate(code, message)

    def stalled_streams(self, now_ns: int) -> list[int]:
        """The streams whose queued data made no progress for too long; to be asked now and then.

        A stall is counted from the first call that saw it.
        """
        limits = self._core.limits
        stalled = []
        for stream in self._core.streams.waiting():
            progress = stream.sent_bytes - stream.stall_mark_bytes
            if not stream.stall_mark_ns or progress >= limits.min_progress_bytes:
                stream.stall_mark_ns = now_ns
                stream.stall_mark_bytes = stream.sent_bytes
            elif now_ns - stream.stall_mark_ns >= limits.max_stall_ns:
                stalled.append(stream.id)
        return stalled

    def _sendable(self, stream_id: int, event: StreamInput) -> Stream | None:
        """The stream to send on; None where the client is gone."""
        stream = self._core.streams.open.get(stream_id)
        if stream is None:
            if self._core.streams.state_of(stream_id) is StreamState.IDLE:
                raise LocalProtocolError(f"stream {stream_id} was never opened")
            return None
        next_state(stream_id, stream.state, event)
        if stream.is_end_queued:
            raise LocalProtocolError(f"the response on stream {stream_id} has ended already")
        return stream
