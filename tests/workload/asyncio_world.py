# SPDX-License-Identifier: Apache-2.0
"""The world of sessions against a real server: asyncio's clock, timers and connections."""

from __future__ import annotations

import asyncio
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.workload.calls import Port
from tests.workload.oracle import Oracle
from tests.workload.sessions import ClientPlan, Session, Writers


class NamedMemory:
    """An object of POSIX shared memory; made new, and removed with `unlink`."""

    def __init__(self, key: str, size: int) -> None:
        self._path = pathlib.Path("/dev/shm") / key
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor = os.open(self._path, flags, 0o600)
        os.ftruncate(self._descriptor, size)
        self._has_name = True

    @property
    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self._descriptor, size, offset)

    def write(self, offset: int, data: bytes) -> None:
        os.pwrite(self._descriptor, data, offset)

    def resize(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def unlink(self) -> None:
        self._has_name = False
        self._path.unlink()

    def close(self) -> None:
        """Remove it, if it still has its name."""
        if self._has_name:
            self.unlink()
        os.close(self._descriptor)


class AsyncioWorld:
    """Connects protocols to the ports of a server on this machine; made inside of a running loop.

    Args:
        ports: by what they are for.
        host: address of the server.
    """

    def __init__(self, ports: Mapping[Port, int], host: str = "127.0.0.1") -> None:
        self._loop = asyncio.get_running_loop()
        self._ports = ports
        self._host = host
        self._connecting: set[asyncio.Task[None]] = set()
        self._memories: list[NamedMemory] = []
        self.now = self._loop.time

    def memory(self, key: str, size: int) -> NamedMemory:
        made = NamedMemory(key, size)
        self._memories.append(made)
        return made

    def close(self) -> None:
        """Remove the shared memory of its clients."""
        while self._memories:
            self._memories.pop().close()

    def call_later(self, delay_s: float, function: Callable[..., Any], *args: Any) -> Any:
        return self._loop.call_later(delay_s, function, *args)

    def connect(self, port: Port, protocol: Any) -> None:
        task = self._loop.create_task(self._connect(port, protocol))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, port: Port, protocol: Any) -> None:
        try:
            await self._loop.create_connection(lambda: protocol, self._host, self._ports[port])
        except OSError as error:
            protocol.connection_lost(error)


async def run_sessions(
    plans: Sequence[ClientPlan],
    world: AsyncioWorld,
    oracle: Oracle,
    access_token: str = "",
    limit_s: float = 300.0,
) -> bool:
    """Work through plans; whether all were done within the limit."""
    done = asyncio.Event()
    left = len(plans)

    def count(_session: Session) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            done.set()

    writers = Writers(access_token)
    sessions = [Session(plan, world, oracle, writers, count) for plan in plans]
    for session in sessions:
        session.start()
    try:
        await asyncio.wait_for(done.wait(), limit_s)
    except asyncio.TimeoutError:
        oracle.check_waiting()
        oracle.close()
        return False
    return True
