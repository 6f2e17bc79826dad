# SPDX-License-Identifier: Apache-2.0
"""Clients that work through their calls: they connect, send, wait, leave, and come again.

What they do depends on nothing but their plan and the world, which has the clock, the timers and
the connections: virtual ones in a simulation, real ones against a server.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

from tests.workload.calls import Call, End, Kind, Outcome, Port
from tests.workload.grpc_client import GrpcClient, GrpcWriter
from tests.workload.http2_client import Http2Client
from tests.workload.http_client import HttpClient, RequestWriter
from tests.workload.regions import Memory

RECONNECT_S = 0.05
LONGEST_RECONNECT_S = 2.0
MAX_ATTEMPTS = 60  # of a call that could not be sent


class World(Protocol):
    """What clients need of the world around them."""

    def now(self) -> float:
        """The time in seconds."""
        ...

    def call_later(self, delay_s: float, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function later; the object that this returns has `cancel()`."""
        ...

    def connect(self, port: Port, protocol: Any) -> None:
        """Connect to a port of the server, not before this returns.

        Calls `connection_made(transport)`, or `connection_lost(error)` if nobody listens.
        """
        ...

    def memory(self, key: str, size: int) -> Memory:
        """Make an object of shared memory, of zeros, that the server finds by this name."""
        ...


class Judge(Protocol):
    """Who is told what happens to calls: see `oracle.Oracle`."""

    def prepare(self, call: Call, world: World) -> None:
        """Do with shared memory what the client does before a call."""
        ...

    def begin(self, call: Call) -> None:
        """A call is given to a connection."""
        ...

    def finish(self, call: Call) -> None:
        """A call has ended."""
        ...

    def violate(self, sentence: str, call: Call | None) -> None:
        """The server sent something that the protocol does not allow."""
        ...


@dataclasses.dataclass(slots=True)
class ClientPlan:
    """What one client does: one connection at a time, and its calls in order.

    Args:
        number: unique in a run.
        port: the protocol of all its calls.
        start_s: how long after the start of the run it begins.
        calls: what it sends; `pause_s` and `waits` of each say when.
        window_bytes: over HTTP/2, how much the client lets each stream of the server send at once.
        is_http2: whether it speaks HTTP/2 on the HTTP port.
    """

    number: int
    port: Port
    start_s: float
    calls: list[Call]
    window_bytes: int = 1 << 20
    is_http2: bool = False


class Writers:
    """What the clients of a run share: whatever they write again and again is made once."""

    def __init__(self, access_token: str = "") -> None:
        self.http = RequestWriter(access_token=access_token)
        self.grpc = GrpcWriter(access_token=access_token)


class Session:
    """Works through the plan of one client.

    Args:
        plan: what to do.
        world: clock, timers and connections.
        judge: is told what happens.
        writers: may be shared by sessions.
        on_done: is told this session when all its calls have ended.
    """

    def __init__(
        self,
        plan: ClientPlan,
        world: World,
        judge: Judge,
        writers: Writers,
        on_done: Callable[[Session], None] | None = None,
    ) -> None:
        self.plan = plan
        self.is_done = False
        self._world = world
        self._judge = judge
        self._writers = writers
        self._on_done = on_done
        self._client: Any = None  # gets the next call
        self._clients: list[Any] = []  # those whose connections have not ended
        self._next = 0  # index of the next call
        self._open = 0  # calls that are with a connection
        self._again: list[Call] = []  # calls that a connection did not send, for the next one
        self._attempts: dict[int, int] = {}
        self._delay_s = RECONNECT_S
        self._has_timer = False
        self._is_stopped = False

    def start(self) -> None:
        self._wake_after(self.plan.start_s)

    def stop(self) -> None:
        """Begin no more calls; those that are open still end."""
        self._is_stopped = True
        if self._open == 0:
            self._end()

    @property
    def open_count(self) -> int:
        return self._open

    # Going on

    def _wake_after(self, delay_s: float) -> None:
        if not self._has_timer:
            self._has_timer = True
            self._world.call_later(delay_s, self._wake)

    def _wake(self) -> None:
        self._has_timer = False
        if not self.is_done:
            self._send_next()

    def _send_next(self) -> None:
        """Send the call whose time has come, then those that need not wait."""
        if self._is_stopped and self._open == 0:
            self._end()
            return
        while not self._is_stopped:
            call = self._take()
            if call is None:
                if self._open == 0:
                    self._end()
                return
            self._submit(call)
            following = self._peek()
            if following is None or following.waits:
                return  # the end of a call wakes this session
            if following.pause_s:
                self._wake_after(following.pause_s)
                return

    def _peek(self) -> Call | None:
        if self._again:
            return self._again[0]
        return self.plan.calls[self._next] if self._next < len(self.plan.calls) else None

    def _take(self) -> Call | None:
        call = self._peek()
        if call is None or (call.waits and self._open):
            return None
        if self._again:
            self._again.pop(0)
        else:
            self._next += 1
        return call

    def _submit(self, call: Call) -> None:
        if self._client is None or not self._client.is_usable:
            self._client = self._make_client()
            self._clients.append(self._client)
            self._world.connect(self.plan.port, self._client)
        self._open += 1
        if call.number not in self._attempts:
            if call.acts:
                self._judge.prepare(call, self._world)
            self._judge.begin(call)
        self._client.submit(call)

    def _make_client(self) -> Any:
        common = (self._world.now, self._world.call_later, self._on_end)
        told = {"on_lost": self._lost, "on_violation": self._judge.violate}
        window = self.plan.window_bytes
        if self.plan.port is Port.GRPC:
            return GrpcClient(*common, **told, writer=self._writers.grpc, window_bytes=window)
        if self.plan.is_http2:
            return Http2Client(*common, **told, writer=self._writers.http, window_bytes=window)
        return HttpClient(*common, **told, writer=self._writers.http)

    # What connections say

    def _on_end(self, call: Call) -> None:
        self._open -= 1
        outcome = call.outcome
        if outcome.end is End.UNSENT and not self._is_stopped:
            attempts = self._attempts.get(call.number, 0) + 1
            self._attempts[call.number] = attempts
            if attempts < MAX_ATTEMPTS:
                call.outcome = Outcome()
                self._again.append(call)
                self._wake_after(self._delay_s)
                self._delay_s = min(self._delay_s * 2, LONGEST_RECONNECT_S)
                return
        elif outcome.end is End.ANSWERED:
            self._delay_s = RECONNECT_S
        self._judge.finish(call)
        if call.kind is Kind.INVALID:
            self._leave()  # nobody knows what the server makes of the next bytes
        self._go_on()

    def _go_on(self) -> None:
        following = self._peek()
        if following is None or self._is_stopped:
            if self._open == 0:
                self._end()
        elif not following.waits or self._open == 0:
            self._wake_after(following.pause_s)

    def _lost(self, client: Any, error: Exception | None) -> None:
        self._clients = [each for each in self._clients if each is not client]
        if client is self._client:
            self._client = None

    def _leave(self) -> None:
        """End all connections; the next call gets a new one."""
        self._client = None
        for client in list(self._clients):
            client.cut()

    def _end(self) -> None:
        if self.is_done:
            return
        self.is_done = True
        self._leave()
        again, self._again = self._again, []
        for call in again:  # of a session that was stopped before it could send them
            call.outcome.end, call.outcome.ended_s = End.UNSENT, self._world.now()
            call.outcome.ends = 1
            self._judge.finish(call)
        if self._on_done is not None:
            self._on_done(self)
