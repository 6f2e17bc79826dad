# SPDX-License-Identifier: Apache-2.0
"""Turns of clients: what one of them may make the event loop do before the others are served.

One read of a socket can bring more than a thousand requests, and one of them may take milliseconds.
So what a connection does for its client is counted in units of about 20 microseconds, roughly, and
not measured: the same input always takes the same turns. When the units of a turn are spent, the
connection reads nothing more from its socket, and what it has read already waits in it, in order,
for its next turn. Turns that are over wait in a queue, of which each iteration of the event loop
takes so many that they cost as much as one. A turn that is not over is whole again in the next
iteration, in which nobody has to touch it: most connections have one small request in each.

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

logger = logging.getLogger(__name__)

TURN_UNITS = 128
REQUEST_UNITS = 4  # a request or a call that is no column
BYTES_PER_UNIT = 256  # of answers: most are documents, and are made of small parts
_MESSAGE_BYTES_PER_UNIT = 8  # of protobuf: each field is set by itself


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

    __slots__ = ("_iteration", "_left", "_owner", "_turns", "_waits")

    def __init__(self, turns: Turns, owner: TurnTaker) -> None:
        self._turns = turns
        self._owner: TurnTaker | None = owner
        self._left = TURN_UNITS
        self._iteration = 0  # in which units of it were spent last
        self._waits = False  # in the queue

    @property
    def is_over(self) -> bool:
        """Whether other clients have to be served first."""
        return self._left <= 0

    def spend(self, units: int) -> None:
        """Count some work of the connection, which may end its turn."""
        turns = self._turns
        if self._iteration != turns.iteration:
            self._iteration = turns.iteration
            if not self._waits:
                self._left = TURN_UNITS
            if not turns.is_end_due:
                turns.end_iteration_soon()
        self._left = left = self._left - units
        if left <= 0 < left + units:
            self._wait()
            if self._owner is not None:
                self._owner.end_turn()

    def _wait(self) -> None:
        if not self._waits:
            self._waits = True
            self._turns.add(self)

    def end(self) -> None:
        """Let others be served first, as there is more to do."""
        if not self.is_over:
            self.spend(TURN_UNITS)

    def want_next(self, units: int) -> None:
        """Count some work of which a part is left for the next turn, though this one may go on."""
        self.spend(units)
        self._wait()

    def close(self) -> None:
        """Let go of a connection that is lost: it owns this turn, and should not stay for it."""
        self._owner = None

    def renew(self) -> int:
        """Begin the next turn; returns what was spent at once, for what was left."""
        self._waits = False
        self._left = TURN_UNITS
        if self._owner is not None:
            try:
                self._owner.begin_turn()
            except Exception:
                # What it would have sent may be lost, so the client could not read what follows.
                logger.exception("a client could not be served")
                self._owner.abort()
        return TURN_UNITS - self._left


class Turns:
    """The turns of the connections of a port: those that wait are renewed in their order.

    Attributes:
        iteration: The number of this iteration of the event loop, of those with a turn.
        is_end_due: Whether it is known that it ends.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.iteration = 1
        self._loop = loop
        self._waiting: deque[Turn] = deque()
        self.is_end_due = False

    def add(self, turn: Turn) -> None:
        """Renew a turn in the next iteration of the event loop, or in a later one."""
        self._waiting.append(turn)
        self.end_iteration_soon()

    def end_iteration_soon(self) -> None:
        """Begin a new iteration when all of this one is done."""
        if not self.is_end_due:
            self.is_end_due = True
            self._loop.call_soon(self._begin_iteration)

    def _begin_iteration(self) -> None:
        self.is_end_due = False
        self.iteration += 1
        spent = 0
        for _ in range(len(self._waiting)):  # those that go on are added behind the others
            spent += self._waiting.popleft().renew()
            if spent >= TURN_UNITS:
                break
        if self._waiting:
            self.end_iteration_soon()
