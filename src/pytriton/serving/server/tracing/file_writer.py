# SPDX-License-Identifier: Apache-2.0
"""Writes traces to files, on a thread of its own.

A file is a whole JSON document whenever nobody writes to it: new traces go in the place of the
closing bracket. What cannot be written is lost, which is logged once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pathlib
import queue
import stat
import threading
from typing import TYPE_CHECKING, NamedTuple

from pytriton.serving.server.tracing.trace_text import trace_text

if TYPE_CHECKING:
    from pytriton.serving.server.tracing.trace_collection import Trace

logger = logging.getLogger(__name__)

# Traces that wait for the disk; more are dropped.
_MAX_WAITING_BYTES = 256 << 20
_MODE = 0o666  # less what the process's mask takes away


class _Job(NamedTuple):
    traces: list[Trace]
    size: int
    number: int | None  # None: the file of the settings


class TraceFileWriter:
    """Writes the files of one server; see `TraceWriter`.

    Args:
        path: The file of the settings; files with numbers are beside it.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._waiting_bytes = 0
        self._lock = threading.Lock()  # of the number of bytes
        self._thread: threading.Thread | None = None
        self._main = MainFile(path)
        self._has_failed = self._has_dropped = False
        self._on_closed: list[asyncio.Future[None]] = []

    def write(self, traces: list[Trace], size: int, number: int | None) -> None:
        """Write traces soon, unless too many wait already."""
        with self._lock:
            if self._waiting_bytes > _MAX_WAITING_BYTES:
                is_first, self._has_dropped = not self._has_dropped, True
                if is_first:
                    logger.warning("Traces are lost: %s is not written as fast", self._path)
                return
            self._waiting_bytes += size
        if self._thread is None:
            # A daemon, because a slow disk can block it for any time.
            self._thread = threading.Thread(target=self._run, name="trace files", daemon=True)
            self._thread.start()
        self._jobs.put(_Job(traces, size, number))

    async def close(self, timeout_s: float) -> None:
        """Wait until everything is written, or for `timeout_s`."""
        if self._thread is None:
            return
        loop = asyncio.get_running_loop()
        closed: asyncio.Future[None] = loop.create_future()
        self._on_closed.append(closed)
        self._jobs.put(None)
        await asyncio.wait([closed], timeout=timeout_s)
        if not closed.done():
            logger.warning("The last traces could not be written within %g s.", timeout_s)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                self._write(job)
            except OSError as error:
                if not self._has_failed:
                    logger.error("Traces cannot be written, and are lost: %s", error)  # noqa: TRY400  it is about the disk
                self._has_failed = True
            except Exception:
                logger.exception("Traces cannot be written")
            with self._lock:
                self._waiting_bytes -= job.size
        for closed in self._on_closed:
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                closed.get_loop().call_soon_threadsafe(closed.set_result, None)

    def _write(self, job: _Job) -> None:
        texts = [text for trace in job.traces if (text := trace_text(trace))]
        if not texts:
            return
        data = ",".join(texts).encode()
        if job.number is None:
            self._main.add(data)
        else:
            _write_whole(f"{self._path}.{job.number}", data)


class MainFile:
    """The file to which traces are added; an older file of that name is replaced.

    Args:
        path: Its path.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._known: tuple[int, int, int] | None = None  # its device, number and size

    def add(self, data: bytes) -> None:
        """Add objects, separated by commas; raises OSError, and the file is as it was then."""
        path = os.path.realpath(self._path)  # a link stays a link
        try:
            found = pathlib.Path(path).stat()
        except FileNotFoundError:
            found = None
        if found is not None and not stat.S_ISREG(found.st_mode):
            _write_document(path, data)
            return
        if found is not None and self._known == _identity(found):
            self._append(path, data, found.st_size)
        else:  # there is none, it is not ours, or ours was moved away
            _write_whole(path, data)
        self._known = _identity(pathlib.Path(path).stat())

    def _append(self, path: str, data: bytes, size: int) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        start = size - 1  # in the place of the closing bracket
        try:
            os.lseek(descriptor, start, os.SEEK_SET)
            try:
                _write_all(descriptor, b",%b]" % data)
            except OSError:
                os.ftruncate(descriptor, start)
                os.lseek(descriptor, start, os.SEEK_SET)
                os.write(descriptor, b"]")
                raise
        finally:
            os.close(descriptor)


def _identity(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_dev, found.st_ino, found.st_size


def _write_document(path: str, data: bytes) -> None:
    """Write to a pipe or a terminal, which gets documents one by one."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        _write_all(descriptor, b"[%b]\n" % data)
    finally:
        os.close(descriptor)


def _write_whole(path: str, data: bytes) -> None:
    """Write a file that appears when it is complete."""
    part = pathlib.Path(f"{path}.part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    descriptor = os.open(part, flags, _MODE)
    try:
        try:
            _write_all(descriptor, b"[%b]" % data)
        finally:
            os.close(descriptor)
        part.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
