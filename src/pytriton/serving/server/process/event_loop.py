# SPDX-License-Identifier: Apache-2.0
"""Event loop, garbage collection and transports of server processes, and a watch of others."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import os
import select
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from typing import NoReturn

    from pytriton.base.dtypes import Buffer


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Make the fastest event loop of the platform."""
    try:
        import uvloop  # noqa: PLC0415  not on every platform
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def writer_of_parts(transport: Any) -> Callable[[list[Buffer]], None]:
    """Returns a function that writes several buffers to a transport, without a copy if possible."""
    # From Python 3.12.0 to 3.13.1, `writelines` of asyncio's own transports does not pause the
    # protocol when they are full, and may use the file descriptor of a closed socket.
    if type(transport).__module__ == "asyncio.selector_events":
        return lambda parts: transport.write(b"".join(parts))
    writer: Callable[[list[Buffer]], None] = transport.writelines
    return writer


def reader_of_parts(transport: Any) -> Callable[[list[memoryview]], int] | None:
    """Returns a function that reads what a socket has into several buffers, in this order.

    It returns the number of bytes; 0 if there is nothing to read, which the transport then finds
    out as well. None if only the transport can read.
    """
    sock = transport.get_extra_info("socket")
    if sock is None or transport.get_extra_info("sslcontext") is not None:
        return None

    def read(parts: list[memoryview]) -> int:
        try:
            return os.readv(sock.fileno(), parts)
        except (
            OSError
        ):  # nothing has come, or the connection is lost: the transport's next read is the same
            return 0

    return read


def has_unread(transport: Any) -> bool:
    """Returns whether the socket has unread data, or the peer has closed the connection."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def freeze_memory() -> None:
    """Collect garbage once, then freeze the rest so that later collections skip it."""
    gc.collect()
    gc.freeze()


def end_process(code: int) -> NoReturn:
    """End this process without taking its modules apart, which takes a server 60 ms."""
    atexit._run_exitfuncs()  # noqa: SLF001  the public way is to take everything apart
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # its reader may have ended
            stream.flush()
    os._exit(code)


@dataclass(frozen=True, slots=True)
class Activity:
    """The state of a process, as the system reports it.

    Attributes:
        processor_s: The processor time that it has used.
        is_runnable: Whether it runs, or waits for a processor or a disk; not if it is stopped.
    """

    processor_s: float
    is_runnable: bool


def read_activity(pid: int) -> Activity | None:
    """Returns the activity of a process; None if it has ended, or if the system does not tell."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name of the program, in brackets, may contain anything; proc_pid_stat(5) has the fields.
    state, *fields = text.rpartition(")")[2].split()
    ticks = int(fields[10]) + int(fields[11])
    return Activity(ticks / os.sysconf("SC_CLK_TCK"), state in "RD")


class ProcessorClock:
    """Adds up the processor time of this process and of others, which may come and go.

    Args:
        pids: Returns the ids of the other processes.
    """

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        self._pids = pids
        self._ended_ns = 0
        self._known: dict[int, int] = {}

    def read(self) -> int:
        """Returns the time in nanoseconds; of the others, it is exact to a tick of the system."""
        before, self._known = self._known, {}
        for pid in self._pids():
            activity = read_activity(pid)
            if activity is not None:
                self._known[pid] = round(activity.processor_s * 1e9)
            elif pid in before:  # it could not be read now, or has just ended
                self._known[pid] = before[pid]
        self._ended_ns += sum(ns for pid, ns in before.items() if pid not in self._known)
        return time.process_time_ns() + self._ended_ns + sum(self._known.values())


class ProcessWatch:
    """Watches one process of this machine between `start` and `close`."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, process: int, on_end: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._process = process
        self._on_end = on_end
        self._descriptor = -1

    def start(self) -> bool:
        """Start to watch; returns False if the system has no such process or cannot watch it."""
        if not hasattr(os, "pidfd_open"):
            return False
        try:
            self._descriptor = os.pidfd_open(self._process)
        except OSError:
            return False
        self._loop.add_reader(self._descriptor, self._on_readable)
        return True

    def close(self) -> None:
        """Stop watching."""
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _on_readable(self) -> None:
        self.close()
        self._on_end()
