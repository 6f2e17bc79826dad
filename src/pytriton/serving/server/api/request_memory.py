# SPDX-License-Identifier: Apache-2.0
"""A budget for the memory of request bodies, from their first byte until they are answered.

Memory is counted as it is really taken: while data arrives or is inflated, and as long as this
process keeps it, for a request that waits or runs. Complete bodies up to `UNCOUNTED_BYTES` are not
counted, and so cost nothing if they come in one read; the limits of connections say how many of
them there can be. While they are incomplete, clients may let them wait, and they are counted.

Who sends slowly holds memory for long. That costs nobody anything until a request is refused for
it; then `shortage` ends the slowest, which needs to know how much is missing.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from pytriton.base.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.base.dtypes import Buffer

UNCOUNTED_BYTES = 64 << 10
REQUEST_MEMORY = "request_memory"  # the name of this limit in metrics


class RequestMemory:
    """The budget of one process; 0 bytes mean that there is no limit.

    Any thread may use it. Its lock is never held while memory can be freed, because that may call
    `__del__` of a lease, which only appends to a queue.
    """

    def __init__(self, limit_bytes: int = 0) -> None:
        self.limit_bytes = limit_bytes
        self.refused_count = 0
        # Called, in whichever thread, with the size for which there was no room.
        self.on_refused: Callable[[int], object] | None = None
        self._used_bytes = 0
        self._returned: deque[int] = deque()
        self._lock = threading.Lock()
        # Leases of memory that somebody still uses, each with what tells its end.
        self._attached: dict[int, tuple[weakref.ref[Any], MemoryLease | int]] = {}

    @property
    def used_bytes(self) -> int:
        """The number of bytes that are in use now."""
        with self._lock:
            self._collect()
            return self._used_bytes

    def lease(self) -> MemoryLease:
        """Returns a lease of nothing, which grows with the memory that it is for."""
        return MemoryLease(self)

    def hold(self, memory: Buffer) -> Buffer:
        """Count large memory that was filled already until it is freed; returns it.

        Raises:
            UnavailableError: There is no room for it.
        """
        return memory if len(memory) <= UNCOUNTED_BYTES else self._hold(memory)

    def hold_medium(self, memory: Buffer) -> Buffer:
        """Count memory as `hold` does, of which larger parts are counted already.

        A connection of gRPC may have thousands of open calls, and so many messages of this size.
        """
        return self._hold(memory) if len(memory) < UNCOUNTED_BYTES else memory

    def _hold(self, memory: Buffer) -> Buffer:
        # Without a lease, which would take half as long again.
        nbytes = len(memory)
        self.take(nbytes)
        view = _weakly_owned(memory)
        self.attach(view.obj, nbytes)
        return view

    def refusal(self, nbytes: int = 0) -> str | None:
        """Returns why a body of this size is refused before it is read; None if it is not."""
        if not self.limit_bytes or self.used_bytes + nbytes <= self.limit_bytes:
            return None
        self._count_refusal(nbytes)
        return self._problem()

    def missing_bytes(self, wanted: int) -> int:
        """Returns how many bytes have to become free for so many more, if that is worth it.

        Up to half of the budget nobody has to be fast: to announce a large body costs nothing, and
        must not end the requests of others.
        """
        used = self.used_bytes
        return 0 if used <= self.limit_bytes // 2 else used + wanted - self.limit_bytes

    def _count_refusal(self, nbytes: int) -> None:
        self.refused_count += 1
        if self.on_refused is not None and nbytes <= self.limit_bytes:
            self.on_refused(nbytes)

    def take(self, nbytes: int) -> None:
        """Count more bytes; UnavailableError if they are beyond the budget."""
        with self._lock:
            self._collect()
            has_room = not self.limit_bytes or self._used_bytes + nbytes <= self.limit_bytes
            if has_room:
                self._used_bytes += nbytes
        if not has_room:
            self._count_refusal(nbytes)
            raise UnavailableError(self._problem())

    def give(self, nbytes: int) -> None:
        """Count bytes that were freed, in whichever thread."""
        self._returned.append(nbytes)

    def attach(self, owner: Any, lease: MemoryLease | int) -> None:
        """Keep a lease, or a number of bytes, until the object is gone that owns its memory."""
        watch = weakref.ref(owner, self._on_freed)
        self._attached[id(watch)] = (watch, lease)

    def _on_freed(self, watch: weakref.ref[Any]) -> None:
        _, lease = self._attached.pop(id(watch))  # a lease ends with it
        if isinstance(lease, int):
            self._returned.append(lease)

    def _collect(self) -> None:
        while self._returned:
            self._used_bytes -= self._returned.popleft()

    def _problem(self) -> str:
        return (
            f"no memory for this request now: request bodies use {self._used_bytes} of at most "
            f"{self.limit_bytes} bytes (see --max-request-memory), try again later"
        )

    def __repr__(self) -> str:
        return f"<RequestMemory {self._used_bytes} of {self.limit_bytes} bytes>"


class MemoryLease:
    """The memory of one body; it is given back when the lease is deleted."""

    __slots__ = ("_memory", "nbytes")

    def __init__(self, memory: RequestMemory) -> None:
        self._memory = memory
        self.nbytes = 0

    def check_room(self, nbytes: int) -> None:
        """Raise UnavailableError if there is no room now for so many bytes; takes nothing."""
        problem = self._memory.refusal(nbytes)
        if problem is not None:
            raise UnavailableError(problem)

    def grow(self, nbytes: int) -> None:
        """Take more; if that is beyond the budget, give all back and raise UnavailableError."""
        try:
            self._memory.take(nbytes)
        except UnavailableError:
            # The body is refused, and a traceback would keep the lease for a while.
            self.close()
            raise
        self.nbytes += nbytes

    def close(self) -> None:
        """Give the memory back before the lease is deleted."""
        nbytes, self.nbytes = self.nbytes, 0
        self._memory.give(nbytes)

    def attach(self, memory: Buffer) -> memoryview:
        """Let the lease last as long as this memory; returns the view that others may use."""
        view = _weakly_owned(memory)
        self._memory.attach(view.obj, self)
        return view

    def __del__(self) -> None:
        if self.nbytes:
            self._memory.give(self.nbytes)


def _weakly_owned(memory: Buffer) -> memoryview:
    """Returns a view of memory that is owned by an array; bytes cannot tell when they are freed."""
    if isinstance(memory, memoryview) and isinstance(memory.obj, np.ndarray):
        return memory
    return np.frombuffer(memory, np.uint8).data
