# SPDX-License-Identifier: Apache-2.0
"""Decides which requests are traced, and passes what is recorded of them to the exporter."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import re
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from pytriton.base.errors import InvalidArgumentError, UnavailableError
from pytriton.base.messages import TraceOrigin
from pytriton.serving.engine.observers import Observer, Run
from pytriton.serving.server.tracing.request_trace import (
    TraceFacts,
    TraceWatcher,
    cost_of,
    new_span_id,
    new_trace_id,
    receiving,
    record_tensors,
)
from pytriton.serving.server.tracing.settings import ENSEMBLE, LEVEL
from pytriton.serving.server.tracing.trace_files import FileExporter, TraceFileWriter
from pytriton.utils.trace_config import INSTALL_HINT, OFF

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable

    from opentelemetry.context import Context
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.trace import Span, Tracer

    from pytriton.base.errors import ServerError
    from pytriton.base.messages import ChunkOrigins, InferRequest, TraceContext
    from pytriton.base.model_spec import ModelSpec
    from pytriton.serving.engine.observers import Members
    from pytriton.serving.server.tracing.request_trace import TracedExecution, TraceExporter
    from pytriton.serving.server.tracing.settings import TraceSampling, TraceSettings
    from pytriton.utils.trace_config import TraceConfig


SERVER_SCOPE = "triton-server"
BACKEND_SCOPE = "pbe"
EMBEDDINGS = "embeddings"  # the operation without an answer in words
Attribute = str | int | float | list[str]
_SERVICE_NAME = "triton-inference-server"  # Triton's default


class SpanRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A span that has ended."""

    name: str
    scope: str
    trace_id: int
    span_id: int
    parent_id: int  # 0: none
    is_parent_remote: bool
    tracestate: str
    start_ns: int  # this and all other times are since the epoch
    end_ns: int
    events: list[tuple[str, int]]
    attributes: dict[str, Attribute]
    error: str | None


def make_spans(facts: TraceFacts, offset_ns: int) -> list[SpanRecord]:
    """Make the spans of a request, outer ones first.

    The offset is the difference between the time since the epoch and the monotonic clock.
    """
    spans = _Spans(facts, offset_ns)
    if not facts.is_call:
        received = receiving(facts)
        times = (received[0][1] if received else facts.start_ns, facts.end_ns)
        events = received + facts.events
        attributes = _gen_ai(facts) if facts.operation else {}
        spans.add("InferRequest", facts.infer_id, facts.parent_id, times, events, attributes)
    _add_model(spans, facts)
    for execution in facts.executions:
        _add_execution(spans, facts, execution)
    return spans.records


def _gen_ai(facts: TraceFacts) -> dict[str, Attribute]:
    """Returns OpenTelemetry's attributes of a request to a language model."""
    attributes: dict[str, Attribute] = {
        "gen_ai.operation.name": facts.operation,
        "gen_ai.provider.name": "pytriton",
        "gen_ai.request.model": facts.model_name,
        "gen_ai.response.model": facts.model_name,
    }
    if facts.request_id:
        attributes["gen_ai.response.id"] = facts.request_id
    usage = facts.usage
    if usage is not None:
        attributes["gen_ai.usage.input_tokens"] = usage.prompt_tokens
        if facts.operation != EMBEDDINGS:
            attributes["gen_ai.usage.output_tokens"] = usage.completion_tokens
        if usage.finish_reason:
            attributes["gen_ai.response.finish_reasons"] = [usage.finish_reason]
    if facts.first_response_ns and facts.operation != EMBEDDINGS:
        first_ns = facts.first_response_ns - (facts.received_ns or facts.start_ns)
        attributes["gen_ai.server.time_to_first_token"] = first_ns / 1e9
    return attributes


class _Spans:
    """Makes the spans of one request with the values that they share."""

    def __init__(self, facts: TraceFacts, offset_ns: int) -> None:
        self.records: list[SpanRecord] = []
        self._facts = facts
        self._offset_ns = offset_ns

    def add(
        self,
        name: str,
        span_id: int,
        parent_id: int,
        times_ns: tuple[int, int],
        events: list[tuple[str, int]],
        attributes: dict[str, Attribute] | None = None,
        scope: str = SERVER_SCOPE,
    ) -> None:
        facts = self._facts
        offset_ns = self._offset_ns
        self.records.append(
            SpanRecord(
                name=name,
                scope=scope,
                trace_id=facts.trace_id,
                span_id=span_id,
                parent_id=parent_id,
                is_parent_remote=bool(parent_id) and parent_id == facts.parent_id,
                tracestate=facts.tracestate,
                start_ns=times_ns[0] + offset_ns,
                end_ns=times_ns[1] + offset_ns,
                events=[(event, at_ns + offset_ns) for event, at_ns in events],
                attributes=attributes or {},
                error=facts.error,
            )
        )


def _add_model(spans: _Spans, facts: TraceFacts) -> None:
    attributes: dict[str, Attribute] = {
        "triton.model_name": facts.model_name,
        "triton.model_version": facts.model_version,
        "triton.trace_id": facts.number,
    }
    if not facts.is_call:
        attributes["triton.trace_parent_id"] = 0
    if facts.request_id:
        attributes["triton.request_id"] = facts.request_id
    cost = cost_of(facts)
    if cost is not None:
        attributes |= {f"triton.cost.{name}": value for name, value in cost._asdict().items()}
    events = [("REQUEST_START", facts.start_ns), ("REQUEST_END", facts.answered_ns)]
    if facts.executions:
        events.insert(1, ("QUEUE_START", facts.executions[0].times_ns.queued_ns))
    parent_id = facts.parent_id if facts.is_call else facts.infer_id
    times = (facts.start_ns, facts.answered_ns)
    spans.add(facts.model_name, facts.model_id, parent_id, times, events, attributes)


def _add_execution(spans: _Spans, facts: TraceFacts, execution: TracedExecution) -> None:
    times_ns = execution.times_ns
    span = (times_ns.started_ns, times_ns.ended_ns)
    events = [
        ("COMPUTE_START", times_ns.started_ns),
        ("COMPUTE_INPUT_END", times_ns.infer_start_ns),
        ("COMPUTE_OUTPUT_START", times_ns.output_start_ns),
        ("COMPUTE_END", times_ns.ended_ns),
    ]
    spans.add("compute", execution.span_id, facts.model_id, span, events)
    if facts.backend_id:
        name = "python_backend_execute"
        spans.add(name, facts.backend_id, facts.model_id, span, [], scope=BACKEND_SCOPE)


class SpanExporter:
    """Makes spans of requests when they have ended; see `TraceExporter`."""

    has_spans = True

    def __init__(self, spans: SpanExport) -> None:
        self._spans = spans

    def begin(self, facts: TraceFacts) -> bool:
        """Nothing has to be known before the end."""
        return True

    def end(self, facts: TraceFacts) -> None:
        """Make the spans of a request."""
        self._spans.add(make_spans(facts, time.time_ns() - time.monotonic_ns()))

    def begin_members(self, members: Iterable[TraceFacts], sampling: TraceSampling) -> None:
        """Nothing has to be known before the end."""

    def expect_calls(self, facts: TraceFacts) -> None:
        """Calls have spans of their own."""

    def end_members(self, members: list[TraceFacts], sampling: TraceSampling) -> None:
        """Make the spans of requests."""
        for facts in members:
            self.end(facts)

    def retire(self, sampling: TraceSampling) -> None:
        """Spans do not wait for others of their setting."""

    async def close(self, timeout_s: float) -> None:
        """Send the remaining spans, if that is possible in time."""
        await self._spans.close(timeout_s)


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
