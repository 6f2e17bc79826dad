# SPDX-License-Identifier: Apache-2.0
"""Verbose lines about requests: one when a request arrives, and one when it was answered."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from pytriton.serving.engine.observers import Observer, Watcher
from pytriton.serving.server.process.log_lines import LineLog

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytriton.base.dtypes import DataType
    from pytriton.base.errors import ServerError
    from pytriton.protocol.grpc import CallHead
    from pytriton.serving.engine.client import EngineClient
    from pytriton.serving.engine.observers import Members, Run
    from pytriton.serving.server.grpc.api import GrpcApi
    from pytriton.serving.server.grpc.call import GrpcCall
    from pytriton.serving.server.grpc.connection import GrpcConnection
    from pytriton.serving.server.http.api import HttpApi
    from pytriton.serving.server.http.connection import HttpConnection
    from pytriton.serving.server.http.handler import HttpExchange
    from pytriton.serving.server.http.reader import HttpRequest

_monotonic_ns = time.monotonic_ns

_TENSORS_LEVEL = 2
_ANSWERED = "was answered with %d response(s)"


class VerboseRequests(Observer):
    """Observes requests, and replaces methods that every one calls, while the level is above 0.

    Attributes of the objects hide these methods, so a request costs nothing more while the level
    is 0; tests in all of them would be 1 % of the work for a small request.
    """

    def __init__(self, engine: EngineClient, http: HttpApi, grpc: GrpcApi) -> None:
        self._level = 0
        self._lines = LineLog(__name__, __file__, http.loop)
        self._engine = engine
        self._handle = http.handle
        self._open_call = grpc.open_call
        self._is_logged = False  # the next call that is opened
        self._replaced: list[tuple[object, str, Callable[..., Any], Callable[..., Any]]] = [
            (http, "handle", self._handle, self._log_handle),
            (grpc, "open_call", self._open_call, self._log_open_call),
        ]
        if grpc.call_columns is not None:
            self._take = grpc.call_columns.take
            self._replaced.append((grpc.call_columns, "take", self._take, self._log_take))

    def set_level(self, level: int) -> None:
        """Begin or end to log requests, or change how much is logged of them."""
        was_on, self._level = self._level > 0, level
        if was_on == (level > 0):
            return
        for owner, name, method, logged in self._replaced:
            # The original method is set again, not deleted: `LocalClient` has some as attributes.
            vars(owner)[name] = logged if level else method
        if level:
            self._engine.observers.add("verbose lines", self)
        else:
            self._engine.observers.remove("verbose lines")

    def begun(self, members: Members) -> LoggedRequests | None:
        """Log what requests of clients bring, and later how they end."""
        if members.origin() is None:
            return None
        if self._level >= _TENSORS_LEVEL:
            log_tensors(self._lines, members)
        return LoggedRequests(self._lines, members)

    def _log_handle(self, connection: HttpConnection, request: HttpRequest) -> HttpExchange | None:
        head = request.head
        method, target = head.method.decode("latin-1"), head.target.decode("latin-1")
        self._lines.add(f"HTTP request: {method} {target}")
        return self._handle(connection, request)

    def _log_open_call(
        self, connection: GrpcConnection, stream_id: int, head: CallHead
    ) -> GrpcCall | None:
        if not self._is_logged:
            self._lines.add(f"gRPC call: {head.path}")
        self._is_logged = False
        return self._open_call(connection, stream_id, head)

    def _log_take(
        self, connection: GrpcConnection, stream_id: int, head: CallHead, framed: bytes
    ) -> GrpcCall | None:
        is_new = not connection.has_call(stream_id)  # it was not opened, which logs it
        if is_new:
            self._lines.add(f"gRPC call: {head.path}")
        call: GrpcCall | None = self._take(connection, stream_id, head, framed)
        self._is_logged = is_new and call is None  # it is opened next
        return call


def _end_text(model_name: str, begun_ns: int, how: str) -> str:
    took_us = (_monotonic_ns() - begun_ns) // 1000
    return f"request for model '{model_name}' took {took_us} us and {how}"


def _error_text(error: ServerError, *, is_refused: bool = False) -> str:
    if is_refused:
        return f"was refused: {error.message}"
    return f"failed: {error.message}" if error.message else "was cancelled"


class LoggedRequests(Watcher):
    """Logs the ends of requests that began together."""

    def __init__(self, lines: LineLog, members: Members) -> None:
        request = members.requests[0]
        self._lines = lines
        self._model_name = request.model_name
        self._ids = [each.id for each in members.requests]
        self._has_one_response = members.chunk is not None
        self._response_count = 0
        # Members of a chunk have the mean of their times.
        self._begun_ns = _monotonic_ns() if members.chunk is None else request.received_ns

    def answered(self, run: Run) -> None:
        """Log a line for each that has ended."""
        if run.burst is not None:
            self._response_count += run.burst.count
        elif run.response is not None:
            self._response_count += 1
        if not run.is_final:
            return
        how = _ANSWERED % (1 if self._has_one_response else self._response_count)
        if run.error is not None:
            how = _error_text(run.error, is_refused=run.is_refused)
        text = _end_text(self._model_name, self._begun_ns, how)
        self._lines.add_all(text, self._ids[run.first : run.end])


def log_tensors(lines: LineLog, members: Members) -> None:
    """Log what requests bring and ask for."""
    request = members.requests[0]
    ids = [each.id for each in members.requests]
    inputs = {each.name: (each.dtype, each.shape) for each in members.inputs(0)}
    lines.add_all(_tensors_text(request.model_name, inputs, request.outputs), ids)


def _tensors_text(
    model_name: str,
    inputs: Mapping[str, tuple[DataType, Sequence[int]]],
    outputs: Sequence[str] | None,
) -> str:
    texts = [f"{name} {dtype.name} {list(shape)}" for name, (dtype, shape) in inputs.items()]
    wanted = "all outputs" if outputs is None else ", ".join(outputs)
    return f"request for model '{model_name}' with {', '.join(texts)}, for {wanted}"
