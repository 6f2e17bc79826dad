# SPDX-License-Identifier: Apache-2.0
"""One compared thing, and how all of them are asked in little time."""

from __future__ import annotations

import asyncio
import concurrent.futures
import socket
import warnings
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.client_differential.outcome import NEVER, attempt
from tests.client_differential.ways import Use, Way

# Far beyond every timeout of the cases; only the original has calls that never return.
LIMIT_S = 60.0
SLOW_LANES = 32
SCHEMES = ("http", "grpc")

Steps = Callable[[str], Any]  # what is done, given the address of a server


_sockets: list[socket.socket] = []  # open until the process ends


def port_without_server(kind: str) -> int:
    """A port of its own: "nobody" refuses connections, "silent" takes them and says nothing."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    if kind == "silent":
        listener.listen()
    _sockets.append(listener)
    port: int = listener.getsockname()[1]
    return port


@dataclass(frozen=True)
class Servers:
    """The ports of each kind of server, by scheme, and whether they are the original's."""

    ports: dict[str, dict[str, int]]
    is_real: bool

    def url(self, scheme: str, kind: str = "open") -> str:
        port = self.ports[kind][scheme] if kind in self.ports else port_without_server(kind)
        return f"{scheme}://127.0.0.1:{port}"


@dataclass(frozen=True)
class Case:
    """Something that is asked of clients and servers.

    Slow ones are asked side by side. Last ones are asked when all others were, as the real server
    is not ready any more after them. Deadly ones are those that it does not survive.
    """

    name: str
    ask: Callable[[Servers], Any]
    is_slow: bool = False
    is_deadly: bool = False
    is_last: bool = False


@dataclass(frozen=True)
class Row:
    """A use of a client that several clients are asked for."""

    name: str
    model: str
    use: Use
    settings: dict[str, Any] = field(default_factory=dict)
    server: str = "open"
    is_slow: bool = False
    is_deadly: bool = False


def each(ways: Iterable[Way], rows: Iterable[Row]) -> list[Case]:
    """A case for each way and row."""
    return [case_of(way, row) for row in rows for way in ways]


def case_of(way: Way, row: Row) -> Case:
    def ask(servers: Servers) -> Any:
        url = servers.url(way.scheme, row.server)
        return way.ask(url, row.model, row.use, **row.settings)

    return Case(f"{row.name}: {way}", ask, row.is_slow, row.is_deadly)


def stepped(
    name: str, steps: Steps, *, schemes: Iterable[str] = SCHEMES, is_slow: bool = False
) -> list[Case]:
    """Cases of several steps, one for each protocol."""
    return [
        Case(f"{name}: {scheme}", lambda servers, s=scheme: steps(servers.url(s)), is_slow)
        for scheme in schemes
    ]


def stepped_async(name: str, steps: Callable[[str], Awaitable[Any]], **settings: Any) -> list[Case]:
    return stepped(name, lambda url: asyncio.run(steps(url)), **settings)


def outcomes(cases: Sequence[Case], servers: Servers) -> dict[str, Any]:
    """What comes of all cases. Each lane asks its cases in turn."""
    warnings.simplefilter("ignore")
    if servers.is_real:
        cases = [case for case in cases if not case.is_deadly]
    slow = [case for case in cases if case.is_slow]
    lanes = [[case for case in cases if not (case.is_slow or case.is_last)]]
    lanes += [slow[start::SLOW_LANES] for start in range(SLOW_LANES)]
    last_lanes = [[case] for case in cases if case.is_last]
    found: dict[str, Any] = {}
    with concurrent.futures.ThreadPoolExecutor(len(lanes)) as threads:
        for together in (lanes, last_lanes):
            for of_lane in threads.map(lambda lane: in_turn(lane, servers), together):
                found |= of_lane
    return found


def in_turn(cases: Sequence[Case], servers: Servers) -> dict[str, Any]:
    """What comes of these cases; one that never returns keeps its thread."""
    found = {}
    thread = concurrent.futures.ThreadPoolExecutor(1)
    for case in cases:
        found[case.name] = result_of(thread.submit(attempt, partial(case.ask, servers)))
        if found[case.name] == NEVER:
            thread = concurrent.futures.ThreadPoolExecutor(1)
    return found


def result_of(future: concurrent.futures.Future[Any]) -> Any:
    try:
        return future.result(LIMIT_S)
    except concurrent.futures.TimeoutError:
        return NEVER
