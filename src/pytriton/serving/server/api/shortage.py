# SPDX-License-Identifier: Apache-2.0
"""While memory is short, ends the clients that hold much of it and are slow.

`pace` says who that is. Two kinds of memory are watched: the bodies of requests that are not
complete, in the budget of `request_memory`, and the answers that clients do not read, which are
counted here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pytriton.runtime.transport.arena import DEFAULT_LIMIT_BYTES
from pytriton.serving.server.api.pace import Lateness

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Iterator

    from pytriton.serving.server.api.pace import Holder

UNREAD_ANSWERS = "unread_answers"  # the name of this limit in metrics
# What the client of an incomplete request is told.
TOO_SLOW = (
    "the request came too slowly for the memory that it uses, which others need: while there is "
    "too little, a large request has to come in about a minute (see --max-request-memory)"
)
CHECK_S = 0.25
# How long a client may be too slow for what it holds; a quarter of it while memory runs out fast.
PATIENCE_S = 1.0
# How long clients are watched after somebody was refused who would have needed memory.
_WATCHED_S = 10.0


def unread_limit(memory_bytes: int, processes: int) -> int:
    """Returns how many bytes of answers may be unread in a process, without anybody being ended.

    That is a quarter of the outputs of one instance, or of the memory that there is. Front ends
    share it, but each may keep one large answer for a client that reads it slowly.
    """
    return min(memory_bytes, DEFAULT_LIMIT_BYTES) // 4 // min(max(processes, 1), 4)


class Shortage:
    """Watches those who hold some kind of memory, from `begin` until there is enough again.

    Args:
        missing: Returns how many bytes have to become free, given how many are wanted.
        holders: Returns all clients that hold such memory until they have moved more.
        urgent_bytes: If so many are missing, there is less time to wait for anybody.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        missing: Callable[[int], int],
        holders: Callable[[], Iterable[Holder]],
        urgent_bytes: int,
    ) -> None:
        self._loop = loop
        self._missing = missing
        self._holders = holders
        self._urgent_bytes = urgent_bytes
        self._lateness = Lateness()
        self._wanted = 0
        self._until = 0.0
        self._is_watching = False

    def begin(self, wanted: int = 0) -> None:
        """Watch, because so many bytes were wanted and there was no room for them."""
        self._until = self._loop.time() + _WATCHED_S
        self._wanted = max(self._wanted, wanted)
        if not self._is_watching:
            self._is_watching = True
            # Not at once: the caller may be within a client that has to be ended.
            self._loop.call_soon(self._check)

    def _check(self) -> None:
        now = self._loop.time()
        missing = self._missing(self._wanted)
        if missing <= 0 or now > self._until:
            self._is_watching = False
            self._wanted = 0
            self._lateness = Lateness()
            return
        self._loop.call_later(CHECK_S, self._check)
        self._lateness.look(self._holders(), now)
        is_urgent = missing >= self._urgent_bytes
        for holder in self._lateness.late(now, PATIENCE_S / 4 if is_urgent else PATIENCE_S):
            holder.end(missing)
            missing = self._missing(self._wanted)
            if missing <= 0:
                break


class AnswerReader(Protocol):
    """A connection with answers that its client has not read."""

    def count_unread(self) -> Holder:
        """Count what is unread now, and return it."""


class UnreadAnswers:
    """Counts the answers that the clients of one process have not read; 0 bytes: no limit.

    Above the limit, the slowest of those that hold most are ended, so that they cost only
    themselves, and not the memory for everybody's outputs.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, limit_bytes: int = 0) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.ended_count = 0
        self._readers: dict[AnswerReader, int] = {}
        self._shortage = Shortage(loop, self._missing, self._holders, limit_bytes)

    def count(self, reader: AnswerReader, nbytes: int) -> None:
        """Note how much a connection has unread now; it says so again when that changes."""
        if nbytes:
            self.used_bytes += nbytes - self._readers.get(reader, 0)
            self._readers[reader] = nbytes
            if self.used_bytes > self.limit_bytes > 0:
                self._shortage.begin()
        else:
            self.used_bytes -= self._readers.pop(reader, 0)

    def _missing(self, wanted: int) -> int:
        return self.used_bytes + wanted - self.limit_bytes

    def _holders(self) -> Iterator[Holder]:
        return (reader.count_unread() for reader in list(self._readers))
