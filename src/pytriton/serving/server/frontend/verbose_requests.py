# SPDX-License-Identifier: Apache-2.0
"""Verbose lines about requests: one when a request arrives, and one when it was answered."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pytriton.serving.engine.observers import Observer, Watcher
from pytriton.serving.server.process.log_lines import LineLog

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytriton.base.dtypes import DataType
    from pytriton.base.errors import ServerError
    from pytriton.protocol.grpc import CallHead
    from pytriton.serving.engine.client import EngineClient
    from pytriton.serving.engine.observers import Members, Run
    from pytriton.serving.server.grpc.api import GrpcApi
    from pytriton.serving.server.http.api import HttpApi
    from pytriton.serving.server.http.request import RequestHead

_monotonic_ns = time.monotonic_ns

_TENSORS_LEVEL = 2
_ANSWERED = "was answered with %d response(s)"


class VerboseRequests(Observer):
    """Logs what comes to the ports, and what becomes of requests, while the level is above 0."""

    def __init__(self, engine: EngineClient, http: HttpApi, grpc: GrpcApi) -> None:
        self._level = 0
        self._lines = LineLog(__name__, __file__, http.loop)
        self._engine = engine
        self._http = http
        self._grpc = grpc

    def set_level(self, level: int) -> None:
        """Begin or end to log requests, or change how much is logged of them."""
        self._level = level
        if level:
            self._engine.observers.add("verbose lines", self)
            self._http.on_arrival, self._grpc.on_arrival = self._log_request, self._log_call
        else:
            self._engine.observers.remove("verbose lines")
            self._http.on_arrival = self._grpc.on_arrival = None

    def _log_request(self, head: RequestHead) -> None:
        method, target = head.method.decode("latin-1"), head.target.decode("latin-1")
        self._lines.add(f"HTTP request: {method} {target}")

    def _log_call(self, head: CallHead) -> None:
        self._lines.add(f"gRPC call: {head.path}")

    def begun(self, members: Members) -> LoggedRequests | None:
        """Log what requests of clients bring, and later how they end."""
        if members.origin() is None:
            return None
        if self._level >= _TENSORS_LEVEL:
            log_tensors(self._lines, members)
        return LoggedRequests(self._lines, members)


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
        self._ids = [each.fields.id for each in members.requests]
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
    ids = [each.fields.id for each in members.requests]
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
