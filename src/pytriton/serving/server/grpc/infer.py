# SPDX-License-Identifier: Apache-2.0
"""ModelInfer over gRPC: passes requests to the engine, and its responses to the client."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from pytriton.base.errors import (
    InternalError,
    InvalidArgumentError,
    ServerError,
    UnavailableError,
    UnsupportedError,
)
from pytriton.base.messages import RequestPath, TraceOrigin
from pytriton.protocol.grpc import (
    CompressionLevel,
    GrpcError,
    GrpcStatus,
    MessageAssembler,
    encoding_for_level,
)
from pytriton.protocol.kserve_pb import build_request, parse_message, read_start
from pytriton.protocol.kserve_pb_response import encode_infer_response
from pytriton.serving.server.api.background import MEDIUM_BYTES
from pytriton.serving.server.api.header_forwarding import HeaderForwarding
from pytriton.serving.server.api.refusals import (
    INFERENCE,
    TooLargeError,
    note_forbidden,
    note_unread,
)
from pytriton.serving.server.grpc.call import IDENTITY, UnaryCall
from pytriton.serving.server.grpc.call_state import ENDED
from pytriton.serving.server.grpc.columns import CallTable
from pytriton.serving.server.shared_memory.known_requests import MAX_BYTES, KnownRequests

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping, Sequence

    from pytriton.base.dtypes import Buffer
    from pytriton.base.messages import InferRequest, InferResponse, ResponseSink
    from pytriton.base.model_spec import ModelSpec
    from pytriton.protocol.grpc import CallHead
    from pytriton.protocol.kserve_pb import BuiltRequest, ParsedMessage
    from pytriton.runtime.executor.inference import Inference
    from pytriton.serving.engine.client import EngineClient
    from pytriton.serving.engine.served_model import ServedModel
    from pytriton.serving.server.access.decisions import Denial
    from pytriton.serving.server.grpc.connection import GrpcConnection
    from pytriton.serving.server.grpc.guard import CallGuard
    from pytriton.serving.server.options.server_options import ServerOptions
    from pytriton.serving.server.shared_memory.known_requests import KnownRequest
    from pytriton.serving.server.shared_memory.region_request import RegionRequest
    from pytriton.serving.server.shared_memory.shared_memory import ClientSharedMemory

_monotonic_ns = time.monotonic_ns
_LARGE_MESSAGE_BYTES = 64 << 10
# The kinds of refusals of messages, by status.
_UNREADABLE: Mapping[GrpcStatus, type[ServerError]] = {
    GrpcStatus.RESOURCE_EXHAUSTED: TooLargeError,
    GrpcStatus.UNAVAILABLE: UnavailableError,
}
# Typed tensors of a message up to this size are parsed at once, in a few milliseconds.
SMALL_BYTES = 256 << 10


class CallDeniedError(GrpcError):
    """A call that may not do what it asks for."""

    def __init__(self, denial: Denial, model: str = "") -> None:
        super().__init__(GrpcStatus(denial.grpc_status), denial.message)
        self.model = model


class InferService:
    """Shared state of all inference calls."""

    def __init__(
        self,
        engine: EngineClient,
        options: ServerOptions,
        loop: asyncio.AbstractEventLoop,
        shared_memory: ClientSharedMemory | None = None,
    ) -> None:
        self.engine = engine
        self._shared_memory = shared_memory
        self.compression = CompressionLevel(options.grpc_response_compression)
        pattern = options.grpc_header_forward_pattern
        self._forwarding = HeaderForwarding(pattern) if pattern else None
        # Some requests are traced, or may be later.
        self.is_traced = engine.observers.reads_origins
        self.guard: CallGuard | None = None  # set if there is a policy
        # For requests of which nothing but the message matters.
        is_plain = not pattern and self.compression is CompressionLevel.NONE
        self.columns = CallTable(engine, loop, self.begin_alone) if is_plain else None
        # Of these, the ones with all tensors in GPU memory that repeat, by their messages.
        self.known: KnownRequests[bytes, None, list[Buffer]] | None = None
        if is_plain and shared_memory is not None:
            self.known = KnownRequests(shared_memory)

    def begin_alone(
        self,
        connection: GrpcConnection,
        stream_id: int,
        head: CallHead,
        model: ServedModel,
        request: InferRequest,
    ) -> ModelInferCall:
        """Serve a request whose message was read already."""
        call = ModelInferCall(self, connection, stream_id, head)
        try:
            call.begin_read(model, request)
        except Exception as error:  # noqa: BLE001  it is sent to the client
            connection.fail_call(call, error)
        return call

    def is_plain(self, head: CallHead) -> bool:
        """Returns whether nothing but the messages of a call with this head matters."""
        if self.columns is None:
            return False
        return not self.is_traced or all(name != "traceparent" for name, _ in head.metadata)

    def encoding(self, head: CallHead) -> str:
        return encoding_for_level(self.compression, head.accepted_encodings)

    def assembler(
        self, head: CallHead, connection: GrpcConnection, *, is_stream: bool = False
    ) -> MessageAssembler:
        """Returns the assembler of a call's requests; large ones go to their model's memory."""
        allocate = self._allocate_buffer
        if self.guard is not None:
            check = self.guard.may_use if is_stream else self.guard.check_use
            allocate = partial(allocate, may_use=partial(check, connection, head))
        return MessageAssembler(
            connection.max_message_bytes, head.encoding, allocate, connection.work.memory.lease
        )

    def _allocate_buffer(
        self, size: int, start: memoryview, may_use: Callable[[str], bool] | None = None
    ) -> memoryview | bytes | None:
        """Allocate memory of the model that a large message is for; its first tensor is aligned.

        Instances read the request from this memory; from any other, it would have to be copied.
        What its sender may not use is refused by the start of the message, and the rest not kept.
        """
        if size < _LARGE_MESSAGE_BYTES or (found := read_start(start)) is None:
            return None
        if may_use is not None and not may_use(found.model_name):
            return bytes(start[: found.raw_at])
        model = self.engine.find(found.model_name, found.model_version)
        return None if model is None else model.body_memory(size, found.raw_offset)

    def parse(self, message: Buffer) -> tuple[ParsedMessage, Sequence[Buffer]]:
        """Parse a message; one that cannot be read is noted."""
        try:
            return parse_message(message)
        except ServerError as error:
            self.engine.report_refusal("", "", "", error)
            raise

    def build(
        self, parsed: ParsedMessage, raw: Sequence[Buffer], spec: ModelSpec, head: CallHead
    ) -> BuiltRequest:
        """Build the engine's request from a message and the metadata of its call."""
        built = build_request(parsed, raw, spec)
        built.request.received_ns = _monotonic_ns()
        if self._forwarding is not None:
            fields = [
                (name.encode(), value.encode("latin-1") if isinstance(value, str) else value)
                for name, value in head.metadata
            ]
            self._forwarding.apply(fields, built.request)
        return built

    def try_build(self, *work: Any) -> BuiltRequest | ServerError:
        """Build a large request in a thread; returns the error if the request is malformed."""
        try:
            return self.build(*work)
        except ServerError as error:
            return error

    def note_refusal(self, parsed: ParsedMessage, error: ServerError) -> None:
        """Note that the engine does not get a request; those that it gets, it notes itself."""
        name, version = parsed.model_name, parsed.model_version
        self.engine.report_refusal(name, version, parsed.id, error)

    def note_unreadable(self, error: GrpcError) -> None:
        """Note that a message was too large, or damaged; its model is not known."""
        if isinstance(error, CallDeniedError):
            note_forbidden(self.engine, error.message, error.model)
            return
        kind = _UNREADABLE.get(error.status, InvalidArgumentError)
        note_unread(self.engine, kind, error.message)

    def learn_regions(self, model: ServedModel, built: BuiltRequest, message: Buffer) -> None:
        """Learn from a request with tensors in regions that is not submitted yet."""
        known = self.known
        if known is None or len(message) > MAX_BYTES or any((built.class_counts or {}).values()):
            return
        if known.may_repeat(model, built.request):
            known.learn(bytes(message), model, built.request, built.places or {}, None)

    def submit(
        self,
        built: BuiltRequest,
        spec: ModelSpec,
        head: CallHead,
        sink: ResponseSink,
    ) -> Inference | RegionRequest:
        """Pass a request to the engine.

        Raises:
            ServerError: Its tensors are in shared memory that cannot be used.
        """
        request = built.request
        if request.fields.principal != head.principal:
            request.fields = request.fields.with_principal(head.principal)
        if spec.namespace:
            request.model_name = spec.identifier  # the name alone may mean several models
        if request.uses_regions and self._shared_memory is not None:
            places, infer = built.places or {}, self.engine.infer
            return self._shared_memory.begin(request, places, sink, infer)
        return self.engine.infer(request, sink)

    def submit_known(
        self,
        request: InferRequest,
        model: ServedModel,
        head: CallHead,
        sink: ResponseSink,
    ) -> Inference:
        """Pass a request to the engine that was checked for the model."""
        if request.fields.principal != head.principal:
            request.fields = request.fields.with_principal(head.principal)
        request.received_ns = _monotonic_ns()
        return self.engine.infer(request, sink, model)


