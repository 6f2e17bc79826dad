# SPDX-License-Identifier: Apache-2.0
"""A starter with plain processes of this machine, in place of a cluster."""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal
import subprocess
import tempfile

from pytriton.runtime.cluster.child import worker_command
from pytriton.runtime.executor.remote.starter import ProcessPlace, StartOrder
from pytriton.runtime.executor.worker import Recovery, watch_exit
from tests.free_ports import free_ports

NODE = "node-a"


class PlainProcess:
    """The processes of one start; see `RemoteProcess`."""

    def __init__(self, children, places, loop, errors) -> None:
        self.places = tuple(places)
        self.last_output = ""  # what is told at its end
        self.exited = loop.create_future()
        self.children = children
        self._errors = errors
        self.ends = [watch_exit(child, loop, with_group=True) for child in children]
        for end in self.ends:
            end.add_done_callback(self._on_exit)

    def kill(self) -> None:
        for child in self.children:
            if child.returncode is None:
                os.kill(child.pid, signal.SIGKILL)

    def _on_exit(self, exited) -> None:
        for child in self.children:
            child.stdin.close()
        if not self.exited.done():
            text = "".join(path.read_text() for path in self._errors).strip()
            reason = f"{exited.result()}{': ' if text else ''}{text}"
            self.exited.set_result(reason + self.last_output)
        self.kill()


class PlainStarter:
    """Runs the commands of workers; see `Starter`.

    Args:
        loop: The event loop.
        told: Changes what is told about a process, as a starter that is wrong would.
        variables: More of the processes' environment.
    """

    def __init__(self, loop, told=lambda place: place, variables=None) -> None:
        self.recovery = Recovery()
        self.orders: list[StartOrder] = []
        self.processes: list[PlainProcess] = []
        self.before_told = asyncio.Event()  # a start returns when it is set
        self.before_told.set()
        self._loop = loop
        self._told = told
        self._variables = variables or {}
        self._folder = tempfile.TemporaryDirectory()

    async def start(self, order: StartOrder) -> PlainProcess:
        self.orders.append(order)
        placement = order.spec.placement
        size = 1 if placement is None else placement.group_size
        port = str(free_ports(1)[0])
        errors = [pathlib.Path(self._folder.name) / f"{order.name}-{rank}" for rank in range(size)]
        children = [
            await asyncio.to_thread(self._spawn, order, rank, size, port, errors[rank])
            for rank in range(size)
        ]
        places = [self._told(ProcessPlace("node-a", NODE, child.pid)) for child in children]
        process = PlainProcess(children, places, self._loop, errors)
        self.processes.append(process)
        try:
            await self.before_told.wait()
        except asyncio.CancelledError:
            process.kill()
            raise
        return process

    async def close(self) -> None:
        for process in self.processes:
            process.kill()
        if self.processes:
            await asyncio.wait([end for process in self.processes for end in process.ends])
        self._folder.cleanup()

    def _spawn(self, order, rank, size, port, errors) -> subprocess.Popen[bytes]:
        command, environment = worker_command(order, NODE, rank)
        group = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        with errors.open("wb") as stderr:
            return self._popen(
                command,
                stdin=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, **environment, **self._variables, **group},
                start_new_session=True,
            )

    def _popen(self, command, **options) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, **options)
