# SPDX-License-Identifier: Apache-2.0
"""One gRPC connection: connects a transport, the HTTP/2 connection and its calls.

It is independent of models. The output of one event loop iteration is written at once. Large
messages are read directly into their memory by `LargeMessageReader`; otherwise a connection is an
ordinary protocol: a BufferedProtocol needs 2 to 3 us more for each read, 4 % of a small call.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from pytriton.base.errors import error_for_clients
from pytriton.protocol.grpc import GrpcError, GrpcStatus, parse_call
from pytriton.protocol.http2 import (
    TOO_MANY_PINGS,
    ConnectionTerminated,
    DataBuffered,
    DataReceived,
    Http2ErrorCode,
    InputLeft,
    RequestReceived,
    StreamReset,
    TrailersReceived,
    WriteResumed,
)
from pytriton.serving.server.api.http2_transport import Http2Transport
from pytriton.serving.server.api.pace import Holder
from pytriton.serving.server.api.shortage import TOO_SLOW
from pytriton.serving.server.api.status import GRPC_STATUS
from pytriton.serving.server.api.turns import REQUEST_UNITS, TURN_UNITS
from pytriton.serving.server.grpc.call_state import ENDED
from pytriton.serving.server.grpc.timeouts import Action, Keepalive
from pytriton.serving.server.process.event_loop import reader_of_parts, writer_of_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytriton.protocol.http2 import Event
    from pytriton.serving.server.grpc.api import GrpcApi
    from pytriton.serving.server.grpc.call import GrpcCall

READ_BYTES = 256 << 10

logger = logging.getLogger(__name__)

_monotonic_ns = time.monotonic_ns
# The part of a large read that is parsed first: a message in it may get memory for the rest.
_START_BYTES = 32 << 10
_MESSAGES_UNITS = TURN_UNITS // 2  # of a call with many of them, so that others come in between
_BYTES_PER_UNIT = 2048  # of the other part
# The largest message of methods without tensors or files: protobuf parses it in some milliseconds.
SMALL_MESSAGE_BYTES = 64 << 10
_KEEPALIVE_PING = b"keepaliv"
_SPARE_DEADLINES = 64  # of calls that have ended; more are forgotten together
_TIMER_S = 0.001  # uvloop's timers count whole milliseconds, and may fire before their time


class GrpcConnection(Http2Transport, asyncio.Protocol):
    """The protocol object of one client's connection."""

    client_name = "gRPC"

    def __init__(self, handler: GrpcApi, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            handler.make_http2(self),
            handler.limits,
            handler.flushes,
            loop,
            handler.unread,
            handler.turns,
        )
        self.max_message_bytes = handler.max_message_bytes
        self.max_small_bytes = min(handler.max_message_bytes, SMALL_MESSAGE_BYTES)
        self.work = handler.work
        self._handler = handler
        self._large_reader: LargeMessageReader | None = None  # if it is the transport's protocol
        self._calls: dict[int, GrpcCall] = {}
        self._postponed: deque[GrpcCall] = deque()  # they hold messages for the next turn
        # A heap of deadlines and streams, with some of calls that have ended.
        self._deadlines: list[tuple[float, int]] = []
        self._deadline: asyncio.TimerHandle | None = None  # fires at the first deadline, or before
        self._deadline_s = math.inf  # when it fires
        self._received_ns = _monotonic_ns()
        self._keepalive = Keepalive(handler.keepalive, self._received_ns)

    # Transport callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._write_parts = writer_of_parts(transport)
        self._handler.connections.add(self)
        self.flush_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        self._large_reader = None
        self._handler.connections.discard(self)
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes | memoryview) -> None:
        now_ns = _monotonic_ns()
        if len(data) > _START_BYTES and not self.http2.has_buffers:
            view = memoryview(data)
            self.handle(self.http2.receive(view[:_START_BYTES], now_ns), now_ns)
            data = view[_START_BYTES:]
            if self.turn.is_over:
                self.http2.keep(data)
                return
            self.turn.spend(len(data) // _BYTES_PER_UNIT)
        self.handle(self.http2.receive(data, now_ns), now_ns)

    # Large messages

    def set_buffer(self, stream_id: int, memory: memoryview | None) -> None:
        """Read the rest of a large message into `memory`, if it is not None."""
        # A transport has one protocol at a time; the reader passes the other callbacks on.
        if memory is not None and self._large_reader is None:
            reader = LargeMessageReader(
                self, self._handler.read_buffer, reader_of_parts(self.transport)
            )
            self._large_reader = reader
            self.transport.set_protocol(self._large_reader)
        if self._large_reader is not None:
            self.http2.set_buffer(stream_id, memory)

    def end_large_reads(self) -> None:
        """Become the transport's protocol again, because no large message is incomplete."""
        self._large_reader = None
        self.transport.set_protocol(self)

    # Events

    def handle(self, events: list[Event], received_ns: int) -> None:
        if self._is_closing:
            return
        self._received_ns = received_ns
        self._events = left = iter(events)
        # Nearly all events are of these classes, so they are compared first, and by identity.
        for event in left:
            if event.__class__ is RequestReceived:
                self._on_request(event)
            elif event.__class__ is DataReceived or event.__class__ is DataBuffered:
                self._on_data(event)
            else:
                self._on_event(event)
        if self.http2.has_output and not self._is_flush_due:
            self.flush_soon()

    def _on_request(self, event: RequestReceived) -> None:
        stream_id, call_head = event.stream_id, parse_call(event.head)
        handler = self._handler
        if handler.on_arrival is not None:
            handler.on_arrival(call_head)
        # The head of the call has said already that its requests may travel as columns.
        if call_head.columns is not None and event.end_stream:
            column: GrpcCall | None = call_head.columns.take(self, stream_id, call_head, event.body)
            if column is not None:
                if column.state is not ENDED:  # it may be answered already
                    self._calls[stream_id] = column
                    if call_head.timeout_ns is not None:
                        self._set_deadline(column, call_head.timeout_ns)
                return
        self.turn.spend(REQUEST_UNITS)
        call = handler.open_call(self, stream_id, call_head)
        if call is None:
            return
        self._calls[stream_id] = call
        if call_head.timeout_ns is not None:
            self._set_deadline(call, call_head.timeout_ns)
        if event.end_stream:
            self._on_data(event)

    def _on_data(self, event: DataReceived | DataBuffered | RequestReceived) -> None:
        call = self._calls.get(event.stream_id)
        if call is None:
            return
        try:
            if isinstance(event, RequestReceived):
                call.on_whole(event.body)
            elif isinstance(event, DataReceived):
                call.on_data(event.data, end_stream=event.end_stream)
            else:
                call.on_buffered(event.size, end_stream=event.end_stream)
        except Exception as error:  # noqa: BLE001  it is sent to the client
            self.fail_call(call, error)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, TrailersReceived):
            self._on_data(DataReceived(event.stream_id, b"", end_stream=True))
        elif isinstance(event, StreamReset):
            call = self._calls.get(event.stream_id)
            if call is not None:
                self.remove_call(call)
                call.abandon()
        elif isinstance(event, WriteResumed):
            call = self._calls.get(event.stream_id)
            if call is not None:
                call.on_writable()
        elif isinstance(event, InputLeft):
            self.turn.end()
        elif isinstance(event, ConnectionTerminated):
            self._on_terminated(event)

    def _on_terminated(self, event: ConnectionTerminated) -> None:
        """End all calls with the reason; otherwise clients only see that a socket was closed."""
        if event.code is Http2ErrorCode.ENHANCE_YOUR_CALM:
            self.work.refusals["grpc_connection"] += 1
        if event.code is not Http2ErrorCode.NO_ERROR:
            logger.info("gRPC connection ended: %s", ascii(event.message))
        text = "Too many pings" if event.message == TOO_MANY_PINGS else event.message
        for call in list(self._calls.values()):
            self._end(call, GrpcStatus.UNAVAILABLE, text)
        self._abandon_all()

    def fail_call(self, call: GrpcCall, error: Exception) -> None:
        """End a call with the exception that was raised while it was served."""
        if isinstance(error, GrpcError):
            if call.state is not ENDED:
                call.on_unreadable(error)
            if error.status is GrpcStatus.RESOURCE_EXHAUSTED:
                self.work.refusals["grpc_message_bytes"] += 1
            self._end(call, error.status, error.message)
            return
        failure = error_for_clients(error, f"it served {call.head.path!a}")
        self._end(call, GrpcStatus(GRPC_STATUS[failure.code]), failure.message)

    # Deadlines: the connection has one timer, because most calls end before theirs. A timer for
    # each call takes 3 us.

    def _set_deadline(self, call: GrpcCall, timeout_ns: int) -> None:
        now_s = self._loop.time()
        deadline_s = call.deadline_s = now_s + timeout_ns / 1e9
        deadlines = self._deadlines
        heapq.heappush(deadlines, (deadline_s, call.stream_id))
        if len(deadlines) > 2 * len(self._calls) + _SPARE_DEADLINES:
            deadlines[:] = [(each.deadline_s, number) for number, each in self._calls.items()]
            heapq.heapify(deadlines)
        if deadline_s < self._deadline_s:
            self._wait_until(deadline_s, now_s)

    def _wait_until(self, deadline_s: float, now_s: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline_s = deadline_s
        self._deadline = self._loop.call_later(max(0, deadline_s - now_s), self._on_deadline)

    def _on_deadline(self) -> None:
        """End the calls whose deadline has passed, and wait for the next one."""
        self._deadline, self._deadline_s = None, math.inf
        now_s = self._loop.time()
        deadlines = self._deadlines
        # It does not look at all calls: a client may give each of many another deadline.
        while deadlines:
            deadline_s, stream_id = deadlines[0]
            call = self._calls.get(stream_id)
            if call is None or call.deadline_s != deadline_s:  # it has ended
                heapq.heappop(deadlines)
            elif deadline_s > now_s + _TIMER_S:
                break
            else:
                heapq.heappop(deadlines)
                self._end(call, GrpcStatus.DEADLINE_EXCEEDED, "Deadline Exceeded")
        if deadlines and deadlines[0][0] < self._deadline_s:
            self._wait_until(deadlines[0][0], now_s)

    def _end(self, call: GrpcCall, status: GrpcStatus, message: str) -> None:
        """End a call that may still be executing."""
        if call.state is not ENDED:
            logger.debug("gRPC error %s: %s", status.name, message)
            # Finish first: abandoning makes the engine answer, and the call must be closed then.
            call.finish(status, message)
            call.on_abandoned()

    # Calls

    def remove_call(self, call: GrpcCall) -> None:
        self._calls.pop(call.stream_id, None)
        if not self._is_flush_due:
            self.flush_soon()

    def open_calls(self) -> list[GrpcCall]:
        """Returns the calls that have not ended."""
        return list(self._calls.values())

    def replace_call(self, call: GrpcCall) -> None:
        """Serve a stream with this call from now on, unless it has ended already."""
        stream_id = call.stream_id
        replaced = self._calls.get(stream_id)
        if call.state is ENDED:
            self._calls.pop(stream_id, None)
            return
        self._calls[stream_id] = call
        if replaced is not None:
            call.deadline_s = replaced.deadline_s
        elif call.head.timeout_ns is not None:
            self._set_deadline(call, call.head.timeout_ns)

    def refuse(self, stream_id: int, block: bytes) -> None:
        """Send a header block as the whole response to a call that was not opened."""
        self.http2.send_headers(stream_id, block, end_stream=True)

    def call_later(self, delay_s: float, action: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(delay_s, action)

    def resume_later(self, call: GrpcCall) -> None:
        """Let a call process the data that it holds in the next turn of this connection."""
        self._postponed.append(call)
        self.turn.want_next(_MESSAGES_UNITS)

    def begin_turn(self) -> None:
        """Let calls process what they hold, and handle what was left."""
        for _ in range(len(self._postponed)):  # each may be added behind the others again
            if self.turn.is_over:
                return
            self._postponed.popleft().on_turn()
        super().begin_turn()

    def _abandon_all(self) -> None:
        calls, self._calls = self._calls, {}
        self._postponed.clear()
        for call in calls.values():
            call.abandon()
        self.http2.abandon()

    # Timeouts, keepalive and shutdown

    def check(self, now_ns: int) -> None:
        """Called periodically: end calls and connections that stall or are too old."""
        if self._check_writing(now_ns):
            self._check_reading(now_ns)
            self._check_keepalive(now_ns)

    def _reset_unread(self, stream_id: int, code: Http2ErrorCode = Http2ErrorCode.CANCEL) -> None:
        call = self._calls.get(stream_id)
        if call is None:
            self.http2.reset(stream_id, code)
        else:
            call.drop(code)

    def _check_reading(self, now_ns: int) -> None:
        """End calls and connections with incomplete input, unless the client waits for us."""
        for stream_id, part in self._check_input(now_ns, self._calls).items():
            self.work.refusals["grpc_request_time"] += 1
            text = f"{part.description} came too slowly"
            self._end(self._calls[stream_id], GrpcStatus.DEADLINE_EXCEEDED, text)

    def uploads(self) -> Iterator[Holder]:
        """Returns the calls that take memory until their client sends or reads more."""
        if self._is_closing:
            return
        for stream_id, call in self._calls.items():
            nbytes, held_bytes = call.upload_bytes, call.held_bytes
            if nbytes and not self._is_reading_paused and self.http2.can_peer_send(stream_id):
                yield Holder((self, stream_id), nbytes, nbytes, partial(self._end_upload, call))
            elif held_bytes and self.http2.queued_bytes(stream_id):
                end = partial(self._end_held, call)
                yield Holder((self, stream_id), held_bytes, self.count_unread().moved, end)

    def _end_upload(self, call: GrpcCall, _: int) -> None:
        self.work.refusals["grpc_request_time"] += 1
        self._end(call, GrpcStatus.UNAVAILABLE, TOO_SLOW)

    def _end_held(self, call: GrpcCall, _: int) -> None:
        logger.info("gRPC client reads too slowly to have its next messages read: call reset")
        call.drop(Http2ErrorCode.ENHANCE_YOUR_CALM)

    def _check_keepalive(self, now_ns: int) -> None:
        action = self._keepalive.check(
            now_ns,
            self._received_ns,
            self.http2.activity,
            has_calls=self.http2.open_streams > 0,
        )
        if action is Action.PING:
            self.http2.ping(_KEEPALIVE_PING)
        elif action is Action.GO_AWAY:
            self.http2.begin_shutdown()
        elif action is not None:
            logger.info("gRPC connection ended: %s", action.name)
            self.abort()
            return
        if self.http2.has_output:
            self.flush_soon()

    def end(self) -> asyncio.Future[None]:
        """End the connection; the future is done when all output was sent and it is closed."""
        self._on_lost = self._loop.create_future()
        if self._lingering is not None:
            self.transport.abort()
        for call in list(self._calls.values()):
            self._end(call, GrpcStatus.UNAVAILABLE, "Server exiting")
        # The client may make these calls again elsewhere (RFC 9113, 8.7).
        for event in self._left:
            if isinstance(event, RequestReceived):
                self.http2.reset(event.stream_id, Http2ErrorCode.REFUSED_STREAM)
        self._left.clear()
        self.http2.finish_shutdown()
        self.flush()
        return self._on_lost

    def __repr__(self) -> str:
        return f"<GrpcConnection {len(self._calls)} calls, {self.http2!r}>"


class LargeMessageReader(asyncio.BufferedProtocol):
    """The transport's protocol, in place of the connection, while large messages are received.

    Their data is read directly to its place. A transport reads into one buffer at a time: what
    belongs to the buffers after it is read at once, without the transport.
    """

    def __init__(
        self,
        connection: GrpcConnection,
        read_buffer: memoryview,
        read_parts: Callable[[list[memoryview]], int] | None,
    ) -> None:
        self._connection = connection
        self._read_buffer = read_buffer  # all connections share it: it is read before the next use
        self._read_parts = read_parts
        self._is_start = False  # whether no message has memory for the next read
        self._direct_bytes = 0  # the size of the memory for the next read, if a message has some

    def get_buffer(self, sizehint: int) -> memoryview:
        http2 = self._connection.http2
        buffer = http2.get_buffer(reads_more=self._read_parts is not None)
        if buffer is not None:
            self._direct_bytes = len(buffer)
            return buffer
        self._direct_bytes = 0
        self._is_start = not http2.has_buffers
        # A message may begin here, and have memory for what follows: only its start is copied.
        return self._read_buffer[:_START_BYTES] if self._is_start else self._read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        connection = self._connection
        http2 = connection.http2
        if self._direct_bytes:
            if (
                nbytes == self._direct_bytes
                and self._read_parts is not None
                and (parts := http2.expect_more())
            ):
                nbytes += self._read_parts(parts)
            now_ns = _monotonic_ns()
            connection.handle(http2.buffer_updated(nbytes, now_ns), now_ns)
        elif not self._is_start:
            now_ns = _monotonic_ns()
            connection.handle(http2.receive(self._read_buffer[:nbytes], now_ns), now_ns)
        else:
            connection.data_received(self._read_buffer[:nbytes])
            if not http2.has_buffers:
                connection.end_large_reads()

    # Other transport callbacks, which are passed on

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)

    def eof_received(self) -> bool:
        return self._connection.eof_received()

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()
