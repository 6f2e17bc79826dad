# SPDX-License-Identifier: Apache-2.0
"""Starts workers by forking the zygote, a process that has imported their modules already."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from typing import TYPE_CHECKING

import msgspec

from pytriton.runtime.executor.python_process import start_zygote
from pytriton.runtime.executor.worker import (
    LocalWorker,
    WorkerSpec,
    describe_exit,
    open_pidfd,
    start_error,
    watch_exit,
)
from pytriton.runtime.transport.link import socket_pair
from pytriton.runtime.transport.zygote import Exited, Forked, ForkWorker, ZygoteLink

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.runtime.executor.python_process import StartedZygote

logger = logging.getLogger(__name__)

_END_TIMEOUT_S = 5.0
_Sockets = tuple[socket.socket, socket.socket]


class ZygoteGoneError(Exception):
    """The zygote ended before it had forked the worker; a new zygote may succeed."""


class _Pending(msgspec.Struct, eq=False):
    """A worker that was requested and is not forked yet."""

    spec: WorkerSpec
    ours: _Sockets
    theirs: _Sockets
    answer: asyncio.Future[LocalWorker]


class RunningZygote:
    """A running zygote and the workers that it forked."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        start_process: Callable[[], StartedZygote] = start_zygote,
    ) -> None:
        self._loop = loop
        started = start_process()
        self._process, self._socket = started.process, started.socket
        self._socket.setblocking(False)
        self._link = ZygoteLink(self._socket)
        self._exited: asyncio.Future[str] | None = None
        self._next_call = 1
        self._pending: dict[int, _Pending] = {}
        self._workers: dict[int, LocalWorker] = {}
        self._is_open = True

    @property
    def is_open(self) -> bool:
        """Whether the zygote can fork workers."""
        return self._is_open

    def start(self) -> None:
        """Start to read the process's messages."""
        self._exited = watch_exit(self._process, self._loop)
        self._exited.add_done_callback(lambda _: self._on_exited())
        self._loop.add_reader(self._link.fileno(), self._on_readable)

    async def fork(self, spec: WorkerSpec) -> LocalWorker:
        """Fork a worker of this interpreter.

        Raises:
            ServerError: The zygote could not fork.
            OSError: There are no file descriptors for the sockets.
            ZygoteGoneError: The zygote ended.
        """
        if not self._is_open:
            raise ZygoteGoneError
        ours, theirs = two_socket_pairs()
        pending = _Pending(spec, ours, theirs, self._loop.create_future())
        call = self._next_call
        self._next_call += 1
        self._pending[call] = pending
        descriptors = [each.fileno() for each in pending.theirs]
        try:
            self._link.send(ForkWorker(call, spec.title, spec.environment), descriptors)
            self._flush()
        except OSError:
            self._on_gone()
        try:
            return await pending.answer
        except asyncio.CancelledError:
            answer = pending.answer
            if not answer.cancelled() and answer.exception() is None:  # both in the same turn
                _end_unwanted(answer.result())
            raise

    async def close(self) -> None:
        """End the zygote and all workers that it forked."""
        if self._exited is None:
            return
        with contextlib.suppress(OSError):  # it has ended already
            self._socket.shutdown(socket.SHUT_WR)
        await asyncio.wait([self._exited], timeout=_END_TIMEOUT_S)
        if not self._exited.done():
            logger.warning("the zygote did not end within %g s and is killed", _END_TIMEOUT_S)
            self._process.kill()
            await self._exited
        self._on_exited()

    def __repr__(self) -> str:
        return f"<Zygote workers={len(self._workers)} pending={len(self._pending)}>"

    def _flush(self) -> None:
        if not self._link.flush():
            self._loop.add_writer(self._link.fileno(), self._on_writable)

    def _on_writable(self) -> None:
        try:
            if self._link.flush():
                self._loop.remove_writer(self._link.fileno())
        except OSError:
            self._on_gone()

    def _on_readable(self) -> None:
        try:
            while self._is_open and (message := self._link.receive()) is not None:
                if isinstance(message, Forked):
                    self._on_forked(message)
                elif isinstance(message, Exited):
                    self._on_worker_exited(message)
        except (EOFError, OSError):
            self._on_gone()

    def _on_forked(self, message: Forked) -> None:
        pending = self._pending.pop(message.call)
        _close(pending.theirs)
        if not message.pid:
            _close(pending.ours)
            if not pending.answer.done():
                number = message.error_number
                error = OSError(number, f"no process could be forked: {os.strerror(number)}")
                pending.answer.set_exception(start_error(pending.spec.instance_name, error))
            return
        worker = self._make_worker(pending.spec, message.pid, pending.ours)
        self._workers[message.pid] = worker
        if pending.answer.done():  # the caller was cancelled
            _end_unwanted(worker)
        else:
            pending.answer.set_result(worker)

    def _make_worker(self, spec: WorkerSpec, pid: int, sockets: _Sockets) -> LocalWorker:
        exited: asyncio.Future[str] = self._loop.create_future()
        descriptor = open_pidfd(pid)

        def kill() -> None:
            with contextlib.suppress(ProcessLookupError):
                if descriptor is not None:
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                else:
                    os.kill(pid, signal.SIGKILL)

        if descriptor is not None:
            exited.add_done_callback(lambda _: os.close(descriptor))
        return LocalWorker(spec.instance_name, pid, sockets, kill, exited)

    def _on_worker_exited(self, message: Exited) -> None:
        worker = self._workers.pop(message.pid, None)
        if worker is not None:
            worker.exited.set_result(describe_exit(os.waitstatus_to_exitcode(message.status)))

    def _on_exited(self) -> None:
        self._on_readable()  # read its last messages
        self._on_gone()

    def _on_gone(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._loop.remove_reader(self._link.fileno())
        self._loop.remove_writer(self._link.fileno())
        self._link.close()
        pending, self._pending = self._pending, {}
        for each in pending.values():
            _close((*each.ours, *each.theirs))
            if not each.answer.done():
                each.answer.set_exception(ZygoteGoneError())
        workers, self._workers = self._workers, {}
        for worker in workers.values():
            worker.kill()
            worker.is_to_blame = False
            # Kill its group too, as the zygote would have done: models may start processes.
            with contextlib.suppress(OSError):
                os.killpg(worker.pid, signal.SIGKILL)
            worker.exited.set_result("killed, as the process that had forked it ended")


def two_socket_pairs() -> tuple[_Sockets, _Sockets]:
    """Returns a worker's channel and fork socket: the server's ends, and the worker's ends."""
    channel, worker_channel = socket_pair()
    try:
        fork_socket, worker_fork_socket = socket_pair()
    except OSError:
        _close((channel, worker_channel))
        raise
    return (channel, fork_socket), (worker_channel, worker_fork_socket)


def _end_unwanted(worker: LocalWorker) -> None:
    """End a worker whose caller was cancelled."""
    worker.kill()
    _close((worker.channel, worker.fork_socket))


def _close(sockets: tuple[socket.socket, ...]) -> None:
    for each in sockets:
        each.close()
