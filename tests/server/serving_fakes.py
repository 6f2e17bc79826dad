# SPDX-License-Identifier: Apache-2.0
"""A server for the tests of the command: does what it is told, and keeps a list of it."""

from __future__ import annotations

import asyncio

from pytriton.serving.engine.client import IndexEntry
from pytriton.serving.server.command.lifecycle import (
    LoadedBackend,
    LoadProgress,
    OpenPorts,
    Remaining,
)


class FakeServing:
    """Does what a test sets; everything that was called is in `calls`."""

    def __init__(self, load_error=None, port_error=None, stop_result=True):
        self.calls = []
        self.load_error = load_error
        self.port_error = port_error
        self.stop_result = stop_result  # None: the end never comes
        self.loaded = asyncio.Event()
        self.loaded.set()
        self.remains = Remaining()
        self.listening = asyncio.Event()

    async def build(self, options, loop):
        self.calls.append("build")
        return self

    async def load(self, report):
        self.calls.append("load")
        report(LoadProgress(0, 2, ["a", "b"]))
        try:
            await self.loaded.wait()
        except asyncio.CancelledError:
            self.calls.append("load cancelled")
            raise
        report(LoadProgress(1, 2, ["b"]))
        if self.load_error is not None:
            raise self.load_error

    async def open_ports(self):
        self.calls.append("open_ports")
        if self.port_error is not None:
            raise self.port_error
        self.listening.set()
        return OpenPorts(http=18000, grpc=18001, metrics=0)

    def index(self):
        return [IndexEntry("a", "1", "READY")]

    def backends(self):
        return [LoadedBackend("python", "/here")]

    def begin_exit(self):
        self.calls.append("begin_exit")

    def let_clients_leave(self):
        self.calls.append("let_clients_leave")

    def remaining(self):
        return self.remains

    async def stop(self, timeout_s):
        self.calls.append(f"stop {timeout_s:g}")
        if self.stop_result is None:
            await asyncio.Event().wait()
        return self.stop_result
