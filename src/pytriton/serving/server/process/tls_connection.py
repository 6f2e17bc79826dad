# SPDX-License-Identifier: Apache-2.0
"""One encrypted connection: a protocol for the socket's transport, a transport for the protocol.

Handshakes are computed in threads, so that clients who connect do not hold up those who are
connected: with uvloop's own TLS, 1,024 clients stopped the event loop for a second. Requests take
no longer than with it. Certificates are in `tls.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import ssl
from collections import deque
from typing import TYPE_CHECKING, Any

from pytriton.serving.server.api.turns import Turn
from pytriton.serving.server.process.tls_handshakes import (
    OTHER,
    PLAIN_ANSWER,
    PLAIN_REQUEST,
    TIMEOUT,
    TlsRecords,
    failure_reason,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pytriton.base.dtypes import Buffer
    from pytriton.serving.server.process.clients import ConnectionSet
    from pytriton.serving.server.process.tls import TlsPort

logger = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT_S = 30.0
RAW_BYTES = 256 << 10  # that are read from a socket at once
_RECORD_BYTES = 16 << 10  # at most, of one record of TLS, which is what OpenSSL reads at once
# More is passed to OpenSSL a few records at a time, since it goes on until it finds some data: one
# read may have 9,000 changes of keys (RFC 8446, 4.6.3), each of which takes it 40 us.
_QUICK_BYTES = 2 << 10
_RECORDS_AT_ONCE = 32
# More is encrypted piece by piece, as the socket takes it: OpenSSL needs a millisecond for 2 MiB.
_DIRECT_BYTES = 64 << 10
_SLICE_BYTES = 128 << 10
_TURN_BYTES = 1 << 20  # that are encrypted for one client in one iteration of the event loop
_HIGH_WATER_BYTES = 256 << 10  # of encrypted output that waits for the socket


class TlsState(enum.Enum):
    """The life of a connection; `_TRANSITIONS` has the steps."""

    HANDSHAKE = enum.auto()  # there is no protocol yet
    OPEN = enum.auto()
    ENDING = enum.auto()  # our side is closed, or will be when all output is encrypted
    LOST = enum.auto()


_HANDSHAKE, _OPEN = TlsState.HANDSHAKE, TlsState.OPEN
_ENDING, _LOST = TlsState.ENDING, TlsState.LOST
_TRANSITIONS = {
    _HANDSHAKE: (_OPEN, _LOST),
    _OPEN: (_ENDING, _LOST),
    _ENDING: (_LOST,),
    _LOST: (),
}


class TlsConnection(asyncio.BufferedProtocol, asyncio.Transport):
    """A connection whose client has just been accepted.

    Args:
        loop: The event loop.
        port: The certificates of its port.
        make_protocol: Makes what the connection is for, once the handshake is complete.
        raw: Memory for what is read from sockets; all connections of a process share it.
        handshakes: The connections of the port whose handshake is not complete.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        port: TlsPort,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        raw: memoryview,
        handshakes: ConnectionSet[TlsConnection],
    ) -> None:
        super().__init__()
        self._loop = loop
        self._port = port
        self._make_protocol = make_protocol
        self._raw = raw
        self._handshakes = handshakes
        self.client_ticket: object = None  # until there is a protocol, which then has it
        self._state = _HANDSHAKE
        self._socket: Any = None  # the socket's transport
        self._protocol: Any = None
        self._is_buffered = False  # whether the protocol has buffers of its own
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls: Any = None  # made with the first bytes, in a thread
        # Methods that each request calls
        self._take_raw = self._incoming.write
        self._take_output = self._outgoing.read
        self._decrypt: Any = None
        self._encrypt: Any = None
        self._has_begun = False  # the client has sent something
        self._timer: asyncio.TimerHandle | None = None
        self._backlog: deque[memoryview] = deque()  # output that is not encrypted yet
        self._backlog_bytes = 0
        self._is_turn_due = False
        self._is_socket_full = False
        self._is_writing_paused = False
        self._is_reading_paused = False
        self._is_answer_waiting = False  # what OpenSSL says by itself has no room in the socket
        self._turn = Turn(port.turns, self)
        self._records = TlsRecords()  # in what was passed to OpenSSL
        self._kept = b""  # what was received, and is passed to OpenSSL in the next turn
        self._is_quick = False  # open, nothing is kept, and the next byte begins a record
        self._is_closing = False  # also the other side's, once all output is sent
        self._is_end_sent = False

    def _become(self, state: TlsState) -> None:
        assert state in _TRANSITIONS[self._state], f"{self._state} -> {state}"
        self._state = state
        self._is_quick = False
        self._kept = b""

    # What the socket's transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = transport
        self._socket.set_write_buffer_limits(_HIGH_WATER_BYTES)
        self._handshakes.add(self)
        self._timer = self._loop.call_later(HANDSHAKE_TIMEOUT_S, self._on_timeout)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._raw

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_quick and not self._is_reading_paused and nbytes <= _QUICK_BYTES:
            self._take_raw(self._raw[:nbytes])
            if not self._is_buffered:
                self._receive_quickly(nbytes)
                return
            # The same as `_receive`, with fewer steps for a small request. With all of them,
            # encrypting took 7.5 us for each request, and takes 6 us now; 3.5 us are OpenSSL's.
            protocol = self._protocol
            buffer = protocol.get_buffer(-1)
            try:
                count = self._decrypt(len(buffer), buffer)
            except ssl.SSLError as error:
                self._follow(nbytes)
                self._on_read_error(error)
                return
            # If nothing is left of what was passed to OpenSSL, the next byte begins a record.
            is_whole = 0 < count < len(buffer) and not self._incoming.pending
            if not is_whole or self._outgoing.pending:
                self._follow(nbytes)
                self._pass_on(protocol, buffer, count)
                self._receive()
            else:
                protocol.buffer_updated(count)
        elif self._state is _OPEN:
            self._receive_in_turns(bytes(self._raw[:nbytes]))
        elif self._state is _HANDSHAKE:
            self._has_begun = True
            self._take_raw(self._raw[:nbytes])
            # OpenSSL's objects belong to the thread until it is done.
            self._socket.pause_reading()
            self._port.threads.submit(self._take_step, self._port.context)
        # Otherwise our side is closed, and nobody reads what the client still sends.

    def eof_received(self) -> bool:
        if self._state is _OPEN:
            self._receive()
        if self._state is _OPEN:
            self._end_of_input()
        elif self._state is _ENDING and not self._is_closing:
            self._protocol.eof_received()
        return bool(self._backlog) and self._state is not _LOST

    def connection_lost(self, exc: Exception | None) -> None:
        was_open = self._protocol is not None
        is_handshake = self._state is _HANDSHAKE
        self._become(_LOST)
        self._drop_backlog()
        if is_handshake:
            self._settle()
            # One who only looks whether the port is open, as load balancers do, did not fail.
            if self._has_begun and not self._is_closing:
                self._port.count_failure(OTHER)
        if was_open:
            self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        self._is_socket_full = True
        self._tell_protocol()

    def resume_writing(self) -> None:
        self._is_socket_full = False
        if self._is_answer_waiting:
            self._is_answer_waiting = False
            if not self._is_reading_paused:
                self.resume_reading()
        if self._backlog:
            self._encrypt_backlog()
        else:
            self._tell_protocol()

    # The handshake

    def _take_step(self, context: ssl.SSLContext) -> None:
        """Go on with the handshake, in a thread."""
        error: Exception | None = None
        is_complete = False
        try:
            if self._tls is None:
                self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
            self._tls.do_handshake()
            is_complete = True
        except ssl.SSLWantReadError:
            pass
        except Exception as failure:  # noqa: BLE001  the event loop handles it
            error = failure
        output = self._outgoing.read()
        try:
            self._loop.call_soon_threadsafe(self._on_step, output, is_complete, error)
        except RuntimeError:  # the event loop has ended
            return

    def _on_step(self, output: bytes, is_complete: bool, error: Exception | None) -> None:
        if self._state is not _HANDSHAKE or self._socket.is_closing():
            return
        if isinstance(error, ssl.SSLError) and error.reason == PLAIN_REQUEST:
            output = PLAIN_ANSWER
        if output:
            self._socket.write(output)
        if error is not None:
            self._on_failed_handshake(error)
        elif is_complete:
            self._open()
        else:
            self._socket.resume_reading()

    def _on_failed_handshake(self, error: Exception) -> None:
        if isinstance(error, OSError):  # the client does not speak TLS, or no version of ours
            logger.debug("a client could not connect: %s", error)
        else:
            logger.error("a client could not be served", exc_info=error)
        self._port.count_failure(failure_reason(error))
        self._is_closing = True
        self._socket.close()

    def _open(self) -> None:
        self._become(_OPEN)
        # `ssl` wraps OpenSSL's object twice; its own methods take half a microsecond less.
        inner = getattr(self._tls, "_sslobj", self._tls)
        self._decrypt, self._encrypt = inner.read, inner.write
        ticket, self.client_ticket = self.client_ticket, None
        try:
            self.set_protocol(self._make_protocol())
            if ticket is not None:
                self._protocol.client_ticket = ticket
            self._settle()
            self._protocol.connection_made(self)
        except Exception:  # as the event loop does it for connections that are not encrypted
            logger.exception("a client could not be served")
            self._protocol, self.client_ticket = None, ticket
            self._settle()
            self.abort()
            return
        if self._is_socket_full:
            self._tell_protocol()
        if self._state is _OPEN:
            # A client may send its first request, and more, with the end of the handshake.
            self._kept = self._incoming.read()
            self._go_on()

    def _on_timeout(self) -> None:
        logger.debug("a client did not complete its handshake in %g s", HANDSHAKE_TIMEOUT_S)
        self._port.count_failure(TIMEOUT)
        self.abort()

    def _settle(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._handshakes.discard(self)

    # Input

    def _receive_quickly(self, nbytes: int) -> None:
        """Do what `_receive` does, for a protocol that has no buffers, with a small read."""
        try:
            data = self._decrypt(_RECORD_BYTES)
        except ssl.SSLError as error:
            self._follow(nbytes)
            self._on_read_error(error)
            return
        if not data or self._incoming.pending or self._outgoing.pending:
            self._follow(nbytes)
        if data:
            self._protocol.data_received(data)
            if self._incoming.pending or self._outgoing.pending:
                self._receive()
        else:
            self._end_of_input()

    def _follow(self, nbytes: int) -> None:
        """Find the records of a small read that was passed to OpenSSL."""
        _, count = self._records.cut(self._raw[:nbytes], 0, nbytes)
        self._is_quick = self._records.is_between
        self._turn.spend(count)

    def _receive_in_turns(self, data: bytes) -> None:
        """Decrypt what has come, until the protocol reads no more, or others are to be served."""
        at = 0
        while at < len(data) and self._can_receive():
            end, count = self._records.cut(data, at, _RECORDS_AT_ONCE)
            self._take_raw(data[at:end])
            at = end
            self._turn.spend(count)
            self._receive()
        if self._state is _OPEN:
            self._kept = data[at:]
            self._is_quick = not self._kept and self._records.is_between
            if self._kept and not self._socket.is_closing():
                self._socket.pause_reading()

    def _can_receive(self) -> bool:
        is_held_up = self._is_reading_paused or self._is_answer_waiting or self._turn.is_over
        return self._state is _OPEN and not is_held_up

    def _go_on(self) -> None:
        """Pass on what was received before, then read more."""
        if self._can_receive():
            self._receive()
        if self._state is _OPEN:
            self._receive_in_turns(self._kept)
        is_ended = self._state is _ENDING  # what the client still sends is read, and dropped
        if (is_ended or (self._can_receive() and not self._kept)) and not self._socket.is_closing():
            self._socket.resume_reading()

    def end_turn(self) -> None:
        """Read no more before the next turn."""
        if not self._socket.is_closing():
            self._socket.pause_reading()

    def begin_turn(self) -> None:
        """Go on with what was received."""
        self._go_on()

    def _receive(self) -> None:
        """Decrypt what OpenSSL has, and pass it to the protocol."""
        try:
            while self._state is _OPEN and not self._is_reading_paused:
                if self._is_buffered:
                    buffer = self._protocol.get_buffer(-1)
                    self._pass_on(self._protocol, buffer, self._decrypt(len(buffer), buffer))
                elif data := self._decrypt(_RECORD_BYTES):
                    self._protocol.data_received(data)
                    # Otherwise OpenSSL would say so by an exception, which takes 5 us of each call.
                    if not self._incoming.pending and not self._outgoing.pending:
                        return
                else:
                    self._end_of_input()
        except ssl.SSLError as error:
            self._on_read_error(error)

    def _pass_on(self, protocol: Any, buffer: memoryview, count: int) -> None:
        """Pass on what was read into a buffer of the protocol, filled up with what else is here.

        OpenSSL reads one record at a time, of at most 16 KiB.
        """
        if not count:
            self._end_of_input()
            return
        is_end = False
        with contextlib.suppress(ssl.SSLWantReadError):  # the last record may not be complete
            while count < len(buffer) and self._incoming.pending and not is_end:
                part = self._decrypt(len(buffer) - count, buffer[count:])
                is_end = not part
                count += part
        protocol.buffer_updated(count)
        if is_end and self._state is _OPEN:
            self._end_of_input()

    def _on_read_error(self, error: ssl.SSLError) -> None:
        if not isinstance(error, ssl.SSLWantReadError):
            self._on_broken(error)
        elif self._outgoing.pending and self._state is _OPEN:
            # What OpenSSL has to say by itself, such as the answer to a change of keys.
            self._socket.write(self._outgoing.read())
            if self._is_socket_full:
                # A client could ask for it again and again, and read nothing.
                self._is_answer_waiting = True
                self._socket.pause_reading()

    def _end_of_input(self) -> None:
        """The client has closed its side."""
        if not self._protocol.eof_received():
            self.close()

    def _on_broken(self, error: ssl.SSLError) -> None:
        logger.debug("a connection ended: %s", error)
        if self._state is not _LOST:
            if self._outgoing.pending:  # an alert, which tells the client why
                self._socket.write(self._outgoing.read())
            self._give_up()
            self._socket.close()

    def _give_up(self) -> None:
        """Send nothing more."""
        self._is_closing = self._is_end_sent = True
        self._drop_backlog()
        if self._state is _OPEN:
            self._become(_ENDING)

    # What the protocol calls: input

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self._is_buffered = isinstance(protocol, asyncio.BufferedProtocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    def is_reading(self) -> bool:
        return not self._is_reading_paused and bool(self._socket.is_reading())

    def pause_reading(self) -> None:
        self._is_reading_paused = True
        if not self._socket.is_closing():
            self._socket.pause_reading()

    def resume_reading(self) -> None:
        self._is_reading_paused = False
        if self._socket.is_closing() or self._is_answer_waiting or self._turn.is_over:
            return
        if not self._kept:
            self._socket.resume_reading()
        # What was received and not passed on is here, where no event of the socket tells of it.
        self._loop.call_soon(self._go_on)

    # What the protocol calls: output

    def write(self, data: Buffer) -> None:
        if self._backlog or len(data) > _DIRECT_BYTES:
            self._write_later((data,))
        elif data and self._state is _OPEN:
            try:
                self._encrypt(data)
            except ssl.SSLError as error:
                self._on_broken(error)
                return
            self._socket.write(self._take_output())

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        parts = list(list_of_data)
        if self._backlog or sum(map(len, parts)) > _DIRECT_BYTES:
            self._write_later(parts)
        else:
            self.write(b"".join(parts))

    def _write_later(self, parts: Iterable[Buffer]) -> None:
        if self._state is not _OPEN:
            return
        for part in parts:
            if part:
                view = memoryview(part)
                self._backlog.append(view)
                self._backlog_bytes += len(view)
        if not self._is_turn_due:
            self._encrypt_backlog()

    def _encrypt_backlog(self) -> None:
        """Encrypt what the socket takes, up to a limit so that other clients do not wait long."""
        self._is_turn_due = False
        left = _TURN_BYTES
        try:
            while self._backlog and left > 0 and not self._is_socket_full:
                view = self._backlog[0]
                piece = view[:_SLICE_BYTES]
                self._encrypt(piece)
                self._socket.write(self._take_output())
                left -= len(piece)
                self._backlog_bytes -= len(piece)
                if len(piece) == len(view):
                    self._backlog.popleft()
                else:
                    self._backlog[0] = view[_SLICE_BYTES:]
        except ssl.SSLError as error:
            self._on_broken(error)
            return
        if self._backlog and not self._is_socket_full and not self._is_turn_due:
            self._is_turn_due = True
            self._loop.call_soon(self._encrypt_backlog)
        if not self._backlog and self._state is _ENDING:
            self._send_end()
        self._tell_protocol()

    def _drop_backlog(self) -> None:
        self._backlog.clear()
        self._backlog_bytes = 0

    def _tell_protocol(self) -> None:
        """Pause the protocol while output waits, or let it go on."""
        is_full = self._is_socket_full or bool(self._backlog)
        if is_full == self._is_writing_paused or self._protocol is None or self._state is _LOST:
            return
        self._is_writing_paused = is_full
        if is_full:
            self._protocol.pause_writing()
        else:
            self._protocol.resume_writing()

    def get_write_buffer_size(self) -> int:
        return self._backlog_bytes + int(self._socket.get_write_buffer_size())

    def get_write_buffer_limits(self) -> tuple[int, int]:
        low, high = self._socket.get_write_buffer_limits()
        return low, high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._socket.set_write_buffer_limits(high, low)

    # What the protocol calls: the end

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Close our side once all output is sent; what the client still sends is discarded."""
        if self._state is _OPEN:
            self._become(_ENDING)
            if not self._backlog:
                self._send_end()

    def is_closing(self) -> bool:
        return self._is_closing or self._state is _LOST

    def close(self) -> None:
        """Close the connection once all output is sent."""
        if self.is_closing():
            return
        self._is_closing = True
        if self._state is _HANDSHAKE:
            self._socket.abort()
            return
        if self._state is _OPEN:
            self._become(_ENDING)
        if not self._backlog:
            self._send_end()

    def abort(self) -> None:
        """Close the connection at once."""
        self._give_up()
        if self._state is not _LOST:  # asyncio's transports fail if they are aborted after that
            self._socket.abort()

    def _send_end(self) -> None:
        """Tell the client that this was all (RFC 8446, 6.1), and close."""
        if not self._is_end_sent:
            self._is_end_sent = True
            with contextlib.suppress(ssl.SSLError):  # that the client has not said so yet
                self._tls.unwrap()
            self._socket.write(self._outgoing.read())
            if not self._is_closing:
                self._socket.write_eof()
        if self._is_closing:
            self._socket.close()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Returns what is known of the connection; `peercert` only if it was verified."""
        if name == "ssl_object":
            return self._tls
        if name == "sslcontext":
            return self._port.context if self._tls is None else self._tls.context
        if name == "peercert":
            return default if self._tls is None else self._tls.getpeercert() or default
        if name == "cipher":
            return default if self._tls is None else self._tls.cipher()
        return self._socket.get_extra_info(name, default)

    def __repr__(self) -> str:
        return f"<TlsConnection {self._state.name} backlog={self._backlog_bytes}>"
