# SPDX-License-Identifier: Apache-2.0
"""Starts worker processes, by forking a zygote or spawning an interpreter, and ends them."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

from pytriton.errors import InternalError, UnavailableError
from pytriton.executor.python_process import fallback_paths, start_worker
from pytriton.executor.worker import Worker, WorkerSpec, watch_exit
from pytriton.executor.zygote_launcher import Zygote, ZygoteGoneError
from pytriton.transport.link import socket_pair
from pytriton.transport.memory import is_portable_forced

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["START_SETTING", "Worker", "WorkerLauncher", "WorkerSpec"]

START_SETTING = "PYTRITON_WORKER_START"  # "spawn": never use the zygote
_FORK_ATTEMPTS = 2


def _can_fork() -> bool:
    # On other systems it is not safe to fork a process that has used numpy.
    return (
        sys.platform == "linux"
        and not is_portable_forced()
        and os.environ.get(START_SETTING) != "spawn"
    )


class WorkerLauncher:
    """A zygote forks workers of this interpreter; workers of other interpreters are spawned."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._zygote: Zygote | None = None
        self._spawned: set[Worker] = set()
        self._fallback_paths: dict[str, Sequence[str]] = {sys.executable: ()}
        self._is_closed = False

    async def launch(self, spec: WorkerSpec) -> Worker:
        """Start a process. Cancelling the task stops the wait.

        Raises:
            InternalError: No process could be started.
            UnavailableError: The launcher was closed.
        """
        if spec.interpreter is None and _can_fork():
            return await self._fork(spec)
        return await self._spawn(spec)

    async def close(self) -> None:
        """Kill all processes that were started, and wait until they have ended."""
        self._is_closed = True
        for worker in self._spawned:
            worker.kill()
        if self._spawned:
            await asyncio.wait([worker.exited for worker in self._spawned])
        if self._zygote is not None:
            await self._zygote.close()

    def __repr__(self) -> str:
        return f"<WorkerLauncher zygote={self._zygote} spawned={len(self._spawned)}>"

    async def _fork(self, spec: WorkerSpec) -> Worker:
        for _ in range(_FORK_ATTEMPTS):
            self._require_open()
            if self._zygote is None or not self._zygote.is_open:
                self._zygote = Zygote(self._loop)
                self._zygote.start()
            try:
                return await self._zygote.fork(spec)
            except ZygoteGoneError:
                continue
        raise InternalError(
            f"Cannot start the process of '{spec.instance_name}': the process that forks workers "
            f"ended {_FORK_ATTEMPTS} times"
        )

    async def _spawn(self, spec: WorkerSpec) -> Worker:
        interpreter = spec.interpreter or sys.executable
        if interpreter not in self._fallback_paths:
            found = await asyncio.to_thread(fallback_paths, interpreter)
            self._fallback_paths[interpreter] = found
        self._require_open()
        channel, worker_channel = socket_pair()
        fork_socket, worker_fork_socket = socket_pair()
        with worker_channel, worker_fork_socket:
            try:
                process = start_worker(
                    interpreter,
                    spec.title,
                    (worker_channel, worker_fork_socket),
                    spec.environment,
                    self._fallback_paths[interpreter],
                )
            except OSError as error:
                channel.close()
                fork_socket.close()
                raise InternalError(f"'{interpreter}' cannot be started: {error}") from error
        exited = watch_exit(process, self._loop, with_group=True)
        worker = Worker(
            spec.instance_name, process.pid, (channel, fork_socket), process.kill, exited
        )
        self._spawned.add(worker)
        exited.add_done_callback(lambda _: self._spawned.discard(worker))
        return worker

    def _require_open(self) -> None:
        if self._is_closed:
            raise UnavailableError("Server is stopping, no process is started any more")
