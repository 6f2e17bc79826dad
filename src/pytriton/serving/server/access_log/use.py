# SPDX-License-Identifier: Apache-2.0
"""Lets the connections of a front end have lines in the access log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytriton.serving.server.access_log.access_log import AccessLog
from pytriton.serving.server.access_log.grpc import LoggedGrpcConnection
from pytriton.serving.server.access_log.http import LoggedHttpConnection

if TYPE_CHECKING:
    import asyncio

    from pytriton.base.messages import ExecutionTrace, InferRequest, ResponseSink
    from pytriton.runtime.executor.inference import Inference
    from pytriton.serving.engine.client import EngineClient
    from pytriton.serving.server.grpc.api import GrpcApi
    from pytriton.serving.server.http.handler import HttpHandler
    from pytriton.serving.server.options.server_options import AccessLogOptions

# What leads from the sink of a request to its connection: sinks of traces and of shared memory have
# another sink, those of protocols a connection or a call.
_WAYS = ("_sink", "_call")
_MAX_STEPS = 4


class AccessLogUse:
    """Replaces the classes of connections, and looks at what the engine is asked for.

    Args:
        options: The settings of the access log.
        loop: The event loop.
    """

    def __init__(self, options: AccessLogOptions, loop: asyncio.AbstractEventLoop) -> None:
        self.log = AccessLog(options, loop)
        self._members = {"access_log": self.log, "with_health": options.health}

    def use_http(self, handler: HttpHandler) -> None:
        """Log the requests of an HTTP port."""
        handler.is_timed = True
        usual = handler.connection_class
        name = f"Logged{usual.__name__}"
        handler.connection_class = type(name, (LoggedHttpConnection, usual), dict(self._members))

    def use_grpc(self, api: GrpcApi) -> None:
        """Log the calls of the gRPC port."""
        api.connection_class = type(
            "LoggedGrpcConnection", (LoggedGrpcConnection,), dict(self._members)
        )

    def use_engine(self, engine: EngineClient) -> None:
        """Note the models and the ids of requests."""
        usual = engine.infer

        def infer(
            request: InferRequest, sink: ResponseSink, trace: ExecutionTrace | None = None
        ) -> Inference:
            _note(request, sink)
            return usual(request, sink, trace)

        vars(engine)["infer"] = infer


def _note(request: InferRequest, sink: Any) -> None:
    """Tell the connection of a request what the request is for."""
    for _ in range(_MAX_STEPS):
        following = next((each for way in _WAYS if (each := getattr(sink, way, None))), None)
        if following is None:
            break
        sink = following
    connection: Any = getattr(sink, "connection", None) or getattr(sink, "_connection", None)
    if isinstance(connection, LoggedGrpcConnection):
        noted: Any = connection.records.get(sink.stream_id)
    else:
        noted = connection if isinstance(connection, LoggedHttpConnection) else None
    if noted is not None and not noted.model:
        noted.model = request.model_name
        noted.version = request.model_version
        noted.request_id = request.id
