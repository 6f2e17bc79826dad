# SPDX-License-Identifier: Apache-2.0
"""Traces in a front end: only the core knows which requests are sampled, and makes the spans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.errors import sendable_text
from pytriton.transport.frontend_frames import TraceRefusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.engine.model_spec import ModelSpec
    from pytriton.errors import ServerError
    from pytriton.messages import (
        ExecutionTimes,
        InferRequest,
        InferResponse,
        ResponseSink,
        TraceContext,
        TraceOrigin,
    )


class RemoteTracing:
    """Sends the headers of each request along; see `TraceBeginner`.

    Args:
        send: Sends a message to the core.
    """

    def __init__(self, send: Callable[[TraceRefusal], None]) -> None:
        self._send = send

    def begin(
        self,
        request: InferRequest,
        spec: ModelSpec,
        origin: TraceOrigin,
        sink: ResponseSink,
    ) -> RemoteTrace:
        """Returns a sink that carries the headers to the core."""

        def report(error: ServerError) -> None:
            text, code = sendable_text(error.message), int(error.code)
            self._send(
                TraceRefusal(
                    origin, spec.name, spec.version, request.id, request.received_ns, text, code
                )
            )

        return RemoteTrace(origin, sink, report)


class RemoteTrace:
    """A request that the core may trace; see `TracedSink`."""

    __slots__ = ("_report_refusal", "_sink", "is_sent", "origin")

    def __init__(
        self, origin: TraceOrigin, sink: ResponseSink, report_refusal: Callable[[ServerError], None]
    ) -> None:
        self.origin = origin
        self.is_sent = False  # True: the core has the request, and records its trace
        self._sink = sink
        self._report_refusal = report_refusal

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        """Pass a response on."""
        self._sink.on_response(response, final=final)

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        """Pass an error on."""
        self._sink.on_error(error, final=final)

    def on_refused(self, error: ServerError) -> None:
        """Pass a refusal on, and tell the core about one of this process."""
        if not self.is_sent:
            self._report_refusal(error)
        self._sink.on_refused(error)

    # The core's trace of the request records these

    def context(self, *, is_model_file: bool) -> TraceContext | None:
        """Not available here: no instance is reached from a front end."""
        raise NotImplementedError

    def add_execution(self, times_ns: ExecutionTimes) -> None:
        """Do nothing."""

    def on_cancelled(self) -> None:
        """Do nothing."""
