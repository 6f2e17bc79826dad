# SPDX-License-Identifier: Apache-2.0
"""Passes spans to OpenTelemetry, whose own thread sends them over OTLP.

OpenTelemetry is optional and slow to import, so only servers that trace import it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from typing import TYPE_CHECKING, Any

from pytriton.serving.server.tracing.spans import BACKEND_SCOPE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opentelemetry.context import Context
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.trace import Span, Tracer

    from pytriton.serving.server.tracing.spans import SpanRecord
    from pytriton.utils.trace_config import TraceConfig

logger = logging.getLogger(__name__)

_SERVICE_NAME = "triton-inference-server"  # Triton's default


class SpanExport:
    """Exports the spans of a server. It is used on one thread only.

    Raises:
        ImportError: OpenTelemetry is not installed.
    """

    def __init__(self, config: TraceConfig) -> None:
        from opentelemetry import trace  # noqa: PLC0415  optional
        from opentelemetry.sdk.trace import TracerProvider, sampling  # noqa: PLC0415  optional

        self._trace = trace
        self._ids = _given_ids()
        self._provider = TracerProvider(
            sampler=sampling.ALWAYS_ON,  # `TraceSampling` has selected the requests already
            resource=_resource(config),
            shutdown_on_exit=False,  # it may take a long time; see `close`
            id_generator=self._ids,
        )
        self._provider.add_span_processor(_processor(config))
        self._tracers: dict[str, Tracer] = {}  # by scope

    def add(self, spans: Iterable[SpanRecord]) -> None:
        """Queue spans for sending. If the receiver does not take them, the oldest are dropped."""
        for span in spans:
            self._add(span)

    def _add(self, record: SpanRecord) -> None:
        trace = self._trace
        tracer = self._tracers.get(record.scope)
        if tracer is None:
            tracer = self._tracers[record.scope] = self._provider.get_tracer(record.scope)
        is_backend = record.scope == BACKEND_SCOPE
        self._ids.trace_id, self._ids.span_id = record.trace_id, record.span_id
        span = tracer.start_span(
            record.name,
            self._parent_context(record),
            trace.SpanKind.INTERNAL if is_backend else trace.SpanKind.SERVER,
            record.attributes,
            start_time=record.start_ns,
        )
        for name, at_ns in record.events:
            span.add_event(name, timestamp=at_ns)
        if record.error is not None:
            span.set_status(trace.Status(trace.StatusCode.ERROR, record.error))
        span.end(record.end_ns)

    def _parent_context(self, record: SpanRecord) -> Context:
        trace = self._trace
        parent: Span = trace.INVALID_SPAN
        if record.parent_id:
            state = record.tracestate
            parent = trace.NonRecordingSpan(
                trace.SpanContext(
                    record.trace_id,
                    record.parent_id,
                    is_remote=record.is_parent_remote,
                    trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED),
                    trace_state=trace.TraceState.from_header([state]) if state else None,
                )
            )
        context: Context = trace.set_span_in_context(parent)
        return context

    async def close(self, timeout_s: float) -> None:
        """Send the remaining spans, if that is possible in time."""
        loop = asyncio.get_running_loop()
        closed = loop.create_future()

        def close() -> None:
            self._provider.shutdown()
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(closed.set_result, None)

        # A daemon thread, because a slow receiver can block it for any time.
        threading.Thread(target=close, name="span export", daemon=True).start()
        await asyncio.wait([closed], timeout=timeout_s)
        if not closed.done():
            logger.warning("The last spans could not be sent within %g s.", timeout_s)


def _resource(config: TraceConfig) -> Resource:
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource  # noqa: PLC0415  optional

    resource = Resource.create(config.resource)  # also reads OpenTelemetry's environment variables
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        return resource.merge(Resource({SERVICE_NAME: _SERVICE_NAME}))
    return resource


def _given_ids() -> Any:
    from opentelemetry.sdk.trace.id_generator import IdGenerator  # noqa: PLC0415  optional

    class GivenIds(IdGenerator):
        """Gives the next span the ids that were made for it when its request arrived."""

        trace_id = 0
        span_id = 0

        def generate_trace_id(self) -> int:
            return self.trace_id

        def generate_span_id(self) -> int:
            return self.span_id

    return GivenIds()


def _processor(config: TraceConfig) -> Any:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415  optional
        OTLPSpanExporter,
    )
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415  optional

    return BatchSpanProcessor(OTLPSpanExporter(config.endpoint), **config.batching)
