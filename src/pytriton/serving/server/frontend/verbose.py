# SPDX-License-Identifier: Apache-2.0
"""Logs what clients ask for while the log is verbose."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from pytriton.serving.server.api.request_log import LoggedRequest, log_tensors

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.base.messages import InferRequest, RequestTrace, ResponseSink
    from pytriton.protocol.grpc import CallHead
    from pytriton.runtime.executor.inference import Inference
    from pytriton.serving.engine.client import EngineClient
    from pytriton.serving.server.grpc.api import GrpcApi
    from pytriton.serving.server.grpc.call import Call
    from pytriton.serving.server.grpc.connection import GrpcConnection
    from pytriton.serving.server.http.api import HttpApi
    from pytriton.serving.server.http.connection import HttpConnection
    from pytriton.serving.server.http.handler import HttpExchange
    from pytriton.serving.server.http.reader import HttpRequest

logger = logging.getLogger(__name__)

_TENSORS_LEVEL = 2


class VerboseRequests:
    """Replaces methods that every request calls while the level is above 0.

    Attributes of the objects hide these methods, so a request costs nothing more while the level
    is 0; tests in all of them would be 1 % of the work for a small request. No request travels as a
    column meanwhile.
    """

    def __init__(self, engine: EngineClient, http: HttpApi, grpc: GrpcApi) -> None:
        self._level = 0
        self._infer = engine.infer
        self._handle = http.handle
        self._open_call = grpc.open_call
        self._replaced: list[tuple[object, str, Callable[..., Any], Callable[..., Any]]] = [
            (engine, "infer", self._infer, self._log_infer),
            (http, "handle", self._handle, self._log_handle),
            (grpc, "open_call", self._open_call, self._log_open_call),
        ]
        for table in grpc.column_tables:
            self._replaced.append((table, "take", table.take, _take_nothing))

    def set_level(self, level: int) -> None:
        """Begin or end to log requests, or change how much is logged of them."""
        was_on, self._level = self._level > 0, level
        if was_on == (level > 0):
            return
        for owner, name, method, logged in self._replaced:
            vars(owner)[name] = logged if level else method

    def _log_infer(
        self, request: InferRequest, sink: ResponseSink, trace: RequestTrace | None = None
    ) -> Inference:
        if self._level >= _TENSORS_LEVEL:
            log_tensors(request)
        return self._infer(request, LoggedRequest(request, sink), trace)

    def _log_handle(self, connection: HttpConnection, request: HttpRequest) -> HttpExchange | None:
        head = request.head
        logger.debug(
            "HTTP request: %s %s", head.method.decode("latin-1"), head.target.decode("latin-1")
        )
        if head.resolved is not None:
            head.resolved.columns = None
        return self._handle(connection, request)

    def _log_open_call(
        self, connection: GrpcConnection, stream_id: int, head: CallHead
    ) -> Call | None:
        logger.debug("gRPC call: %s", head.path)
        return self._open_call(connection, stream_id, head)


def _take_nothing(*_: Any) -> None:
    """Let no request travel as a column."""
