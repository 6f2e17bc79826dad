# SPDX-License-Identifier: Apache-2.0
"""Decides which requests are traced, and exports the spans of requests that have ended."""

from __future__ import annotations

import itertools
import re
import time
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pytriton.errors import InvalidArgumentError, UnavailableError
from pytriton.server.tracing.request_trace import RequestTrace, new_span_id, new_trace_id
from pytriton.server.tracing.span_export import SpanExport
from pytriton.server.tracing.spans import TraceFacts, make_spans
from pytriton.utils.trace_config import INSTALL_HINT

if TYPE_CHECKING:
    from pytriton.engine.model_spec import ModelSpec
    from pytriton.messages import InferRequest, ResponseSink, TraceContext, TracedSink
    from pytriton.server.tracing.settings import TraceSettings
    from pytriton.server.tracing.spans import SpanRecord

# Version 00 of W3C Trace Context; later versions may append fields.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-|\Z)")
_LENGTH = 55
_SAMPLED = 1


class TraceParent(NamedTuple):
    """The client's span, which is the parent of the request's."""

    trace_id: int
    span_id: int
    is_sampled: bool


def parse_traceparent(text: str) -> TraceParent | None:
    """Parse a `traceparent` header; returns None if it is invalid."""
    found = _TRACEPARENT.match(text)
    if found is None or (text.startswith("00") and len(text) != _LENGTH):
        return None
    trace_id, span_id, flags = (int(part, 16) for part in found.groups())
    if not trace_id or not span_id:
        return None
    return TraceParent(trace_id, span_id, bool(flags & _SAMPLED))


class SpanSink(Protocol):
    """Receives spans."""

    def add(self, spans: list[SpanRecord]) -> None:
        """Add the spans of a request."""

    async def close(self, timeout_s: float) -> None:
        """Send the remaining spans, if that is possible in time."""


class TraceBeginner(Protocol):
    """Decides which requests are traced."""

    def begin(
        self,
        request: InferRequest,
        spec: ModelSpec,
        protocol: str,
        traceparent: str,
        tracestate: str,
        sink: ResponseSink,
    ) -> TracedSink | None:
        """Returns a sink that traces the request and wraps `sink`; None if it is not traced."""


class Tracing:
    """Begins the traces of requests, and exports the spans of requests that have ended."""

    def __init__(self, settings: TraceSettings, export: SpanSink) -> None:
        self.settings = settings
        self._export = export
        self._numbers = itertools.count(1)

    @classmethod
    def start(cls, settings: TraceSettings) -> Tracing | None:
        """Start tracing; returns None if the mode of the settings is not OpenTelemetry.

        Raises:
            InvalidArgumentError: a setting is wrong.
            UnavailableError: OpenTelemetry is not installed.
        """
        if not settings.config.is_opentelemetry:
            return None
        try:
            return cls(settings, SpanExport(settings.config))
        except ValueError as error:
            raise InvalidArgumentError(str(error)) from error
        except ImportError as error:
            raise UnavailableError(INSTALL_HINT) from error

    def begin(
        self,
        request: InferRequest,
        spec: ModelSpec,
        protocol: str,
        traceparent: str,
        tracestate: str,
        sink: ResponseSink,
    ) -> RequestTrace | None:
        """Begin the trace of a request, if its client asks for it or sampling selects it."""
        sampling = self.settings.sampling(spec.name)
        if sampling is None:
            return None
        parent = parse_traceparent(traceparent) if traceparent else None
        if parent is None:
            if not sampling.takes_next():
                return None
            return self._begin(request, spec, sink, new_trace_id(), protocol=protocol)
        if not parent.is_sampled:
            return None
        return self._begin(
            request, spec, sink, parent.trace_id, parent.span_id, tracestate, protocol=protocol
        )

    def begin_call(
        self, request: InferRequest, spec: ModelSpec, parent: TraceContext, sink: ResponseSink
    ) -> RequestTrace | None:
        """Begin the trace of a request that a model makes for a traced request."""
        span = parse_traceparent(parent.traceparent)
        if span is None:
            return None
        return self._begin(
            request, spec, sink, span.trace_id, span.span_id, parent.tracestate, is_call=True
        )

    def _begin(
        self,
        request: InferRequest,
        spec: ModelSpec,
        sink: ResponseSink,
        trace_id: int,
        parent_id: int = 0,
        tracestate: str = "",
        *,
        protocol: str = "",
        is_call: bool = False,
    ) -> RequestTrace:
        facts = TraceFacts(
            trace_id=trace_id,
            parent_id=parent_id,
            tracestate=tracestate,
            is_call=is_call,
            number=next(self._numbers),
            protocol=protocol,
            model_name=spec.name,
            model_version=spec.version,
            request_id=request.id,
            infer_id=new_span_id(),
            model_id=new_span_id(),
            start_ns=time.monotonic_ns(),
        )
        return RequestTrace(facts, sink, self._finish)

    def _finish(self, facts: TraceFacts) -> None:
        self._export.add(make_spans(facts, time.time_ns() - time.monotonic_ns()))

    async def close(self, timeout_s: float) -> None:
        """Send the remaining spans, if that is possible in time."""
        await self._export.close(timeout_s)
