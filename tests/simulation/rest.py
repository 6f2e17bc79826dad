# SPDX-License-Identifier: Apache-2.0
"""What a system has when nobody uses it, so that nothing is left behind after a run.

Counted are descriptors, threads, timers, tasks, connections and shared memory of every process, and
every owner of such things is asked for the integrity of its books.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import gc
import re
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from pytriton.protocol.http2 import frames
from pytriton.runtime.backend.flow_control import OpenBatches
from pytriton.runtime.executor.call_server import CallServer
from pytriton.runtime.transport.credit import CreditWindow
from pytriton.serving.engine.ensemble.ensemble_model import EnsembleModel
from pytriton.serving.engine.model import Model
from pytriton.serving.engine.rate_limiter import ResourceLimiter
from pytriton.serving.server.frontend.core_link import CoreLink
from pytriton.serving.server.frontend.session import FrontEndSession
from pytriton.serving.server.grpc.connection import GrpcConnection
from pytriton.serving.server.http.http2_connection import Http2ServerConnection
from pytriton.serving.server.shared_memory.region_request import ReadBudget
from tests.simulation.event_loop import SimulatedLoop
from tests.simulation.machine import Machine, SimulatedProcess

Stock = collections.Counter[str]
_MOST_THREADS = 4  # that a server, a front end or a program starts when it needs them first

# Who has requests under way, and how many; when the system rests, nobody has any.
UNDER_WAY: dict[type, Callable[[Any], int]] = {
    Model: lambda model: model.running_count,
    EnsembleModel: lambda model: model.running_count,
    FrontEndSession: lambda session: session.request_count,
    CoreLink: lambda link: len(link._calls) + len(link._chunks) + len(link._questions),
    CallServer: lambda server: len(server._calls),
    OpenBatches: lambda batches: len(batches.open),
    ResourceLimiter: lambda limiter: sum(limiter._used.values()),
    ReadBudget: lambda budget: budget._used_bytes,
}


class Books:
    """All objects of the project with books that can be checked, and the loops of the machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._owners: list[tuple[weakref.ref[Any], SimulatedProcess]] = []
        self._users: list[tuple[weakref.ref[Any], SimulatedProcess]] = []
        self._connections: list[tuple[weakref.ref[Any], SimulatedProcess]] = []
        self.loops: list[tuple[weakref.ref[SimulatedLoop], SimulatedProcess]] = []
        self.wrong_credit: list[str] = []

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Take note of every owner that is made meanwhile."""
        noted = [(each, self._owners) for each in _classes_with_books() if "__init__" in vars(each)]
        noted += [(each, self._users) for each in UNDER_WAY]
        noted += [(each, self._connections) for each in (GrpcConnection, Http2ServerConnection)]
        noted.append((SimulatedLoop, self.loops))
        with contextlib.ExitStack() as stack:
            for each, into in noted:
                had_own, original = "__init__" in vars(each), each.__init__
                each.__init__ = self._noting(original, into)
                if had_own:
                    stack.callback(setattr, each, "__init__", original)
                else:
                    stack.callback(delattr, each, "__init__")
            add = CreditWindow.add
            stack.callback(setattr, CreditWindow, "add", add)
            CreditWindow.add = self._checking_credit(add)  # type: ignore[method-assign]
            yield

    def _checking_credit(self, add: Callable[[CreditWindow, int], None]) -> Any:
        """Credit is for responses that were sent, each once; the project forgives more."""
        machine, wrong = self._machine, self.wrong_credit

        def check(window: CreditWindow, count: int) -> None:
            open_count = len(window._sizes)
            if count > open_count and not wrong:
                where = "" if machine.current is None else f" {machine.process.name}"
                wrong.append(f"credit for {count} responses came to{where}, {open_count} were open")
            add(window, count)

        return check

    def _noting(self, original: Any, into: list[Any]) -> Any:
        machine = self._machine

        def make(owner: Any, *args: Any, **kwargs: Any) -> None:
            original(owner, *args, **kwargs)
            if machine.current is not None:
                with contextlib.suppress(TypeError):  # it has slots, and none for references
                    into.append((weakref.ref(owner), machine.current.process))

        return make

    def check(self) -> list[str]:
        """Returns what the owners of living processes find wrong."""
        wrong = []
        for reference, process in self._owners:
            owner = reference()
            if owner is None or process.is_over:
                continue
            try:
                owner.check_integrity()
            except AssertionError as error:
                wrong.append(f"{type(owner).__name__} of {process.name}: {error}")
        return wrong

    def under_way(self) -> list[str]:
        """Returns who still has requests, in living processes."""
        found = []
        for reference, process in self._users:
            user = reference()
            if user is not None and not process.is_over and (count := UNDER_WAY[type(user)](user)):
                found.append(f"{user!r} of {process.name} has {count} requests under way")
        return found

    def check_connections(self) -> list[str]:
        """Returns what is wrong with the streams and windows of open connections of HTTP/2."""
        wrong = []
        for reference, process in self._connections:
            connection = reference()
            if connection is None or process.is_over or connection._is_closing:
                continue
            try:
                _check_connection(connection)
            except AssertionError as error:
                wrong.append(f"{connection!r} of {process.name}: {error}")
        return wrong

    def living_loops(self) -> Iterator[tuple[SimulatedLoop, SimulatedProcess]]:
        for reference, process in self.loops:
            loop = reference()
            if loop is not None and not process.is_over and not loop.is_closed():
                yield loop, process


def _classes_with_books() -> list[type]:
    found: dict[type, None] = {}
    for name, module in sorted(sys.modules.items()):
        if name.startswith("pytriton") and isinstance(module, types.ModuleType):
            for value in vars(module).values():
                if (
                    isinstance(value, type)
                    and value.__module__ == name
                    and hasattr(value, "check_integrity")
                    and not getattr(value, "_is_protocol", False)
                ):
                    found[value] = None
    return list(found)


def _check_connection(connection: Any) -> None:
    core = connection.http2._core
    if core.is_terminated:
        return
    windows, streams = core.receive_windows, core.streams.open.values()
    served = (
        {**connection._bodies, **connection._streams}
        if isinstance(connection, Http2ServerConnection)
        else connection._calls
    )
    for stream in streams:
        has_call = stream.id in served
        assert has_call or stream.queue, f"stream {stream.id} is open, and nobody serves it"
    for stream_id in served:
        assert stream_id in core.streams.open, f"stream {stream_id} has ended, and is still served"
    unread = sum(stream.unacknowledged for stream in streams)
    known = windows._window + windows._credit + unread
    whole = max(core.limits.connection_window_bytes, frames.DEFAULT_WINDOW)
    assert known == whole, f"of a window of {whole} bytes, {whole - known} bytes are lost"


def role_of(process: SimulatedProcess) -> str:
    """Returns the name of a process without numbers that a restart changes."""
    return re.sub(r"\d{4,}", "N", process.name)


def take_stock(machine: Machine, books: Books) -> Stock:
    """Counts what every living process has."""
    gc.collect()
    stock: Stock = collections.Counter()
    for process in machine.processes:
        if process.is_over:
            if not process.is_reaped and process.parent is not None and not process.parent.is_over:
                stock["zombies"] += 1
            continue
        role = role_of(process)
        stock[f"{role}: processes"] += 1
        stock[f"{role}: threads"] += len(process.threads)
        for file in process.files.values():
            stock[f"{role}: descriptors of {type(file).__name__}"] += 1
    for loop, process in books.living_loops():
        role = role_of(process)
        stock[f"{role}: timers"] += loop.timer_count
        stock[f"{role}: watched descriptors"] += loop.watch_count
        stock[f"{role}: connections"] += len(loop.transports)
        stock[f"{role}: tasks"] += len(asyncio.all_tasks(loop))
    return stock


def what_is_left(before: Stock, after: Stock) -> list[str]:
    """Returns what there is more, or less, of than before."""
    return [
        f"{name}: {before[name]} before, {after[name]} after"
        for name in sorted({*before, *after})
        if before[name] != after[name] and not _is_first_use(name, before, after)
    ]


def _is_first_use(name: str, before: Stock, after: Stock) -> bool:
    """Whether threads were started by a first use, and stay for the next ones.

    Models with streams have one, access log and traces have one each, and so have pools.
    """
    role, _, what = name.rpartition(": ")
    if what != "threads":
        return False
    is_worker = "backend_stub" in role
    most = after[f"{role}: processes"] if is_worker else _MOST_THREADS
    return before[name] < after[name] <= before[name] + most
