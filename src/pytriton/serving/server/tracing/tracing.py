# SPDX-License-Identifier: Apache-2.0
"""Decides which requests are traced, and passes what is recorded of them to the exporter."""

from __future__ import annotations

import itertools
import logging
import re
import time
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pytriton.base.errors import InvalidArgumentError, UnavailableError
from pytriton.base.messages import ChunkOrigins
from pytriton.serving.server.tracing.chunk_trace import ChunkTrace
from pytriton.serving.server.tracing.request_trace import (
    TraceFacts,
    TracingSink,
    new_span_id,
    new_trace_id,
    record_tensors,
)
from pytriton.serving.server.tracing.settings import ENSEMBLE, LEVEL
from pytriton.serving.server.tracing.spans import SpanExport, SpanExporter
from pytriton.serving.server.tracing.trace_files import FileExporter, TraceFileWriter
from pytriton.utils.trace_config import INSTALL_HINT, OFF

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from pytriton.base.messages import (
        InferRequest,
        ResponseSink,
        TraceContext,
        TracedSink,
        TraceOrigin,
    )
    from pytriton.base.model_spec import ModelSpec
    from pytriton.serving.server.tracing.request_trace import TraceExporter
    from pytriton.serving.server.tracing.settings import TraceSettings

logger = logging.getLogger(__name__)

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


class TraceBeginner(Protocol):
    """Decides which requests are traced."""

    def begin(
        self, request: InferRequest, spec: ModelSpec, origin: TraceOrigin, sink: ResponseSink
    ) -> TracedSink | None:
        """Returns a sink that traces the request and wraps `sink`; None if it is not traced."""

    def passes(self, spec: ModelSpec) -> bool:
        """Returns whether the next request for a model may travel in a chunk.

        `begin` has to decide about one that may not. One that may is counted with its chunk.
        """

    def observe_chunk(self, chunk: Any) -> None:
        """Decide which members of a `GatheredChunk` are traced; they are about to be submitted."""


