# SPDX-License-Identifier: Apache-2.0
"""The process that makes load, started by `process_load`.

It does nothing else, so that what measures and shows progress does not disturb it.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import signal
import socket
import ssl
import time
from collections.abc import Callable

from pytriton.base.protos import service_pb2
from pytriton.client.kserve.messages import FINAL
from pytriton.protocol.http2 import frames
from pytriton.protocol.http2.frames import ConnectionViolation, Http2ErrorCode
from pytriton.tools.perf.errors import GeneratorError
from pytriton.tools.perf.load.driver import LoadDriver
from pytriton.tools.perf.load.grpc_session import CREDIT_BYTES, GrpcSession, Paced, unpadded
from pytriton.tools.perf.load.http_connection import Head, LoadHttpConnection
from pytriton.tools.perf.load.lane import Carrier, LaneListener, RequestLane, clock
from pytriton.tools.perf.load.link import Dialer, SocketPoller
from pytriton.tools.perf.load.recipe import (
    ControlClosedError,
    LevelDone,
    LoadMessageInbox,
    Order,
    Ready,
    Recipe,
    StartLoad,
    StopLoad,
    Take,
    TakeLevel,
    Taken,
    decode_order,
    send,
)
from pytriton.tools.perf.load.records import Recorder
from pytriton.tools.perf.load.requests import PREFIX, GrpcRequests, HttpRequests

_STREAM = 1


class GrpcStreamSession(GrpcSession):
    """Responses are told apart by the ids of their requests."""

    def __init__(
        self,
        link: Dialer,
        requests: GrpcRequests,
        block: bytes,
        outcome: LaneListener,
        poller: SocketPoller,
        *,
        is_decoupled: bool,
    ) -> None:
        super().__init__(link, requests, block, outcome, poller)
        self._is_decoupled = is_decoupled
        self._learns = False
        self._by_id: dict[str, RequestLane] = {}
        self._number = 0
        self._data = b""
        self._stream_credit = 0
        self._out.append(frames.header_frames(_STREAM, block, 0, frames.DEFAULT_MAX_FRAME))
        self._windows.keep(_STREAM)

    def begin(self, lane: RequestLane) -> None:
        self._number += 1
        message = self._requests.with_id(lane.choice, self._number & 0xFFFFFFFF)
        self._by_id[f"{self._number & 0xFFFFFFFF:08x}"] = lane
        if self._windows.admits_on(_STREAM, len(message)):
            self._out.append(frames.frame(frames.DATA, 0, _STREAM, message))
            self._sending.append(lane)
        else:
            self._windows.wait(Paced(_STREAM, lane, memoryview(message), is_last=False))
            self._send_paced()
        if not self._is_reading:
            self.flush()

    @property
    def has_calls(self) -> bool:
        return bool(self._by_id)

    def close(self) -> None:
        super().close()
        self._by_id.clear()

    def _take_data(
        self, stream: int, flags: int, data: bytes, start: int, stop: int, now: int
    ) -> None:
        self._count(stop - start)
        self._stream_credit += stop - start
        if self._stream_credit >= CREDIT_BYTES:
            self._out.append(frames.window_update(_STREAM, self._stream_credit))
            self._stream_credit = 0
        payload = data[start:stop]
        if flags & frames.PADDED:
            payload = unpadded(payload, flags)
        if self._data:
            payload = self._data + payload
        at = 0
        while len(payload) - at >= PREFIX.size:
            is_compressed, size = PREFIX.unpack_from(payload, at)
            stop = at + PREFIX.size + size
            if stop > len(payload):
                break
            if is_compressed:
                text = "expected messages without compression, which was not offered"
                raise ConnectionViolation(Http2ErrorCode.PROTOCOL_ERROR, text)
            self._take_message(payload[at + PREFIX.size : stop], now)
            at = stop
        self._data = payload[at:]

    def _take_message(self, message: bytes, now: int) -> None:
        answer = service_pb2.ModelStreamInferResponse.FromString(message)
        response = answer.infer_response
        number = response.id
        if not number and answer.error_message and self._by_id:
            number = next(iter(self._by_id))  # older servers do not say whose error it is
        lane = self._by_id.get(number)
        if lane is None:
            return
        if answer.error_message:
            del self._by_id[number]
            self._outcome.finish(lane, now, answer.error_message)
            return
        # Decoupled models may end with an empty response, which only carries the parameter.
        is_final = not self._is_decoupled or response.parameters[FINAL].bool_param
        if not self._is_decoupled or not is_final or response.outputs:
            lane.responses += 1
            self._outcome.respond(lane, now)
            if self._looks:
                self._outcome.keep(lane, response.SerializeToString(), -1)
        if is_final:
            del self._by_id[number]
            self._outcome.finish(lane, now)

    def _end(self, stream: int, error: str, now: int) -> None:
        """The server ended the call, and with it all requests on it."""
        self.is_leaving = True
        self._fail(error or "the server ended the call before its answers were complete")

    def _take_reset(self, stream: int, code: int, now: int) -> None:
        self._end(stream, f"the server reset the call with code {code}", now)

    def _take_goaway(self, payload: bytes) -> None:
        """No new connection is needed for requests under way: the call goes on until it ends."""
        self.is_leaving = True

    def _fail(self, error: str) -> None:
        self._lanes = dict(enumerate(self._by_id.values()))
        super()._fail(error)


# Calls that share a connection of gRPC: as many as clients of Triton's own library do.
LANES_PER_CONNECTION = 6

_LONGEST_WAIT_NS = 1_000_000_000


class LoadChannel:
    """Several lanes share it.

    Args:
        connect: Opens a connection; OSError if it cannot be made.
        outcome: Is told of connections that cannot be made.
    """

    def __init__(self, connect: Callable[[], GrpcSession], outcome: LaneListener) -> None:
        self._connect = connect
        self._outcome = outcome
        self._session: GrpcSession | None = None
        self._leaving: list[GrpcSession] = []

    def open(self) -> GrpcSession:
        session = self._session
        if session is None or session.is_leaving or not session.is_open:
            self._leaving = [old for old in self._leaving if old.is_open]
            if session is not None and session.is_open:
                self._leaving.append(session)
            self._session = session = None
            self._session = session = self._connect()
            session.flush()
        return session

    def begin(self, lane: RequestLane) -> None:
        try:
            session = self.open()
        except OSError as error:
            self._outcome.lose(lane, clock(), f"cannot connect: {error}")
            return
        session.begin(lane)

    def close(self) -> None:
        for session in (*self._leaving, self._session):
            if session is not None:
                session.close()
        self._session = None
        self._leaving = []


class Carriers:
    """Makes carriers as lanes need them, and closes them all.

    Over HTTP each lane has a connection. Over gRPC some lanes share one.
    """

    def __init__(self, recipe: Recipe, poller: SocketPoller) -> None:
        self._recipe = recipe
        self._poller = poller
        protocol = "h2" if recipe.is_grpc else "http/1.1"
        self._link = Dialer(recipe.host, recipe.port, recipe.tls, [protocol])
        self._carriers: list[Carrier] = []
        self._heads: dict[bytes, Head] = {}
        self._http = None if recipe.is_grpc else HttpRequests(recipe)
        self._grpc = GrpcRequests(recipe) if recipe.is_grpc else None
        self.outcome: LaneListener  # set before the first lane is made: it has the lanes

    def of_lane(self, number: int) -> Carrier:
        """The carrier of a lane."""
        index = number if self._grpc is None else number // LANES_PER_CONNECTION
        while len(self._carriers) <= index:
            self._carriers.append(self._make())
        return self._carriers[index]

    def check(self) -> None:
        """Connect what is needed from the first request on; OSError if it does not work."""
        for number in range(self._recipe.connections):
            self.of_lane(number).open()

    def close(self) -> None:
        for carrier in self._carriers:
            carrier.close()

    def _make(self) -> Carrier:
        if self._http is not None:
            return LoadHttpConnection(
                self._link,
                self._http,
                self.outcome,
                self._poller,
                self._heads,
                is_streaming=self._recipe.is_streaming,
            )
        assert self._grpc is not None
        arguments = (self._link, self._grpc, self._recipe.head, self.outcome, self._poller)
        if self._recipe.is_streaming:
            is_decoupled = self._recipe.is_decoupled
            connect = functools.partial(GrpcStreamSession, *arguments, is_decoupled=is_decoupled)
            return LoadChannel(connect, self.outcome)
        return LoadChannel(functools.partial(GrpcSession, *arguments), self.outcome)


class LoadWorker:
    """Serves the orders of the measuring process, and makes load in between."""

    def __init__(self, connection: socket.socket, recipe: Recipe) -> None:
        self._connection = connection
        self._orders = LoadMessageInbox(connection, decode_order)
        self._poller = SocketPoller()
        self._recorder = Recorder()
        self._carriers = Carriers(recipe, self._poller)
        self._driver = LoadDriver(recipe, self._recorder, self._carriers.of_lane)
        self._carriers.outcome = self._driver
        self._is_exact = recipe.is_exact
        self._level_number = -1  # of a level whose end has not been told
        self._is_ending = False
        self._is_over = False
        self._since_ns = clock()
        self._cpu_ns = time.process_time_ns()
        self._waiting_ns = 0
        self._lag_ns = 0
        self._events = 0

    def check(self) -> str:
        """Reach the server once; what went wrong, or nothing."""
        try:
            self._carriers.check()
        except (OSError, ssl.SSLError) as error:
            return str(error)
        return ""

    def run(self) -> None:
        """Make load until the measuring process says that it is over, or is gone."""
        self._poller.add(self._connection.fileno(), self._on_order)
        if self._is_exact:
            raise_priority()
        gc.collect()
        gc.freeze()
        gc.disable()  # nothing here makes cycles, and a collection would be a pause
        try:
            while not self._is_over:
                self._turn()
        except ControlClosedError:
            return
        finally:
            self._carriers.close()

    def _turn(self) -> None:
        """Wait for something to happen, and handle it."""
        driver, callbacks = self._driver, self._poller.callbacks
        before = clock()
        wait_ns = min(driver.due_ns - before, _LONGEST_WAIT_NS)
        events = self._poller.poll(wait_ns / 1e9 if wait_ns > 0 else 0)
        begin = clock()
        for fd, event in events:
            callback = callbacks.get(fd)  # one may close the connection of another
            if callback is not None:
                callback(event)
            if self._is_exact and driver.due_ns <= (now := clock()):
                driver.tick(now)  # answers that have come can wait
        now = clock()
        if driver.due_ns <= now:
            driver.tick(now)
        self._waiting_ns += begin - before
        self._events += len(events)
        self._lag_ns += (now - begin) * len(events) // 2
        if self._level_number >= 0 and driver.is_done:
            send(self._connection, LevelDone(self._level_number))
            self._level_number = -1
        if self._is_ending and driver.is_stopped:
            self._end()

    def _on_order(self, event: int) -> None:
        self._obey(self._orders.receive())
        while self._orders.has_message:  # the operating system would not say that these can be read
            self._obey(self._orders.receive())

    def _obey(self, order: Order) -> None:
        if isinstance(order, TakeLevel):
            self._level_number = order.number
            self._driver.change(order, clock())
        elif isinstance(order, Take):
            send(self._connection, self._taken())
        elif isinstance(order, StopLoad):
            self._is_ending = True
            self._driver.stop(clock())
            if order.at_once:
                self._end()

    def _end(self) -> None:
        if not self._is_over:
            send(self._connection, self._taken(is_last=True))
            self._is_over = True

    def _taken(self, *, is_last: bool = False) -> Taken:
        recorder = self._recorder
        now, cpu_ns = clock(), time.process_time_ns()
        taken = Taken(
            rows=recorder.take_rows(),
            response_ns=recorder.response_ns.tobytes(),
            errors=recorder.errors,
            since_ns=self._since_ns,
            taken_ns=now,
            cpu_ns=cpu_ns - self._cpu_ns,
            waiting_ns=self._waiting_ns,
            lag_ns=self._lag_ns,
            events=self._events,
            is_last=is_last,
            answers=recorder.answers,
            json_bytes=recorder.json_bytes,
        )
        recorder.forget()
        self._since_ns, self._cpu_ns = now, cpu_ns
        self._waiting_ns = self._lag_ns = self._events = 0
        return taken


def raise_priority() -> None:
    """Run before all other processes if that is allowed, as it is to root outside of containers.

    A process that sleeps until the time of a request is then not kept waiting for a core. It sleeps
    most of the time, so the others have theirs.
    """
    if hasattr(os, "sched_setscheduler"):  # not on macOS
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def main(fd: int) -> None:
    """Serve the measuring process over an inherited socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the measuring process decides when to end
    with socket.socket(fileno=fd) as connection:
        connection.setblocking(True)
        try:
            order = LoadMessageInbox(connection, decode_order).receive()
            assert isinstance(order, StartLoad)
            worker = LoadWorker(connection, order.recipe)
        except GeneratorError as error:
            send(connection, Ready(str(error)))
            return
        except ControlClosedError:
            return
        problem = worker.check()
        send(connection, Ready(problem))
        if not problem:
            worker.run()
