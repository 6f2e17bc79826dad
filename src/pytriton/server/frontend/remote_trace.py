# SPDX-License-Identifier: Apache-2.0
"""Traces in a front end: only the core knows which requests are sampled, and makes the spans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.transport.frontend_frames import TraceOrigin

if TYPE_CHECKING:
    from pytriton.engine.model_spec import ModelSpec
    from pytriton.errors import ServerError
    from pytriton.messages import (
        ExecutionTimes,
        InferRequest,
        InferResponse,
        ResponseSink,
        TraceContext,
    )


class RemoteTracing:
    """Sends the headers of each request along; see `TraceBeginner`."""

    def begin(
        self,
        request: InferRequest,
        spec: ModelSpec,
        protocol: str,
        traceparent: str,
        tracestate: str,
        sink: ResponseSink,
    ) -> RemoteTrace:
        """Returns a sink that carries the headers to the core."""
        return RemoteTrace(TraceOrigin(protocol, traceparent, tracestate), sink)


class RemoteTrace:
    """A request that the core may trace; see `TracedSink`."""

    __slots__ = ("_sink", "origin")

    def __init__(self, origin: TraceOrigin, sink: ResponseSink) -> None:
        self.origin = origin
        self._sink = sink

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        """Pass a response on."""
        self._sink.on_response(response, final=final)

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        """Pass an error on."""
        self._sink.on_error(error, final=final)

    def on_refused(self, error: ServerError) -> None:
        """Pass a refusal on."""
        self._sink.on_refused(error)

    # The core's trace of the request records these

    def context(self, *, is_model_file: bool) -> TraceContext:
        """Not available here: no instance is reached from a front end."""
        raise NotImplementedError

    def add_execution(self, times_ns: ExecutionTimes) -> None:
        """Do nothing."""

    def on_cancelled(self) -> None:
        """Do nothing."""