def origin_of(head: CallHead, began_ns: int) -> TraceOrigin:
    """Returns where a request of a call came from, for those who observe it."""
    texts = {name: text for name, text in head.metadata if isinstance(text, str)}
    traceparent, tracestate = texts.get("traceparent", ""), texts.get("tracestate", "")
    return TraceOrigin("GRPC", traceparent, tracestate, began_ns)


def has_typed_tensors(parsed: ParsedMessage) -> bool:
    """Returns whether a message has typed tensors; those of a large one are parsed in a thread."""
    return any(item.contents is not None for item in parsed.inputs)


class ModelInferCall(UnaryCall):
    """A call of ModelInfer: one request, one response. It is the engine's sink for the response."""

    __slots__ = (
        "_began_ns",
        "_class_counts",
        "_inference",
        "_is_new",
        "_known",
        "_service",
        "_spec",
    )

    def __init__(
        self, service: InferService, connection: GrpcConnection, stream_id: int, head: CallHead
    ) -> None:
        super().__init__(connection, stream_id, head)
        self._service = service
        # None until the engine has the request, or its inputs are being read.
        self._inference: Inference | RegionRequest | None = None
        self._class_counts: dict[str, int] | None = None
        self._known: KnownRequest[None, list[Buffer]] | None = None
        self._began_ns = _monotonic_ns() if service.is_traced else 0
        # Whether it is the first call with this head: the connection asks the columns for others.
        self._is_new = head.columns is None
        if service.compression is not CompressionLevel.NONE:
            self.encoding = service.encoding(head)
        elif head.columns is None and head.encoding == IDENTITY and service.is_plain(head):
            head.columns = service.columns

    def make_assembler(self) -> MessageAssembler:
        return self._service.assembler(self.head, self.connection)

    def on_data(self, data: Buffer, *, end_stream: bool) -> None:
        """Process received data; a whole request may travel as a column."""
        columns = self.head.columns
        if columns is not None and end_stream and self._assembler is None:
            taken = columns.take(self.connection, self.stream_id, self.head, data)
            if taken is not None:
                self.state = ENDED
                self.connection.replace_call(taken)
                return
        super().on_data(data, end_stream=end_stream)

    def on_whole(self, body: bytes) -> None:
        """Process a request that does not travel as a column, unless nobody has tried that yet."""
        if self._is_new:
            self.on_data(body, end_stream=True)
        else:
            super().on_data(body, end_stream=True)

    def on_request(self, message: Buffer) -> None:
        """Pass the request to the engine, later if it is one of many that take some time."""
        work = self.connection.work
        if len(message) > MEDIUM_BYTES:
            message = work.memory.hold_medium(message)
            if not work.loop_budget.is_free():
                work.run_in_turn(self, self._begin, message)
                return
        self._begin(message)

    def _begin(self, message: Buffer) -> None:
        known = self._service.known
        if known and len(message) <= MAX_BYTES and self._begin_known(known.find(bytes(message))):
            return
        parsed, raw = self._service.parse(message)
        try:
            self._begin_parsed(message, parsed, raw)
        except ServerError as error:
            self._service.note_refusal(parsed, error)
            raise

    def _begin_known(self, known: KnownRequest[None, list[Buffer]] | None) -> bool:
        """Pass a request to the engine if it is known, with all tensors in GPU memory."""
        if known is None or self.head.columns is None:
            return False
        service = self._service
        request = known.request()
        model = service.engine.find(request.model_name, request.model_version)
        if model is None or model.spec is not known.spec:
            return False
        if service.guard is not None:
            service.guard.check(self.connection, self.head, INFERENCE, request.model_name)
        self._spec, self._known = known.spec, known
        self._inference = service.submit_known(request, model, self.head, self)
        return True

    def _begin_parsed(self, message: Buffer, parsed: ParsedMessage, raw: Sequence[Buffer]) -> None:
        service = self._service
        if service.guard is not None:
            service.guard.check(self.connection, self.head, INFERENCE, parsed.model_name)
        model = service.engine.lookup(parsed.model_name, parsed.model_version)
        if model.spec.decoupled:
            refusal = "ModelInfer RPC doesn't support models with decoupled transaction policy"
            if model.spec.is_annotated:
                refusal += f": model '{model.spec.name}' streams its answers, use ModelStreamInfer"
            raise UnsupportedError(refusal)
        self._spec = spec = model.spec
        if len(message) > SMALL_BYTES and has_typed_tensors(parsed):
            self.connection.work.run_in_thread(
                self, partial(self._submit, parsed), service.try_build, parsed, raw, spec, self.head
            )
        else:
            built = service.build(parsed, raw, spec, self.head)
            columns, request = service.columns, built.request
            request.path = RequestPath.FORM
            if columns is not None:
                if spec.sequence is not None:
                    # Requests of its sequence may be among those that were gathered before.
                    columns.submit()
                # What has to be done with outputs other than sending them is no column.
                if not built.class_counts and not request.uses_regions:
                    columns.learn(model, request, message, raw)
            if self.head.columns is None:
                request.path = RequestPath.HEADERS
            elif request.uses_regions:
                service.learn_regions(model, built, message)
            self._class_counts = built.class_counts
            self._inference = service.submit(built, spec, self.head, self)

    def begin_read(self, model: ServedModel, request: InferRequest) -> None:
        """Pass a request to the engine that is alone and fits its model."""
        self._spec = spec = model.spec
        request.received_ns = _monotonic_ns()
        if spec.namespace:
            request.model_name = spec.identifier
        self._inference = self._service.engine.infer(request, self, model)

    def _submit(self, parsed: ParsedMessage, built: BuiltRequest | ServerError) -> None:
        if isinstance(built, ServerError):
            self._service.note_refusal(parsed, built)
            raise built
        self._class_counts = built.class_counts
        service = self._service
        self._inference = service.submit(built, self._spec, self.head, self)

    def origin(self) -> TraceOrigin:
        """Returns where the request came from; see `Members`."""
        return origin_of(self.head, self._began_ns)

    def on_unreadable(self, error: GrpcError) -> None:
        self._service.note_unreadable(error)

    def on_abandoned(self) -> None:
        if self._inference is not None:
            self._inference.cancel()

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        """Send the only response of a coupled model."""
        if self.state is ENDED:
            return
        if response is None:
            self.fail(InternalError("expected a single response, got 0"))
            return
        if self._known is not None:
            try:
                known_parts = self._known.answer_to(response, encode_infer_response)
            except InternalError as error:
                self.fail(error)
                return
            if known_parts is not None:
                self.respond(known_parts)
                return
        parts = encode_infer_response(
            response,
            self._class_counts,
            is_batched=self._spec.max_batch_size > 0,
            labels=self._spec.labels,
        )
        self.respond(parts)

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        self.fail(error)

    def on_refused(self, error: ServerError) -> None:
        self.fail(error)
