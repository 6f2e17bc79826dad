# SPDX-License-Identifier: Apache-2.0
"""The transport's side of a connection of HTTP/2, whatever its requests are.

It writes the output, stops reading from clients that do not read, ends those that stall, and closes
so that they can read the last answers. Subclasses handle events, and are the transport's protocol.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Protocol

from pytriton.protocol.http2 import Http2Connection, Http2ErrorCode
from pytriton.serving.server.api.pace import LINGER_S, Holder, InputTimer, OutputTimer
from pytriton.serving.server.api.turns import Turn

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator, Mapping

    from pytriton.base.dtypes import Buffer
    from pytriton.protocol.http2 import Event, IncompleteInput
    from pytriton.serving.server.api.pace import StallLimits
    from pytriton.serving.server.api.shortage import UnreadAnswers
    from pytriton.serving.server.api.turns import Turns


logger = logging.getLogger(__name__)

_monotonic_ns = time.monotonic_ns
_JOINED_BYTES = 64 << 10  # up to this size, one copy is cheaper than a gathering write


class FlushQueue:
    """Writes what connections have to send, once in each iteration of the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._connections: list[Http2Transport] = []

    def add(self, connection: Http2Transport) -> None:
        """Call `connection.flush` in the next iteration, with those of all other connections."""
        if not self._connections:
            self._loop.call_soon(self._flush)
        self._connections.append(connection)

    def _flush(self) -> None:
        connections, self._connections = self._connections, []
        for connection in connections:
            try:
                connection.flush()
            except Exception:  # noqa: PERF203  the others are flushed as well
                # What it would have sent may be lost, so the client could not read what follows.
                logger.exception("%s output could not be sent", connection.client_name)
                connection.abort()


class IncompleteRequest(Protocol):
    """A request of which a part may be missing."""

    def incomplete_input(self) -> IncompleteInput | None:
        """Returns what is missing; None if the client need not send now."""


