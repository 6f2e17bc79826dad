# SPDX-License-Identifier: Apache-2.0
"""Turns of clients: what one of them may make the event loop do before the others are served.

One read of a socket can bring more than a thousand requests, and one of them may take milliseconds.
So what a connection does for its client is counted in units of about 20 microseconds, roughly, and
not measured: the same input always takes the same turns. When the units of a turn are spent, the
connection reads nothing more from its socket, and what it has read already waits in it, in order,
for its next turn. Turns are taken in a queue, in each iteration of the event loop so many of them
that they take as long as one.

Small inferences that travel as columns cost nothing, so that those of one read stay together; how
many there can be is bounded where a read is parsed. Everything else costs something, by what it is
and by the bytes of its answer.

What may happen while work is left:

- The connection ends, by the client or with an error: what is left is dropped. The queue may still
  call `begin_turn`, which then does nothing.
- Reading is paused already, because the client reads no answers: it stays paused. It goes on when
  both reasons are gone, whichever is the last.
- The client has sent its end of file: that is not read before the work that is left is done, so a
  client that only sends no more still gets its answers.
- A request is not complete: its first part waits with what is before it, and no time counts against
  the client, who cannot send now.
- The protocol changes (HTTP/2 after HTTP/1.1, or a request with `Upgrade`): what follows is parsed
  when its turn comes, by whoever has taken the connection over.
- Answers to pipelined requests keep their order, since requests are left in order.
- The server shuts down: requests of HTTP that were parsed are answered, in turns. What was not
  parsed is like what is still in the socket: it is dropped, and the client is told what was
  answered last. Calls of gRPC that were not begun are refused as ones that the client may repeat.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from pytriton.base.dtypes import Buffer

logger = logging.getLogger(__name__)

TURN_UNITS = 128
REQUEST_UNITS = 4  # a request or a call that is no column
_BYTES_PER_UNIT = 256  # of answers: most are documents, and are made of small parts
_MESSAGE_BYTES_PER_UNIT = 8  # of protobuf: each field is set by itself


def answer_units(parts: Sequence[Buffer]) -> int:
    """Returns what it costs to write an answer."""
    return 1 + sum(map(len, parts)) // _BYTES_PER_UNIT


def message_units(message: bytes) -> int:
    """Returns what it costs to make a message that describes something."""
    return 1 + len(message) // _MESSAGE_BYTES_PER_UNIT


class TurnTaker(Protocol):
    """A connection that does in turns what its client asks for."""

    def end_turn(self) -> None:
        """Read nothing more, and keep what is left for the next turn."""

    def begin_turn(self) -> None:
        """Go on with what is left; called after each `end_turn`, and after `Turn.want_next`."""

    def abort(self) -> None:
        """End the connection at once."""


class Turn:
    """What one connection may still do in this iteration of the event loop."""

    __slots__ = ("_is_used", "_is_wanted", "_left", "_owner", "_turns")

    def __init__(self, turns: Turns, owner: TurnTaker) -> None:
        self._turns = turns
        self._owner: TurnTaker | None = owner
        self._left = TURN_UNITS
        self._is_used = False
        self._is_wanted = False

    @property
    def is_over(self) -> bool:
        """Whether other clients have to be served first."""
        return self._left <= 0

    def spend(self, units: int) -> None:
        """Count some work of the connection, which may end its turn."""
        if not self._is_used:
            self._is_used = True
            self._turns.add(self)
        was_over = self._left <= 0
        self._left -= units
        if self._left <= 0 and not was_over and self._owner is not None:
            self._owner.end_turn()

    def end(self) -> None:
        """Let others be served first, as there is more to do."""
        if self._left > 0:
            self.spend(self._left)

    def want_next(self, units: int) -> None:
        """Count some work of which a part is left for the next turn, though this one may go on."""
        self._is_wanted = True
        self.spend(units)

    def close(self) -> None:
        """Let go of a connection that is lost: it owns this turn, and should not stay for it."""
        self._owner = None

    def renew(self) -> int:
        """Begin the next turn; returns what was spent at once, for what was left."""
        is_wanted = self._is_wanted or self._left <= 0
        self._is_used = self._is_wanted = False
        self._left = TURN_UNITS
        if is_wanted and self._owner is not None:
            try:
                self._owner.begin_turn()
            except Exception:
                # What it would have sent may be lost, so the client could not read what follows.
                logger.exception("a client could not be served")
                self._owner.abort()
        return TURN_UNITS - self._left


class Turns:
    """Renews the turns of the connections of a port, first those that were used first."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._used: deque[Turn] = deque()
        self._is_due = False

    def add(self, turn: Turn) -> None:
        """Renew a turn in the next iteration of the event loop, or in a later one."""
        self._used.append(turn)
        self._renew_soon()

    def _renew_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._renew)

    def _renew(self) -> None:
        self._is_due = False
        spent = 0
        for _ in range(len(self._used)):  # those that go on are added behind the others
            spent += self._used.popleft().renew()
            if spent >= TURN_UNITS:
                break
        if self._used:
            self._renew_soon()
