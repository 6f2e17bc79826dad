# SPDX-License-Identifier: Apache-2.0
"""Starts worker processes, by forking a zygote or spawning an interpreter, and ends them."""

from __future__ import annotations

import asyncio
import functools
import sys
from typing import TYPE_CHECKING

from pytriton.base.background_tasks import wait_through
from pytriton.base.errors import InternalError, UnavailableError, resource_error
from pytriton.runtime.executor.python_process import (
    START_SETTING,
    can_fork_workers,
    fallback_paths,
    start_worker,
    start_zygote,
)
from pytriton.runtime.executor.recovery import Recovery
from pytriton.runtime.executor.worker import (
    ForkingProcessEndedError,
    LocalWorker,
    WorkerSpec,
    start_error,
    watch_exit,
)
from pytriton.runtime.executor.zygote_launcher import (
    RunningZygote,
    ZygoteGoneError,
    two_socket_pairs,
)

if TYPE_CHECKING:
    import socket
    import subprocess
    from collections.abc import Sequence

    from pytriton.runtime.executor.python_process import StartedZygote

__all__ = ["START_SETTING", "LocalWorker", "WorkerLauncher", "WorkerSpec"]

_FORK_ATTEMPTS = 2


class WorkerLauncher:
    """Zygotes fork workers of this interpreter; workers of other interpreters are spawned.

    Args:
        loop: The event loop.
        zygote: A zygote that runs already and preloads no modules.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, zygote: StartedZygote | None = None
    ) -> None:
        self.recovery = Recovery()  # a machine does not come back while its server runs
        self._loop = loop
        self._first_zygote = zygote
        self._zygotes: dict[tuple[str, ...], RunningZygote] = {}  # by the modules that they preload
        self._spawned: set[LocalWorker] = set()
        self._fallback_paths: dict[str, Sequence[str]] = {sys.executable: ()}
        self._is_closed = False

    async def launch(self, spec: WorkerSpec) -> LocalWorker:
        """Start a process. Cancelling the task stops the wait.

        Raises:
            InternalError: No process could be started.
            UnavailableError: The launcher was closed, or the machine lacks resources.
        """
        try:
            if spec.interpreter is None and can_fork_workers():
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
            self._start_zygote(())
        for zygote in self._zygotes.values():
            await zygote.close()

    def __repr__(self) -> str:
        return f"<WorkerLauncher zygotes={self._zygotes} spawned={len(self._spawned)}>"

    async def _fork(self, spec: WorkerSpec) -> LocalWorker:
        for _ in range(_FORK_ATTEMPTS):
            self._require_open()
            zygote = self._zygotes.get(spec.preload)
            if zygote is None or not zygote.is_open:
                zygote = self._start_zygote(spec.preload)
            try:
                return await zygote.fork(spec)
            except ZygoteGoneError:
                continue
        raise ForkingProcessEndedError(
            f"Cannot start the process of '{spec.instance_name}': the process that forks workers "
            f"ended {_FORK_ATTEMPTS} times"
        )

    def _start_zygote(self, preload: tuple[str, ...]) -> RunningZygote:
        first = self._first_zygote
        if first is not None and not preload:
            self._first_zygote = None
            zygote = RunningZygote(self._loop, lambda: first)
        else:
            zygote = RunningZygote(self._loop, functools.partial(start_zygote, preload=preload))
        zygote.start()
        self._zygotes[preload] = zygote
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
        self._spawned.add(worker)
        exited.add_done_callback(lambda _: self._spawned.discard(worker))
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
