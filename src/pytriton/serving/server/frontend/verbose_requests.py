# SPDX-License-Identifier: Apache-2.0
"""Verbose lines about requests: one when a request arrives, and one when it was answered."""

from __future__ import annotations

import time
from itertools import repeat
from typing import TYPE_CHECKING, Any

from pytriton.serving.server.process.log_lines import LineLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pytriton.base.dtypes import DataType
    from pytriton.base.errors import ServerError
    from pytriton.base.messages import ExecutionTrace, InferRequest, InferResponse, ResponseSink
    from pytriton.protocol.grpc import CallHead
    from pytriton.runtime.executor.columns import ChunkSink, OutputColumn
    from pytriton.runtime.executor.inference import Inference
    from pytriton.serving.engine.client import EngineClient
    from pytriton.serving.engine.served_model import ServedModel
    from pytriton.serving.server.api.gatherer import GatheredChunk
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


class VerboseRequests:
    """Replaces methods that every request calls while the level is above 0.

    Attributes of the objects hide these methods, so a request costs nothing more while the level
    is 0; tests in all of them would be 1 % of the work for a small request.
    """

    def __init__(self, engine: EngineClient, http: HttpApi, grpc: GrpcApi) -> None:
        self._level = 0
        self._lines = LineLog(__name__, __file__, http.loop)
        self._engine = engine
        self._infer = engine.infer
        self._handle = http.handle
        self._open_call = grpc.open_call
        self._is_logged = False  # the next call that is opened
        self._replaced: list[tuple[object, str, Callable[..., Any], Callable[..., Any]]] = [
            (engine, "infer", self._infer, self._log_infer),
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
            self._engine.chunk_observers.append(self._log_chunk)
        else:
            self._engine.chunk_observers.remove(self._log_chunk)

    def _log_infer(
        self,
        request: InferRequest,
        sink: ResponseSink,
        trace: ExecutionTrace | None = None,
        fitting: ServedModel | None = None,
    ) -> Inference:
        if self._level >= _TENSORS_LEVEL:
            log_tensors(self._lines, request)
        return self._infer(request, LoggedRequest(self._lines, request, sink), trace, fitting)

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

    def _log_chunk(self, chunk: GatheredChunk) -> None:
        lines, spec = self._lines, chunk.model.spec
        if self._level >= _TENSORS_LEVEL:
            signature = chunk.signature
            rows = (chunk.rows,) if spec.max_batch_size else ()
            inputs = {each.name: (each.dtype, (*rows, *each.shape)) for each in signature.inputs}
            text = _tensors_text(spec.identifier, inputs, signature.outputs)
            lines.add_all(text, [fields.id for fields in chunk.fields])
        begun_ns = chunk.received_ns // len(chunk.callers)
        chunk.sink = LoggedChunk(lines, spec.identifier, chunk.sink, begun_ns)


def _end_text(model_name: str, begun_ns: int, how: str) -> str:
    took_us = (_monotonic_ns() - begun_ns) // 1000
    return f"request for model '{model_name}' took {took_us} us and {how}"


def _error_text(error: ServerError, *, is_refused: bool = False) -> str:
    if is_refused:
        return f"was refused: {error.message}"
    return f"failed: {error.message}" if error.message else "was cancelled"


class LoggedRequest:
    """A sink that passes everything on, and logs the end."""

    __slots__ = ("_begun_ns", "_lines", "_request", "_response_count", "_sink")

    def __init__(self, lines: LineLog, request: InferRequest, sink: ResponseSink) -> None:
        self._lines = lines
        self._request = request
        self._sink = sink
        self._response_count = 0
        self._begun_ns = _monotonic_ns()

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        self._sink.on_response(response, final=final)
        self._response_count += response is not None
        if final:
            self._log_end(_ANSWERED % self._response_count)

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        self._sink.on_error(error, final=final)
        if final:
            self._log_end(_error_text(error))

    def on_refused(self, error: ServerError) -> None:
        self._sink.on_refused(error)
        self._log_end(_error_text(error, is_refused=True))

    def _log_end(self, how: str) -> None:
        request = self._request
        self._lines.add(_end_text(request.model_name, self._begun_ns, how), request.id)


class LoggedChunk:
    """The sink of a chunk that passes everything on, and logs the end of each member."""

    __slots__ = ("_begun_ns", "_lines", "_model_name", "_sink")

    def __init__(self, lines: LineLog, model_name: str, sink: ChunkSink, begun_ns: int) -> None:
        self._lines = lines
        self._model_name = model_name
        self._sink = sink
        self._begun_ns = begun_ns  # the mean of its members

    def on_rows(
        self, chunk: Any, first: int, end: int, outputs: Sequence[OutputColumn], row: int
    ) -> None:
        """Pass on the answers of members, and log one line for each."""
        ids: Iterable[str] = repeat("", end - first)
        if chunk.has_fields:
            ids = [member.request.id for member in chunk.members[first:end]]
        self._sink.on_rows(chunk, first, end, outputs, row)
        self._lines.add_all(_end_text(self._model_name, self._begun_ns, _ANSWERED % 1), ids)

    def on_outcome(
        self,
        chunk: Any,
        index: int,
        response: InferResponse | None,
        error: ServerError | None,
        *,
        is_refused: bool,
    ) -> None:
        """Pass on the end of one member, and log it."""
        request_id = chunk.members[index].request.id
        self._sink.on_outcome(chunk, index, response, error, is_refused=is_refused)
        how = _ANSWERED % 1
        if error is not None:
            how = _error_text(error, is_refused=is_refused)
        self._lines.add(_end_text(self._model_name, self._begun_ns, how), request_id)


def log_tensors(lines: LineLog, request: InferRequest) -> None:
    """Log what a request brings and asks for."""
    inputs = {tensor.name: (tensor.dtype, tensor.shape) for tensor in request.inputs.values()}
    lines.add(_tensors_text(request.model_name, inputs, request.outputs), request.id)


def _tensors_text(
    model_name: str,
    inputs: Mapping[str, tuple[DataType, Sequence[int]]],
    outputs: Sequence[str] | None,
) -> str:
    texts = [f"{name} {dtype.name} {list(shape)}" for name, (dtype, shape) in inputs.items()]
    wanted = "all outputs" if outputs is None else ", ".join(outputs)
    return f"request for model '{model_name}' with {', '.join(texts)}, for {wanted}"
