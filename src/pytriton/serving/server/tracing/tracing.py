# SPDX-License-Identifier: Apache-2.0
"""Decides which requests are traced, and passes what is recorded of them to the exporter."""

from __future__ import annotations

import itertools
import logging
import re
import time
from typing import TYPE_CHECKING, NamedTuple

from pytriton.base.errors import InvalidArgumentError, UnavailableError
from pytriton.base.messages import TraceOrigin
from pytriton.serving.engine.observers import Observer, Run
from pytriton.serving.server.tracing.request_trace import (
    TraceFacts,
    TraceWatcher,
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

    from pytriton.base.errors import ServerError
    from pytriton.base.messages import ChunkOrigins, InferRequest, TraceContext
    from pytriton.base.model_spec import ModelSpec
    from pytriton.serving.engine.observers import Members
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


class Tracing(Observer):
    """Begins the traces of requests, and passes what was recorded to the exporter."""

    reads_origins = True

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

    def begun(self, members: Members) -> TraceWatcher | None:
        """Begin the traces of those requests of clients that they or sampling select."""
        origin, spec = members.origin(), members.spec
        if origin is None or spec is None or self.settings.sampling(spec.name) is None:
            return None
        if isinstance(origin, TraceOrigin):
            return self.begin(members.requests[0], spec, origin)
        return self._begin_chunk(members, origin, spec)

    def begin(
        self, request: InferRequest, spec: ModelSpec, origin: TraceOrigin
    ) -> TraceWatcher | None:
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
        return self._begin(facts, request)

    def passes(self, spec: ModelSpec) -> bool:
        """Returns whether the next request for a model may travel in a chunk."""
        if spec.platform != ENSEMBLE:
            return True
        # The steps of a traced ensemble have traces of their own, for which they need its record.
        sampling = self.settings.sampling(spec.name)
        return sampling is None or sampling.passes_next()

    def _begin_chunk(
        self, members: Members, origins: ChunkOrigins, spec: ModelSpec
    ) -> TraceWatcher | None:
        """Begin the traces of members that sampling selects."""
        sampling = self.settings.sampling(spec.name)
        if sampling is None or spec.platform == ENSEMBLE:
            return None
        traced, start_ns = {}, time.monotonic_ns()
        for index in sampling.takes_of(origins.indices, is_sampled=origins.is_sampled):
            request = members.requests[index]
            facts = traced[index] = self._new_facts(request, spec, new_trace_id())
            facts.protocol, facts.sampling, facts.start_ns = origins.protocol, sampling, start_ns
            facts.began_ns, facts.received_ns = origins.began_ns[index], request.received_ns
        if not traced:
            return None
        self._exporter.begin_members(traced.values(), sampling)
        for index, facts in traced.items() if sampling.has_tensors else ():
            record_tensors(facts, "TENSOR_QUEUE_INPUT", members.inputs(index))
        return TraceWatcher(traced, self._exporter, sampling)

    def refused(
        self, request: InferRequest, spec: ModelSpec, origin: TraceOrigin, error: ServerError
    ) -> None:
        """Record the trace of a request that a front end has refused."""
        watcher = self.begin(request, spec, origin)
        if watcher is not None:
            watcher.answered(Run(0, 1, time.monotonic_ns(), error=error, is_refused=True))

    def called(
        self, request: InferRequest, spec: ModelSpec, parent: TraceContext
    ) -> TraceWatcher | None:
        """Begin the trace of a request that a model makes for a traced request."""
        span = parse_traceparent(parent.traceparent)
        if span is None:
            return None
        facts = self._new_facts(request, spec, span.trace_id)
        facts.parent_id, facts.tracestate = span.span_id, parent.tracestate
        facts.is_call = True
        return self._begin(facts, request)

    def _new_facts(self, request: InferRequest, spec: ModelSpec, trace_id: int) -> TraceFacts:
        return TraceFacts(
            trace_id=trace_id,
            number=next(self._numbers),
            model_name=spec.name,
            model_version=spec.version,
            is_ensemble=spec.platform == ENSEMBLE,
            request_id=request.fields.id,
            operation=request.operation,
            infer_id=new_span_id(),
            model_id=new_span_id(),
            start_ns=time.monotonic_ns(),
        )

    def _begin(self, facts: TraceFacts, request: InferRequest) -> TraceWatcher | None:
        if not self._exporter.begin(facts):
            return None
        if facts.tensors is not None:
            record_tensors(facts, "TENSOR_QUEUE_INPUT", request.inputs.values())
        return TraceWatcher({0: facts}, self._exporter)

    async def close(self, timeout_s: float) -> None:
        """Export the rest, if that is possible in time."""
        await self._exporter.close(timeout_s)