class Tracing:
    """Begins the traces of requests, and passes what was recorded to the exporter."""

    def __init__(self, settings: TraceSettings, exporter: TraceExporter) -> None:
        self.settings = settings
        settings.on_retired = exporter.retire
        self._exporter = exporter
        self._numbers = itertools.count(1)

    @classmethod
    def start(cls, settings: TraceSettings, loop: asyncio.AbstractEventLoop) -> Tracing | None:
        """Start tracing; returns None if traces could not go anywhere.

        Raises:
            InvalidArgumentError: a setting is wrong.
            UnavailableError: OpenTelemetry is not installed.
        """
        config = settings.config
        if not config.makes_traces:
            if settings.view()[LEVEL] != [OFF]:
                logger.warning("Nothing is traced: no file for traces is given (triton,file).")
            return None
        if not config.is_opentelemetry:
            return cls(settings, FileExporter(TraceFileWriter(config.file), loop.call_later))
        try:
            return cls(settings, SpanExporter(SpanExport(config)))
        except ValueError as error:
            raise InvalidArgumentError(str(error)) from error
        except ImportError as error:
            raise UnavailableError(INSTALL_HINT) from error

    def begin(
        self, request: InferRequest, spec: ModelSpec, origin: TraceOrigin, sink: ResponseSink
    ) -> TracingSink | None:
        """Begin the trace of a request, if its client asks for it or sampling selects it."""
        sampling = self.settings.sampling(spec.name)
        if sampling is None:
            return None
        parent = None
        if origin.traceparent and self._exporter.has_spans:
            parent = parse_traceparent(origin.traceparent)
        if parent is None:
            is_taken = sampling.takes_one() if origin.is_sampled else sampling.takes_next()
            if not is_taken:
                return None
            facts = self._new_facts(request, spec, new_trace_id())
        elif not parent.is_sampled:
            return None
        else:
            facts = self._new_facts(request, spec, parent.trace_id)
            facts.parent_id, facts.tracestate = parent.span_id, origin.tracestate
        facts.protocol = origin.protocol
        facts.began_ns, facts.received_ns = origin.began_ns, request.received_ns
        facts.sampling = sampling
        return self._begin(facts, request, sink)

    def passes(self, spec: ModelSpec) -> bool:
        """Returns whether the next request for a model may travel in a chunk."""
        if spec.platform != ENSEMBLE:
            return True
        # The steps of a traced ensemble have traces of their own, for which they need its record.
        sampling = self.settings.sampling(spec.name)
        return sampling is None or sampling.passes_next()

    def observe_chunk(self, chunk: Any) -> None:
        """Begin the traces of members of a chunk that is about to be submitted."""
        spec = chunk.model.spec
        if spec.platform == ENSEMBLE or self.settings.sampling(spec.name) is None:
            return
        began_ns = [getattr(caller, "began_ns", 0) for caller in chunk.callers]
        origins = ChunkOrigins(chunk.sink.protocol, list(range(len(began_ns))), began_ns)
        ids = [fields.id for fields in chunk.fields]
        self.begin_chunk(chunk, origins, spec, ids, chunk.received_ns // len(ids))

    def begin_chunk(
        self,
        chunk: Any,
        origins: ChunkOrigins,
        spec: ModelSpec,
        ids: Sequence[str],
        received_ns: int,
    ) -> None:
        """Begin the traces of members that sampling selects; `ids` are those of all members."""
        sampling = self.settings.sampling(spec.name)
        if sampling is None:
            return
        exporter, start_ns = self._exporter, time.monotonic_ns()
        traced = {}
        for index in sampling.takes_of(origins.indices, is_sampled=origins.is_sampled):
            facts = TraceFacts(
                trace_id=new_trace_id(),
                number=next(self._numbers),
                model_name=spec.name,
                model_version=spec.version,
                request_id=ids[index],
                infer_id=new_span_id(),
                model_id=new_span_id(),
                start_ns=start_ns,
                protocol=origins.protocol,
                began_ns=origins.began_ns[index],
                received_ns=received_ns,
                sampling=sampling,
            )
            traced[index] = facts
        if traced:
            exporter.begin_members(traced.values(), sampling)
            is_batched = spec.max_batch_size > 0
            trace = ChunkTrace(traced, chunk.sink, exporter, sampling, is_batched=is_batched)
            chunk.trace = chunk.sink = trace
            if sampling.has_tensors:
                trace.record_inputs(chunk)

    def begin_call(
        self, request: InferRequest, spec: ModelSpec, parent: TraceContext, sink: ResponseSink
    ) -> TracingSink | None:
        """Begin the trace of a request that a model makes for a traced request."""
        span = parse_traceparent(parent.traceparent)
        if span is None:
            return None
        facts = self._new_facts(request, spec, span.trace_id)
        facts.parent_id, facts.tracestate = span.span_id, parent.tracestate
        facts.is_call = True
        return self._begin(facts, request, sink)

    def _new_facts(self, request: InferRequest, spec: ModelSpec, trace_id: int) -> TraceFacts:
        return TraceFacts(
            trace_id=trace_id,
            number=next(self._numbers),
            model_name=spec.name,
            model_version=spec.version,
            is_ensemble=spec.platform == ENSEMBLE,
            request_id=request.id,
            operation=request.operation,
            infer_id=new_span_id(),
            model_id=new_span_id(),
            start_ns=time.monotonic_ns(),
        )

    def _begin(
        self, facts: TraceFacts, request: InferRequest, sink: ResponseSink
    ) -> TracingSink | None:
        exporter = self._exporter
        if not exporter.begin(facts):
            return None
        if facts.tensors is not None:
            record_tensors(facts, "TENSOR_QUEUE_INPUT", request.inputs.values())
        return TracingSink(facts, sink, exporter.end, has_spans=exporter.has_spans)

    async def close(self, timeout_s: float) -> None:
        """Export the rest, if that is possible in time."""
        await self._exporter.close(timeout_s)
