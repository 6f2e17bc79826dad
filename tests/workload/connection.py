# SPDX-License-Identifier: Apache-2.0
"""What the clients of both protocols have in common: a connection without I/O of its own.

It has the methods of an `asyncio.Protocol`, gets its clock and timers, does what the conduct of a
call says, and tells its owner the end of each call exactly once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from tests.workload.calls import POLITE, Call, Cut, End

_HELD_PIECE_S = 0.001  # when a piece is tried again that the transport did not take


class ViolationError(Exception):
    """The server sent something that the protocol does not allow."""


class ClientConnection:
    """One connection to the server.

    Calls are sent in the order in which they are submitted, without waiting for answers. Whoever
    wants to wait submits the next call when the one before has ended.

    Args:
        now: tells the time in seconds.
        call_later: calls a function after a delay in seconds; what it returns has `cancel()`.
        on_end: is told each call that was submitted, once, when it has ended.
        on_lost: is told the client and the error when its connection has ended.
        on_violation: is told a sentence, and the call that it is about, if any.
    """

    def __init__(
        self,
        now: Callable[[], float],
        call_later: Callable[..., Any],
        on_end: Callable[[Call], None],
        *,
        on_lost: Callable[[Any, Exception | None], None] | None = None,
        on_violation: Callable[[str, Call | None], None] | None = None,
    ) -> None:
        self._now = now
        self._call_later = call_later
        self._on_end = on_end
        self._on_lost = on_lost
        self._on_violation = on_violation
        self._transport: Any = None
        self._waiting: deque[Call] = deque()  # submitted, and nothing of it is sent
        self._timers: dict[int, list[Any]] = {}  # by the number of the call
        self._sending: tuple[Call, bytes, int] | None = None  # a call that is sent in pieces
        self._behind: list[bytes] = []  # what has to be sent after those pieces
        self._is_held = False  # the transport has enough for now
        self._is_half_closed = False
        self._saw_eof = False
        self._read_on_s: float | None = None
        self._paused_for = -1  # number of the last call for which reading paused
        self.is_lost = False
        self.is_cut = False  # this client has ended the connection, or one half of it

    # What its owner does

    @property
    def is_usable(self) -> bool:
        """Whether the connection takes more calls."""
        return not (self.is_lost or self.is_cut)

    def submit(self, call: Call) -> None:
        """Send a call as soon as the connection takes it."""
        call.outcome.submitted_s = self._now()
        if not self.is_usable:
            self._finish(call, End.UNSENT)
            return
        self._waiting.append(call)
        self._pump()

    def cut(self, how: Cut = Cut.ABORT) -> None:
        """End the connection; whatever is open ends with it."""
        if self.is_lost or (self.is_cut and not self._is_half_closed):
            return
        self.is_cut = True
        if self._transport is None:
            self._end_all(End.CUT)
            return
        if how is Cut.HALF and not self._is_half_closed and not self._saw_eof:
            self._is_half_closed = True
            self._transport.write_eof()
            self._drop_unsent()
            return
        self._is_half_closed = False
        if how is Cut.CLOSE:
            self._transport.close()
        else:
            self._transport.abort()
        self._end_all(End.CUT)

    # What the transport says

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        if self.is_cut:
            transport.abort()
            return
        self._opened()
        self._pump()

    def pause_writing(self) -> None:
        self._is_held = True

    def resume_writing(self) -> None:
        self._is_held = False
        if not self.is_cut:
            self._pump()

    def eof_received(self) -> None:
        self._saw_eof = True

    def connection_lost(self, error: Exception | None) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        reason = "" if error is None else repr(error)
        self._end_all(End.CUT if self.is_cut else End.LOST, reason)
        if self._on_lost is not None:
            self._on_lost(self, error)

    def data_received(self, data: bytes) -> None:
        if self.is_cut and not self._is_half_closed:
            return
        try:
            self._receive(data)
        except ViolationError as violation:
            self._violate(str(violation))

    # What a protocol does

    def _opened(self) -> None:
        """The connection is there."""

    def _pump(self) -> None:
        """Send what waits, as far as that is possible now."""
        raise NotImplementedError

    def _receive(self, data: bytes) -> None:
        """Read bytes; raises ViolationError for what the protocol does not allow."""
        raise NotImplementedError

    def _give_up(self, call: Call) -> None:
        """Cancel an open call in the way of the protocol."""
        raise NotImplementedError

    def _take_open(self) -> list[Call]:
        """Forget all calls of which something was sent; returns them."""
        raise NotImplementedError

    def _current(self) -> Call | None:
        """The call that a violation is about, if any."""
        raise NotImplementedError

    # Sending

    def _write(self, data: bytes) -> None:
        if self._sending is not None:
            self._behind.append(data)
        else:
            self._transport.write(data)

    def _begin_sending(self, call: Call, message: bytes) -> None:
        """Send the bytes of a call, in the way that its conduct says."""
        outcome = call.outcome
        outcome.began_s = self._now()
        conduct = call.conduct
        if conduct is POLITE:
            self._transport.write(message)
            outcome.sent_s = outcome.began_s
            return
        if conduct.cancel_after_s is not None:
            self._later(call, conduct.cancel_after_s, self._cancel, call)
        self._sending = (call, message, 0)
        self._send_piece()

    def _send_piece(self) -> None:
        if self._sending is None or self.is_cut or self.is_lost:
            return
        call, message, at = self._sending
        conduct = call.conduct
        if self._is_held:
            self._later(call, conduct.piece_pause_s or _HELD_PIECE_S, self._send_piece)
            return
        end = len(message)
        if conduct.piece_bytes:
            end = min(end, at + conduct.piece_bytes)
        limit = conduct.cut_after_sent_bytes
        if limit is not None and limit <= end:
            self._send_last_piece(call, message, at, limit)
            return
        self._transport.write(message[at:end])
        if end < len(message):
            self._sending = (call, message, end)
            self._later(call, conduct.piece_pause_s, self._send_piece)
            return
        call.outcome.sent_s = self._now()
        self._end_sending()

    def _send_last_piece(self, call: Call, message: bytes, at: int, limit: int) -> None:
        """Send up to the limit, then end the connection."""
        if limit > at:
            self._transport.write(message[at:limit])
        if limit >= len(message):
            call.outcome.sent_s = self._now()
        self._sending = None
        self.cut(call.conduct.cut)

    def _end_sending(self) -> None:
        """The pieces are sent, or make no sense any more; send what is behind them."""
        self._sending = None
        if self._behind:
            behind, self._behind = self._behind, []
            self._transport.write(b"".join(behind))
        self._pump()

    def _later(self, call: Call, delay_s: float, function: Callable[..., None], *args: Any) -> None:
        timer = self._call_later(delay_s, function, *args)
        self._timers.setdefault(call.number, []).append(timer)

    def _cancel(self, call: Call) -> None:
        if call.outcome.end is None and not self.is_cut:
            self._give_up(call)

    # Reading

    def _reacts(self, call: Call) -> bool:
        """Do what a client does when bytes of an answer come; whether it has left."""
        conduct = call.conduct
        received = call.outcome.received_bytes
        limit = conduct.cut_after_received_bytes
        if limit is not None and received >= limit:
            self.cut(Cut.ABORT if conduct.cut is Cut.HALF else conduct.cut)
            return True
        pause = conduct.read_pause_after_bytes
        is_new = self._paused_for != call.number  # it pauses once
        if pause is not None and received >= pause and is_new and not self._saw_eof:
            self._paused_for = call.number
            self._transport.pause_reading()
            self._call_later(conduct.read_pause_s, self._resume_reading)
        return False

    def _resume_reading(self) -> None:
        if not self.is_lost and not (self.is_cut and not self._is_half_closed):
            self._read_on_s = self._now()
            self._transport.resume_reading()

    # Ends

    def _violate(self, sentence: str) -> None:
        call = self._current()
        if call is not None:
            call.outcome.violations.append(sentence)
        if self._on_violation is not None:
            self._on_violation(sentence, call)
        self._transport.abort()
        self.is_cut = True
        self._is_half_closed = False
        self._end_all(End.BROKEN)

    def _drop_unsent(self) -> None:
        while self._waiting:
            self._finish(self._waiting.popleft(), End.UNSENT)

    def _end_all(self, end: End, reason: str = "") -> None:
        self._sending = None
        self._behind.clear()
        for call in self._take_open():
            call.outcome.error = call.outcome.error or reason
            self._finish(call, end)
        self._drop_unsent()

    def _stop_sending(self, call: Call) -> None:
        """A call has ended of which only a part is sent."""
        raise NotImplementedError

    def _finish(self, call: Call, end: End) -> None:
        if self._sending is not None and self._sending[0] is call:
            self._stop_sending(call)
        if self._timers:
            for timer in self._timers.pop(call.number, ()):
                timer.cancel()
        outcome = call.outcome
        outcome.ends += 1
        outcome.ended_s = self._now()
        outcome.read_on_s = self._read_on_s
        outcome.end = end
        self._on_end(call)
