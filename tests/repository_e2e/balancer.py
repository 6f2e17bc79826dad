# SPDX-License-Identifier: Apache-2.0
"""A trivial load balancer: passes connections on to servers that said that they are ready."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading

from tests.e2e.http_client import is_ready

CHECK_INTERVAL_S = 0.2


class Balancer:
    """Runs in a thread. Each connection goes to one server, and stays with it, as in Kubernetes."""

    def __init__(self, servers, protocol="http"):
        self.ready: list[object] = []  # of the last look
        self.servers = servers  # a test may set others
        self._protocol = protocol
        self._turns = itertools.count()
        self._has_started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self):
        self._thread.start()
        self._has_started.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._is_over.set)
        self._thread.join()

    async def _run(self):
        self._loop = asyncio.get_running_loop()
        self._is_over = asyncio.Event()
        listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = listener.sockets[0].getsockname()[1]
        async with listener:
            while not self._is_over.is_set():
                servers = self.servers
                answers = await asyncio.gather(
                    *(asyncio.to_thread(is_ready, each.http_port) for each in servers)
                )
                self.ready = [each for each, good in zip(servers, answers, strict=True) if good]
                self._has_started.set()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._is_over.wait(), CHECK_INTERVAL_S)

    async def _serve(self, reader, writer):
        ready = self.ready
        server = ready[next(self._turns) % len(ready)]
        port = getattr(server, f"{self._protocol}_port")
        try:
            there = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, there[1]), _copy(there[0], writer))


async def _copy(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # one of both is gone, and the client notices what it misses
    finally:
        writer.close()