class Http2Transport:
    """One client's transport and the state of HTTP/2 that its bytes change."""

    client_name: str  # in the log
    client_ticket: object = None  # set by who accepted the client, and returned to it
    peer: Any = None  # who is at the other end, once a policy has asked for it

    def __init__(
        self,
        http2: Http2Connection,
        limits: StallLimits,
        flushes: FlushQueue,
        loop: asyncio.AbstractEventLoop,
        unread: UnreadAnswers,
        turns: Turns,
    ) -> None:
        self.turn = Turn(turns, self)
        self._events: Iterator[Event] = iter(())  # those that are being handled
        self._left: list[Event] = []  # those that wait for the next turn
        self.http2 = http2
        self._outbox = self.http2.outbox
        self._unread = unread
        self._unread_bytes = 0  # what was counted there
        self._read_bytes = 0  # what the client has read of all answers, and more
        self.transport: Any = None
        self._write_parts: Callable[[list[Buffer]], None]  # set with the transport
        self._loop = loop
        self._flushes = flushes
        self._is_flush_due = False
        self._is_writing_paused = False
        self._is_reading_paused = False
        self._is_closing = False
        self._limits = limits
        self._output_timer = OutputTimer(limits)
        self._input_timer = InputTimer(limits)
        self._request_timers: dict[int, InputTimer] = {}  # by stream
        self._lingering: asyncio.TimerHandle | None = None
        self._on_lost: asyncio.Future[None] | None = None

    # What subclasses do

    def handle(self, events: list[Event], received_ns: int) -> None:
        """Handle what was received, until the turn of this connection ends."""
        raise NotImplementedError

    def _on_event(self, event: Event) -> None:
        """Handle an event other than a request and its data."""
        raise NotImplementedError

    def _reset_unread(self, stream_id: int, code: Http2ErrorCode = Http2ErrorCode.CANCEL) -> None:
        """Reset a stream whose client does not read the response."""
        raise NotImplementedError

    def _abandon_all(self) -> None:
        """Forget all requests, as the client cannot get answers any more."""
        raise NotImplementedError

    def _may_be_sending(self) -> bool:
        """Returns whether the client may lose answers if its connection is closed at once."""
        return self.http2.is_terminated

    # Transport callbacks

    def get_extra_info(self, name: str) -> Any:
        """Returns a fact about the transport; None if it is not known."""
        return self.transport.get_extra_info(name)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closing = True
        self.turn.close()
        self._left.clear()
        self._abandon_all()
        self._drop_output()
        if self._lingering is not None:
            self._lingering.cancel()
        if self._on_lost is not None:
            self._on_lost.set_result(None)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._is_writing_paused = True

    def resume_writing(self) -> None:
        self._is_writing_paused = False
        if self._unread_bytes:
            self.count_unread()
        self.flush()

    # Writing

    def flush_soon(self) -> None:
        """Schedule a call of `flush`, so that the output of an iteration is written at once."""
        if not self._is_flush_due and not self._is_closing:
            self._is_flush_due = True
            self._flushes.add(self)

    def flush(self) -> None:
        """Write the output until the transport pauses writing."""
        self._is_flush_due = False
        http2 = self.http2
        if self._is_closing or self.transport.is_closing():
            return
        # Taking output may resume writers, which add output.
        while not self._is_writing_paused and (output := http2.take_output()):
            self._write(output)
            for event in http2.take_events():
                self._on_event(event)
            if not http2.has_output:
                break
        if self._outbox.queued_bytes or self._unread_bytes:
            self.count_unread()
        # Output that is left in the transport is still written after `close`.
        if http2.should_close and not self._is_writing_paused and not self._left:
            self._leave()
        # Output that waits only for the client's windows is no reason: WINDOW_UPDATE has to be
        # read.
        elif self._is_writing_paused and http2.is_output_full:
            self._pause_reading()
        elif self._is_reading_paused and not self.turn.is_over:
            self._resume_reading()

    def _write(self, output: list[Buffer]) -> None:
        if len(output) == 1:
            self.transport.write(output[0])
        elif sum(map(len, output)) <= _JOINED_BYTES:
            self.transport.write(b"".join(output))
        else:
            self._write_parts(output)

    # Reading

    def _pause_reading(self) -> None:
        """Stop reading from a client, until the next `flush` at least."""
        if not self._is_reading_paused and not self._is_closing:
            self._is_reading_paused = True
            self.transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._is_reading_paused:
            self._is_reading_paused = False
            self.transport.resume_reading()

    # Turns

    def end_turn(self) -> None:
        """Leave the events that are not handled yet, and read no more before the next turn."""
        self._left.extend(self._events)  # which ends the loop over them
        if not self.transport.is_closing():
            self._pause_reading()

    def begin_turn(self) -> None:
        """Handle what was left, until that ends this turn, too."""
        http2 = self.http2
        while not (self._is_closing or self.turn.is_over):
            now_ns = _monotonic_ns()
            if self._left:
                events, self._left = self._left, []
            elif http2.has_rest:
                events = http2.receive_rest(now_ns)
            else:
                self.flush_soon()  # which lets the transport read on
                return
            self.handle(events, now_ns)

    # Ending

    def begin_shutdown(self) -> None:
        """Ask the client to send no more requests; those that it has sent are answered."""
        self.http2.begin_shutdown()
        self.flush_soon()

    def _leave(self) -> None:
        """Close our side of the connection, and discard for a while what the client still sends."""
        self._is_closing = True
        if not self._may_be_sending() or not self.transport.can_write_eof():
            self._abandon_all()
            self.transport.close()
            return
        self._resume_reading()
        self.transport.write_eof()
        self._lingering = self._loop.call_later(LINGER_S, self.transport.close)

    def abort(self) -> None:
        """End the connection at once; its requests are abandoned when it is lost."""
        self._is_closing = True
        self.transport.abort()

    # Slow clients

    def count_unread(self) -> Holder:
        """Count the answers that the client has not read; returns what they hold."""
        buffered = self.transport.get_write_buffer_size()
        held = self.http2.unread_bytes + buffered
        # The transport keeps the whole of what it was given until the last of it is sent.
        self._unread_bytes = max(held, self._unread_bytes) if self._is_writing_paused else held
        self._read_bytes = max(self._read_bytes, self.http2.read_bytes - buffered)
        self._unread.count(self, self._unread_bytes)
        return Holder(self, self._unread_bytes, self._read_bytes, self._end_unread)

    def _end_unread(self, nbytes: int) -> None:
        """End streams whose answers wait, until so many bytes are free; or the connection."""
        if self._is_writing_paused or self._is_closing:
            self._unread.ended_count += 1
            logger.info("%s: connection closed", self._too_slow())
            self.abort()
            self._drop_output()
            return
        enough = self._unread_bytes - nbytes
        for stream_id in self.http2.fullest_streams():
            self._unread.ended_count += 1
            logger.info("%s: stream reset", self._too_slow())
            self._reset_unread(stream_id, Http2ErrorCode.ENHANCE_YOUR_CALM)
            self.count_unread()
            if self._unread_bytes <= enough:
                break
        self.flush_soon()

    def _drop_output(self) -> None:
        self.http2.drop_output()
        self._unread_bytes = 0
        self._unread.count(self, 0)

    def _too_slow(self) -> str:
        return (
            f"{self.client_name} client reads too slowly for {self._unread_bytes} bytes of "
            f"responses, while unread ones use more than {self._unread.limit_bytes} bytes"
        )

    def _check_writing(self, now_ns: int) -> bool:
        """End streams and connections whose client does not read; returns whether this is open."""
        is_waiting = self._is_writing_paused or self._is_closing
        unsent_bytes = self.transport.get_write_buffer_size() if is_waiting else None
        if self._output_timer.is_overdue(now_ns / 1e9, unsent_bytes):
            logger.info(
                "%s client read no responses for too long: connection closed", self.client_name
            )
            self.abort()
        if self._is_closing:
            return False
        if self._unread_bytes or self._is_writing_paused:
            self.count_unread()
        for stream_id in self.http2.stalled_streams(now_ns):
            logger.info(
                "%s client read nothing of a response for too long: stream reset", self.client_name
            )
            self._reset_unread(stream_id)
        return True

    def _check_input(
        self, now_ns: int, requests: Mapping[int, IncompleteRequest]
    ) -> dict[int, IncompleteInput]:
        """End the connection if a frame is incomplete for too long, unless the client waits for us.

        Returns:
            What is missing of those of the requests, by stream, that are incomplete for too long.
        """
        if self._is_reading_paused:
            requests, incomplete = {}, None
        else:
            incomplete = self.http2.incomplete_input()
        if self._input_timer.is_overdue(now_ns / 1e9, incomplete) and incomplete is not None:
            text = f"{incomplete.description} came too slowly"
            self.http2.abort(Http2ErrorCode.ENHANCE_YOUR_CALM, text)
            for event in self.http2.take_events():
                self._on_event(event)
            return {}
        last, self._request_timers = self._request_timers, {}
        overdue = {}
        for stream_id, request in requests.items():
            part = request.incomplete_input()
            if part is not None and self.http2.can_peer_send(stream_id):
                timer = last.get(stream_id) or InputTimer(self._limits)
                self._request_timers[stream_id] = timer
                if timer.is_overdue(now_ns / 1e9, part):
                    overdue[stream_id] = part
        return overdue
