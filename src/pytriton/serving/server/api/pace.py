# SPDX-License-Identifier: Apache-2.0
"""How slow a client may be: by itself, for timeouts, and for the memory that it holds.

Nothing here has a clock or ends anybody: callers pass the time, and do what is decided.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from pytriton.protocol.http2 import IncompleteInput

# How long the input of a client is discarded whose connection has ended. If it were closed at once,
# unread bytes would make the system reset it, and the last answers might be lost (RFC 9112, 9.6).
LINGER_S = 5.0
# A slower client counts as stalled: a byte now and then is no progress.
MIN_BYTES_PER_S = 256
# While memory is short, a client has to move what it holds at a rate for which this is enough.
HOLDING_S = 60.0
_STILL = 0.1  # who moves less than this part of what it has to stands still


class Pace:
    """Measures for how long a client has been too slow: slower than `MIN_BYTES_PER_S`, or more.

    The least rate grows with the bytes that it `held`.
    """

    __slots__ = ("_bytes", "_since")

    def __init__(self) -> None:
        self._bytes = 0
        self._since = 0.0

    def restart(self, now: float) -> None:
        self._bytes = 0
        self._since = now

    def advance(self, nbytes: int, now: float, held: int = 0) -> None:
        """Count bytes that the client sent or received."""
        self._bytes += nbytes
        if nbytes and self._bytes >= max(MIN_BYTES_PER_S, held / HOLDING_S) * (now - self._since):
            self.restart(now)

    def stalled_s(self, now: float) -> float:
        """Returns for how long it has been too slow."""
        return now - self._since

    def stands_still(self, now: float, held: int) -> bool:
        """Returns whether it has moved next to nothing since it is too slow."""
        return self._bytes < _STILL * held / HOLDING_S * (now - self._since)


class StallLimits(Protocol):
    """How long a client may make no progress."""

    @property
    def header_timeout_s(self) -> float:
        """For all of a head, or of another small part."""

    @property
    def body_stall_timeout_s(self) -> float:
        """While a body is received."""

    @property
    def write_stall_timeout_s(self) -> float:
        """While a response is sent."""


class InputTimer:
    """Times how long the rest of an incomplete input takes; it is asked periodically."""

    __slots__ = ("_last", "_limits", "_pace")

    def __init__(self, limits: StallLimits) -> None:
        self._limits = limits
        self._last: IncompleteInput | None = None
        self._pace = Pace()

    def is_overdue(self, now_s: float, incomplete: IncompleteInput | None) -> bool:
        """Returns whether it takes too long; None if nothing is missing that may come now."""
        last, self._last = self._last, incomplete
        if incomplete is None:
            return False
        if last is None or incomplete[:2] != last[:2]:
            self._pace.restart(now_s)
            return False
        if not incomplete.data_left:  # the limit for heads is a total time, whatever is received
            return self._pace.stalled_s(now_s) > self._limits.header_timeout_s
        self._pace.advance(max(0, last.data_left - incomplete.data_left), now_s)
        return self._pace.stalled_s(now_s) > self._limits.body_stall_timeout_s


class OutputTimer:
    """Times how long output waits for a client to read it; it is asked periodically."""

    __slots__ = ("_limits", "_pace", "_unsent_bytes")

    def __init__(self, limits: StallLimits) -> None:
        self._limits = limits
        self._pace = Pace()
        self._unsent_bytes: int | None = None

    def is_overdue(self, now_s: float, unsent_bytes: int | None) -> bool:
        """Returns whether it takes too long; None if the client need not read now."""
        last, self._unsent_bytes = self._unsent_bytes, unsent_bytes
        if unsent_bytes is None:
            return False
        if last is None:
            self._pace.restart(now_s)
        else:
            self._pace.advance(max(0, last - unsent_bytes), now_s)
        return self._pace.stalled_s(now_s) > self._limits.write_stall_timeout_s


class Holder(NamedTuple):
    """A client for which memory is held until it has sent, or read, more."""

    key: Hashable
    nbytes: int
    moved: int  # what it has sent or read so far; less than before if it has begun anew
    end: Callable[[int], None]  # frees so many bytes, or all, by ending what they are held for


class Lateness:
    """Tells which holders of memory are too slow for what they hold, from one look to the next."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, tuple[Holder, Pace]] = {}

    def look(self, holders: Iterable[Holder], now: float) -> None:
        """Note what all of them hold now, and how far they have come."""
        last, self._seen = self._seen, {}
        for holder in holders:
            before = last.get(holder.key)
            if before is None or holder.moved < before[0].moved:
                pace = Pace()
                pace.restart(now)
            else:
                pace = before[1]
                pace.advance(holder.moved - before[0].moved, now, holder.nbytes)
            self._seen[holder.key] = holder, pace

    def late(self, now: float, patience_s: float) -> list[Holder]:
        """Returns who has been too slow for so long, in the order in which they have to leave.

        Those that stand still come first, and of these and of the others who holds most for
        longest. Who holds much less than most others stays: to end it would win nothing.
        """
        seen = self._seen.values()
        least = sum(holder.nbytes for holder, _ in seen) / (2 * len(seen)) if seen else 0.0
        late = [
            (pace.stands_still(now, holder.nbytes), holder.nbytes * pace.stalled_s(now), holder)
            for holder, pace in seen
            if holder.nbytes >= least and pace.stalled_s(now) >= patience_s
        ]
        late.sort(key=lambda each: each[:2], reverse=True)
        return [holder for _, _, holder in late]
