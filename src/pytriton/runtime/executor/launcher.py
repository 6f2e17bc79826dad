# SPDX-License-Identifier: Apache-2.0
"""Starts worker processes, by forking a zygote or spawning an interpreter, and ends them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

import msgspec

from pytriton.base.background_tasks import wait_through
from pytriton.base.errors import InternalError, UnavailableError, resource_error
from pytriton.base.sandbox import allowed_variables
from pytriton.runtime.executor.python_process import (
    START_SETTING,
    can_fork_workers,
    fallback_paths,
    own_packages,
    start_worker,
    start_zygote,
)
from pytriton.runtime.executor.worker import (
    ForkingProcessEndedError,
    LocalWorker,
    Recovery,
    WorkerSpec,
    describe_exit,
    open_pidfd,
    start_error,
    watch_exit,
)
from pytriton.runtime.transport.link import socket_pair
from pytriton.runtime.transport.zygote import Exited, Forked, ForkWorker, ZygoteLink

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Sequence

    from pytriton.runtime.executor.python_process import StartedZygote

logger = logging.getLogger(__name__)

__all__ = ["START_SETTING", "LocalWorker", "WorkerLauncher", "WorkerSpec"]


_END_TIMEOUT_S = 5.0
_Sockets = tuple[socket.socket, socket.socket]
_FORK_ATTEMPTS = 2  # a zygote that was killed since the last fork is replaced


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
        self.is_open = True  # it can fork workers

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
        if not self.is_open:
            raise ZygoteGoneError
        ours, theirs = two_socket_pairs()
        pending = _Pending(spec, ours, theirs, self._loop.create_future())
        call = self._next_call
        self._next_call += 1
        self._pending[call] = pending
        descriptors = [each.fileno() for each in pending.theirs]
        try:
            if self._link.send(_fork_request(call, spec), descriptors):
                self._loop.add_writer(self._link.fileno(), self._on_writable)
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
        # Only the sending side: the zygote reads the end, and still reports those of its workers.
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

    def _on_writable(self) -> None:
        try:
            if self._link.flush():
                self._loop.remove_writer(self._link.fileno())
        except OSError:
            self._on_gone()

    def _on_readable(self) -> None:
        try:
            while self.is_open and (message := self._link.receive()) is not None:
                if isinstance(message, Forked):
                    self._on_forked(message)
                elif isinstance(message, Exited):
                    self._on_worker_exited(message)
        except (EOFError, OSError):
            self._on_gone()
        except ValueError as error:
            logger.error("the zygote sent an invalid message: %s", error)  # noqa: TRY400  the message is enough
            self._on_gone()

    def _on_forked(self, message: Forked) -> None:
        pending = self._pending.pop(message.call, None)
        if pending is None:
            raise ValueError(f"expected an answer to a call, got one to call {message.call}")
        # The worker has copies. With ours open, its channel would not end with it.
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
        # The zygote reaps the worker, and then another process may get its pid. A pidfd refers to
        # this one for ever.
        descriptor = open_pidfd(pid)

        def kill() -> None:
            with contextlib.suppress(ProcessLookupError):
                if descriptor is not None:
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                else:
                    os.kill(pid, signal.SIGKILL)

        if descriptor is not None:
            exited.add_done_callback(lambda _: os.close(descriptor))
        is_enclosed = spec.sandbox is not None
        return LocalWorker(spec.instance_name, pid, sockets, kill, exited, is_enclosed=is_enclosed)

    def _on_worker_exited(self, message: Exited) -> None:
        worker = self._workers.pop(message.pid, None)
        if worker is not None:
            worker.exited.set_result(describe_exit(os.waitstatus_to_exitcode(message.status)))

    def _on_exited(self) -> None:
        self._on_readable()  # read its last messages
        self._on_gone()

    def _on_gone(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        self._loop.remove_reader(self._link.fileno())
        self._loop.remove_writer(self._link.fileno())
        self._link.close()
        pending, self._pending = self._pending, {}
        for each in pending.values():
            _close((*each.ours, *each.theirs))
            if not each.answer.done():
                each.answer.set_exception(ZygoteGoneError())
        workers, self._workers = self._workers, {}
        # Nobody is left to report their ends: the kernel kills them with their parent.
        for worker in workers.values():
            worker.kill()
            worker.is_to_blame = False
            # Kill its group too, as the zygote would have done: models may start processes.
            with contextlib.suppress(OSError):
                os.killpg(worker.pid, signal.SIGKILL)
            worker.exited.set_result("killed, as the process that had forked it ended")


def _fork_request(call: int, spec: WorkerSpec) -> ForkWorker:
    if spec.sandbox is None:
        return ForkWorker(call, spec.title, spec.environment)
    # Code of another Python runs only in the sandbox, so nobody asks for its version before that.
    interpreter = spec.interpreter or ("" if can_fork_workers() else sys.executable)
    return ForkWorker(call, spec.title, spec.environment, spec.sandbox, interpreter, own_packages())


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


class WorkerLauncher:
    """Zygotes fork workers of this interpreter; workers of other interpreters are spawned.

    `zygote` is one that runs already and preloads no modules.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, zygote: StartedZygote | None = None
    ) -> None:
        self.recovery = Recovery()  # a machine does not come back while its server runs
        self._loop = loop
        self._first_zygote = zygote
        # By the modules that they preload, and whether their workers have sandboxes.
        self._zygotes: dict[tuple[tuple[str, ...], bool], RunningZygote] = {}
        self._spawned: dict[LocalWorker, None] = {}
        self._fallback_paths: dict[str, Sequence[str]] = {sys.executable: ()}
        self._is_closed = False

    async def launch(self, spec: WorkerSpec) -> LocalWorker:
        """Start a process. Cancelling the task stops the wait.

        Raises:
            InternalError: No process could be started.
            UnavailableError: The launcher was closed, or the machine lacks resources.
        """
        try:
            if spec.sandbox is not None or (spec.interpreter is None and can_fork_workers()):
                return await self._fork(spec)
            return await self._spawn(spec)
        except (OSError, MemoryError, RuntimeError) as error:
            raise start_error(spec.instance_name, error) from error

    async def close(self) -> None:
        """Kill all processes that were started, and wait until they have ended."""
        self._is_closed = True
        for worker in self._spawned:
            worker.kill()
        if self._spawned:
            await asyncio.wait([worker.exited for worker in self._spawned])
        if self._first_zygote is not None:
            self._start_zygote((), is_enclosing=False)
        for zygote in self._zygotes.values():
            await zygote.close()

    def __repr__(self) -> str:
        return f"<WorkerLauncher zygotes={self._zygotes} spawned={len(self._spawned)}>"

    async def _fork(self, spec: WorkerSpec) -> LocalWorker:
        for _ in range(_FORK_ATTEMPTS):
            self._require_open()
            is_enclosing = spec.sandbox is not None
            zygote = self._zygotes.get((spec.preload, is_enclosing))
            if zygote is None or not zygote.is_open:
                zygote = self._start_zygote(spec.preload, is_enclosing=is_enclosing)
            try:
                return await zygote.fork(spec)
            except ZygoteGoneError:
                continue
        raise ForkingProcessEndedError(
            f"Cannot start the process of '{spec.instance_name}': the process that forks workers "
            f"ended {_FORK_ATTEMPTS} times"
        )

    def _start_zygote(self, preload: tuple[str, ...], *, is_enclosing: bool) -> RunningZygote:
        first = self._first_zygote
        if is_enclosing:
            # Not one that was forked off the server: a worker can read all memory that it inherits.
            start = functools.partial(
                start_zygote, preload=preload, environment=allowed_variables(os.environ)
            )
            zygote = RunningZygote(self._loop, start)
        elif first is not None and not preload:
            self._first_zygote = None
            zygote = RunningZygote(self._loop, lambda: first)
        else:
            zygote = RunningZygote(self._loop, functools.partial(start_zygote, preload=preload))
        zygote.start()
        self._zygotes[preload, is_enclosing] = zygote
        return zygote

    async def _spawn(self, spec: WorkerSpec) -> LocalWorker:
        interpreter = spec.interpreter or sys.executable
        if interpreter not in self._fallback_paths:
            found = await asyncio.to_thread(fallback_paths, interpreter)
            self._fallback_paths[interpreter] = found
        self._require_open()
        ours, (worker_channel, worker_fork_socket) = two_socket_pairs()
        try:
            with worker_channel, worker_fork_socket:
                process = await self._start(interpreter, spec, (worker_channel, worker_fork_socket))
            exited = watch_exit(process, self._loop, with_group=True)
        except BaseException:
            for each in ours:
                each.close()
            raise
        worker = LocalWorker(spec.instance_name, process.pid, ours, process.kill, exited)
        self._spawned[worker] = None
        exited.add_done_callback(lambda _: self._spawned.pop(worker, None))
        return worker

    async def _start(
        self, interpreter: str, spec: WorkerSpec, sockets: tuple[socket.socket, socket.socket]
    ) -> subprocess.Popen[bytes]:
        """Start a process in a thread that is there as long as the loop's executor.

        The kernel kills such a process when the thread that has started it ends. The thread that
        runs the loop may be one of a program, and end soon.
        """
        paths = self._fallback_paths[interpreter]
        starting = asyncio.ensure_future(
            asyncio.to_thread(
                start_worker, interpreter, spec.title, sockets, spec.environment, paths
            )
        )
        try:
            process = await asyncio.shield(starting)
            self._require_open()
        except OSError as error:
            if resource_error(error) is not None:
                raise
            raise InternalError(f"'{interpreter}' cannot be started: {error}") from error
        except BaseException:
            await wait_through([starting])  # until then, its sockets must not be closed
            if not starting.cancelled() and starting.exception() is None:
                process = starting.result()
                process.kill()
                await asyncio.to_thread(process.wait)
            raise
        return process

    def _require_open(self) -> None:
        if self._is_closed:
            raise UnavailableError("Server is stopping, no process is started any more")
