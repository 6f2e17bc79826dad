# SPDX-License-Identifier: Apache-2.0
"""ModelStreamInfer: any number of requests and responses on one call.

Responses of coupled models are sent in the order of their requests, those of decoupled models at
once. If a client reads slowly, decoupled models are paused and its further requests are not read,
until flow control stops the client from sending more. Small requests of sequences travel as
columns.
"""

from __future__ import annotations

import collections
import functools
import time
from typing import TYPE_CHECKING, Any

from pytriton.base.columns import Column
from pytriton.base.errors import InternalError, ServerError, UnavailableError
from pytriton.base.messages import RequestPath
from pytriton.protocol.grpc.messages import PREFIX_BYTES
from pytriton.protocol.http2 import Http2ErrorCode
from pytriton.protocol.kserve_pb import parse_message
from pytriton.protocol.kserve_pb_response import (
    encode_empty_final,
    encode_infer_response,
    encode_stream_burst,
    encode_stream_failure,
    encode_stream_refusal,
    encode_stream_response,
)
from pytriton.protocol.pb_columns import PbStreamedResponsePattern
from pytriton.serving.server.api.background import MEDIUM_BYTES
from pytriton.serving.server.api.turns import REQUEST_UNITS
from pytriton.serving.server.grpc.call import IDENTITY, GrpcCall, frame_message, gather
from pytriton.serving.server.grpc.call_state import (
    ANSWERS,
    CLIENT,
    HALF_CLOSED,
    OPEN,
    REQUESTS,
    WORK,
)
from pytriton.serving.server.grpc.columns import ColumnTable, PbColumns
from pytriton.serving.server.grpc.infer import SMALL_BYTES, has_typed_tensors, origin_of
from pytriton.serving.server.shared_memory.region_request import RegionRequest

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from pytriton.base.dtypes import Buffer
    from pytriton.base.messages import InferRequest, InferResponse, ResponseBurst, TraceOrigin
    from pytriton.base.model_spec import ModelSpec
    from pytriton.protocol.grpc import CallHead, GrpcError, MessageAssembler
    from pytriton.protocol.kserve_pb import BuiltRequest, ParsedMessage
    from pytriton.runtime.executor.inference import Inference
    from pytriton.serving.engine.client import EngineClient
    from pytriton.serving.engine.served_model import ServedModel
    from pytriton.serving.server.api.gatherer import GatheredChunk, Gatherer, Iterations
    from pytriton.serving.server.grpc.connection import GrpcConnection
    from pytriton.serving.server.grpc.infer import InferService

# With this many requests in flight, or this much in responses that wait for earlier ones, further
# requests are not read, so that the window of the stream closes. The number is far above the
# largest batches.
MAX_IN_FLIGHT = 2048
MAX_ANSWER_BYTES = 64 << 20
# If the client leaves this much unread, its call is reset. Only responses of coupled models can
# reach it: their requests were executing when the client became slow.
MAX_UNREAD_BYTES = 2 << 30
_STRICT_ERRORS = ("triton_grpc_error", "true")


class StreamInferCall(GrpcCall):
    """One call of ModelStreamInfer."""

    __slots__ = (
        "_answer_bytes",
        "_in_flight",
        "_is_strict",
        "_ordered",
        "_waits_since_ns",
        "columns",
        "service",
    )

    def __init__(
        self,
        service: InferService,
        columns: StreamColumnTable,
        connection: GrpcConnection,
        stream_id: int,
        head: CallHead,
    ) -> None:
        super().__init__(connection, stream_id, head)
        self.service = service
        self.encoding = service.encoding(head)
        self.columns = columns if service.is_plain(head) else None
        self._waits_since_ns = time.monotonic_ns() if service.is_traced else 0
        self._is_strict = _STRICT_ERRORS in head.metadata
        self._answer_bytes = 0  # of responses that wait for earlier ones
        self._in_flight: dict[StreamedRequest, None] = {}  # an ordered set
        # The requests to coupled models, in the order in which their responses have to be sent.
        self._ordered: collections.deque[StreamedRequest] = collections.deque()

    # Receiving requests

    def make_assembler(self) -> MessageAssembler:
        return self.service.assembler(self.head, self.connection, is_stream=True)

    def on_message(self, message: Buffer) -> None:
        """Pass a request to the engine, later if it is one of many that take some time."""
        work = self.connection.work
        if len(message) > MEDIUM_BYTES:
            message = work.memory.hold_medium(message)
            if not work.loop_budget.is_free():
                work.run_in_turn(self, self._begin, message)
                return
        self._begin(message)

    def _begin(self, message: Buffer) -> None:
        """Pass a request to the engine; an error in the request ends only that request."""
        columns, began_ns = self.columns, self._waits_since_ns
        if began_ns:  # it waits for the next request from now on
            self._waits_since_ns = time.monotonic_ns()
        if columns is not None and columns.take(self, message):
            return
        self._spend()
        parsed, raw = self.service.parse(message)
        streamed = StreamedRequest(self, parsed, began_ns)
        self._in_flight[streamed] = None
        if len(self._in_flight) >= MAX_IN_FLIGHT:
            self.waits |= REQUESTS
        try:
            model = self._find_model(parsed)
            streamed.is_decoupled = model.spec.decoupled
            if not streamed.is_decoupled:
                self._ordered.append(streamed)
            work = (parsed, raw, model.spec, self.head)
            if model.spec.sequence is not None and columns is not None:
                columns.submit()  # requests of its sequence may be among those that came before
            if len(message) > SMALL_BYTES and has_typed_tensors(parsed):
                then = functools.partial(self._start, streamed, model.spec)
                self.connection.work.run_in_thread(self, then, self.service.try_build, *work)
            else:
                built = self.service.build(*work)
                built.request.path = _path(model, has_columns=columns is not None)
                is_sequence = model.spec.sequence is not None
                is_plain = not (built.class_counts or built.request.uses_regions)
                if is_sequence and columns is not None and is_plain:
                    columns.learn(model, built.request, message, raw)
                self._start(streamed, model.spec, built)
        except ServerError as error:
            if streamed.is_decoupled is None:  # errors about unknown models keep the order, too
                self._ordered.append(streamed)
            self._refuse_unread(streamed, error)

    def add_member(self, message: bytes, request_id: bytes, gatherer: Gatherer) -> StreamedMember:
        """Add a request to a coupled model that travels as a column."""
        member = StreamedMember(self, message, request_id, gatherer)
        self._in_flight[member] = None
        if len(self._in_flight) >= MAX_IN_FLIGHT:
            self.waits |= REQUESTS
        self._ordered.append(member)
        return member

    def _start(
        self, streamed: StreamedRequest, spec: ModelSpec, built: BuiltRequest | ServerError
    ) -> None:
        if isinstance(built, ServerError):
            self._refuse_unread(streamed, built)
            return
        try:
            streamed.start(built, spec, is_paused=bool(self.waits & CLIENT))
        except ServerError as error:  # its tensors are in shared memory that cannot be used
            self._refuse_unread(streamed, error)

    def _refuse_unread(self, streamed: StreamedRequest, error: ServerError) -> None:
        """Refuse a request that the engine did not get."""
        self.service.note_refusal(streamed.parsed, error)
        self.refuse_request(streamed, error)

    def wait_until_submitted(self, request: RegionRequest) -> None:
        """Process no further message while inputs of a request are read from shared memory."""
        if request.is_reading:
            self.waits |= WORK
            request.on_submitted = self._on_submitted

    def _on_submitted(self) -> None:
        self.waits &= ~WORK
        self.resume_input()

    def _find_model(self, parsed: ParsedMessage) -> ServedModel:
        engine, guard = self.service.engine, self.service.guard
        if guard is not None:
            guard.check_streamed(self.connection, self.head, parsed.model_name)
        if engine.is_exiting:
            raise UnavailableError(
                "GRPC server is shutting down and has stopped accepting new requests."
            )
        return engine.lookup(parsed.model_name, parsed.model_version)

    def on_unreadable(self, error: GrpcError) -> None:
        self.service.note_unreadable(error)

    def on_half_close(self) -> None:
        """End the call once all requests are answered."""
        if self.state is OPEN:  # a request before may have ended it
            self.state = HALF_CLOSED
            self._finish_if_done()

    def on_abandoned(self) -> None:
        in_flight, self._in_flight = self._in_flight, {}
        self._ordered.clear()
        self._answer_bytes = 0
        for streamed in in_flight:
            streamed.cancel()

    # Sending responses

    def is_waiting_for(self, streamed: StreamedRequest) -> bool:
        """Returns whether responses to a request still have to be sent."""
        return streamed in self._in_flight

    def deliver(
        self, streamed: StreamedRequest, parts: list[Buffer] | None, *, final: bool
    ) -> None:
        """Send a response, of a coupled model after those to earlier requests; None: no message."""
        if streamed.is_decoupled:
            if parts is not None:
                self._send(parts)
            if final:
                self._end_request(streamed)
            return
        # Coupled models may answer out of order; a client of a stream expects the order of
        # requests.
        streamed.answer = parts
        turns = self._ordered
        if turns[0] is not streamed:
            self._count_waiting_response(parts)
            return
        while turns and (answer := turns[0].answer) is not None:
            ended = turns.popleft()
            if ended is not streamed:
                self._answer_bytes -= sum(map(len, answer))
            self._send(answer)
            self._end_request(ended)

    def deliver_burst(self, messages: bytes) -> None:
        """Send responses of a decoupled model, each with its prefix."""
        self._pause_unless(is_ready=self.send_framed([messages]))

    def deliver_framed(self, members: Sequence[StreamedMember], messages: Sequence[bytes]) -> None:
        """Send responses of coupled models, each with its prefix, in one buffer if it is turn."""
        turns, in_flight = self._ordered, self._in_flight
        ready: list[Buffer] = []
        for member, message in zip(members, messages, strict=True):
            if member not in in_flight:
                continue
            # `member` may be behind requests of other models, which do not travel as columns.
            if turns[0] is not member:  # an earlier request has no response yet
                member.answer = [message[PREFIX_BYTES:]]
                self._count_waiting_response(member.answer)
                continue
            turns.popleft()
            del in_flight[member]
            ready.append(message)
            while turns and (answer := turns[0].answer) is not None:
                self._answer_bytes -= sum(map(len, answer))
                ready += gather(frame_message(answer))
                in_flight.pop(turns.popleft(), None)
        if ready:
            self._pause_unless(is_ready=self.send_framed(gather(ready)))
            if self.waits:
                self._resume_input_if_possible()
            self._finish_if_done()

    def _count_waiting_response(self, answer: list[Buffer] | None) -> None:
        """Count a response that waits for those to earlier requests."""
        self._answer_bytes += sum(map(len, answer or ()))
        if self._answer_bytes >= MAX_ANSWER_BYTES:
            self.waits |= ANSWERS
        if self._answer_bytes >= MAX_UNREAD_BYTES:
            self.drop(Http2ErrorCode.ENHANCE_YOUR_CALM)

    def refuse_request(self, streamed: StreamedRequest, error: ServerError) -> None:
        """Send the error of a request that was not passed to a model."""
        parts = encode_stream_refusal(_text(error), streamed.parsed.id)
        self.deliver(streamed, parts, final=True)

    def fail_request(
        self, streamed: StreamedRequest, error: ServerError, *, final: bool = True
    ) -> None:
        """Send an error that occurred while a request was executed."""
        if self._is_strict:
            self.on_abandoned()
            self.fail(error)
            return
        parsed = streamed.parsed
        parts = encode_stream_failure(
            _text(error), parsed.id, parsed.model_name, parsed.model_version, is_final=final
        )
        self.deliver(streamed, parts, final=final)

    def _end_request(self, streamed: StreamedRequest) -> None:
        self._in_flight.pop(streamed, None)
        if self.waits:
            self._resume_input_if_possible()
        self._finish_if_done()

    def _finish_if_done(self) -> None:
        if self.state is HALF_CLOSED and not self._in_flight:
            self.finish()

    # Flow control

    def _send(self, parts: list[Buffer]) -> None:
        self._pause_unless(is_ready=self.send(parts))

    def _pause_unless(self, *, is_ready: bool) -> None:
        if is_ready:
            return
        # Models that are coupled have one response each and cannot be paused; their answers are
        # queued.
        if not self.waits & CLIENT:
            self.waits |= CLIENT
            for streamed in self._in_flight:
                streamed.pause()
        elif self.connection.http2.queued_bytes(self.stream_id) >= MAX_UNREAD_BYTES:
            self.drop(Http2ErrorCode.ENHANCE_YOUR_CALM)

    def on_writable(self) -> None:
        """Resume the models that were paused because the client read slowly."""
        self.waits &= ~CLIENT
        for streamed in list(self._in_flight):
            streamed.resume()
        self.resume_input()

    def _spend(self) -> None:
        """Count a request that is no column; the next one may have to wait for others."""
        turn = self.connection.turn
        turn.spend(REQUEST_UNITS)
        if turn.is_over:
            self.wait_for_turn()

    def _resume_input_if_possible(self) -> None:
        """Process held requests if one that has ended leaves room for them."""
        if len(self._in_flight) < MAX_IN_FLIGHT:
            self.waits &= ~REQUESTS
        if self._answer_bytes < MAX_ANSWER_BYTES:
            self.waits &= ~ANSWERS
        self.resume_input()


def _text(error: ServerError) -> str:
    """The text of an error; a message of a stream without one would read as an empty answer."""
    return error.message or "the request was cancelled"


def _path(model: ServedModel, *, has_columns: bool) -> RequestPath:
    """Returns how a request comes to its model, unless it is one of a sequence."""
    if not model.takes_columns:
        return RequestPath.MODEL
    return RequestPath.FORM if has_columns else RequestPath.HEADERS


class StreamedRequest:
    """One request of a stream; the engine's sink for its responses."""

    __slots__ = (
        "_began_ns",
        "_call",
        "_class_counts",
        "_inference",
        "_spec",
        "_wants_empty_final",
        "answer",
        "is_decoupled",
        "parsed",
    )

    def __init__(self, call: StreamInferCall, parsed: ParsedMessage, began_ns: int = 0) -> None:
        self.parsed = parsed
        self.is_decoupled: bool | None = None  # None until the model is known
        self.answer: list[Buffer] | None = None  # a coupled model's response that is not yet sent
        self._call = call
        self._began_ns = began_ns  # when its stream began to wait for it, if that is known
        # None until the engine has the request, or its inputs are being read.
        self._inference: Inference | RegionRequest | None = None
        self._class_counts: dict[str, int] | None = None
        self._wants_empty_final = False

    def start(self, built: BuiltRequest, spec: ModelSpec, *, is_paused: bool) -> None:
        service, head = self._call.service, self._call.head
        self._spec = spec
        self._class_counts = built.class_counts
        self._wants_empty_final = built.wants_empty_final
        inference = service.submit(built, spec, head, self)
        self._inference = inference
        if built.request.uses_regions and isinstance(inference, RegionRequest):
            self._call.wait_until_submitted(inference)
        if is_paused:
            self.pause()

    def origin(self) -> TraceOrigin:
        """Returns where the request came from; see `Members`."""
        return origin_of(self._call.head, self._began_ns)

    @property
    def watched(self) -> Any:
        """What the port notes about the stream; see `Members`."""
        return self._call.watched

    def cancel(self) -> None:
        if self._inference is not None:
            self._inference.cancel()

    def pause(self) -> None:
        """Pause the responses of a decoupled model."""
        if self._inference is not None and self.is_decoupled:
            self._inference.pause()

    def resume(self) -> None:
        """Resume the responses of a decoupled model."""
        if self._inference is not None and self.is_decoupled:
            self._inference.resume()

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        call, spec = self._call, self._spec
        if not call.is_waiting_for(self):
            return
        parts = None
        if response is not None:
            encoded = encode_infer_response(
                response,
                self._class_counts,
                is_batched=spec.max_batch_size > 0,
                labels=spec.labels,
            )
            parts = encode_stream_response(encoded, is_final=final)
        elif not self.is_decoupled:
            call.fail_request(self, InternalError("expected a single response, got 0"))
            return
        elif self._wants_empty_final:
            parsed = self.parsed
            parts = encode_empty_final(parsed.model_name, parsed.model_version, parsed.id)
        call.deliver(self, parts, final=final)

    def on_burst(self, burst: ResponseBurst) -> None:
        """Send many responses of a decoupled model."""
        call = self._call
        if self._class_counts or call.encoding != IDENTITY:
            for response in burst.responses():
                self.on_response(response, final=False)
        elif call.is_waiting_for(self):
            call.deliver_burst(encode_stream_burst(burst))

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        if self._call.is_waiting_for(self):
            self._call.fail_request(self, error, final=final)

    def on_refused(self, error: ServerError) -> None:
        """Send the error of a request that the engine refused."""
        if self._call.is_waiting_for(self):
            self._call.refuse_request(self, error)


class StreamedMember(StreamedRequest):
    """A request that travels as a column."""

    __slots__ = ("_gatherer", "_message", "call", "chunk", "id", "index")

    def __init__(
        self, call: StreamInferCall, message: bytes, request_id: bytes, gatherer: Gatherer
    ) -> None:
        # Only what such a request needs while nothing goes wrong.
        self.call = call
        self.id = request_id
        self.is_decoupled = False
        self.answer = None
        self.chunk: GatheredChunk | None = None
        self.index: int
        self._inference = None
        self._gatherer = gatherer
        self._message = message

    def become_ordinary(self, spec: ModelSpec) -> None:
        """Get ready for an answer that is not in columns."""
        self.parsed, _ = parse_message(self._message)
        self._call = self.call
        self._spec = spec
        self._class_counts = None
        self._wants_empty_final = False

    @property
    def watched(self) -> Any:
        """What the port notes about the stream; see `Members`."""
        return self.call.watched

    def cancel(self) -> None:
        if self.chunk is not None:
            self._gatherer.cancel(self.chunk, self.index)


class StreamColumns(PbColumns[PbStreamedResponsePattern]):
    """Gathers and answers streamed requests with one set of inputs for a model."""

    def __init__(self, iterations: Iterations, spec: ModelSpec, request: InferRequest) -> None:
        super().__init__(iterations, spec, request, PbStreamedResponsePattern)

    def on_rows(
        self, chunk: Any, first: int, end: int, outputs: Sequence[Column], row: int
    ) -> None:
        """Answer requests whose outputs are in the columns of a batch."""
        if any(column.offsets for column in outputs):
            self.respond_each(chunk, first, end, outputs, row)
            return
        members: list[StreamedMember] = chunk.callers[first:end]
        pattern = self.response_pattern(outputs)
        ids = [member.id for member in members]
        messages = list(map(b"".join, pattern.encode(outputs, row, ids)))
        at = 0
        # The requests of one call are mostly next to each other: one write for all of them.
        while at < len(members):
            call, start = members[at].call, at
            while at < len(members) and members[at].call is call:
                at += 1
            call.deliver_framed(members[start:at], messages[start:at])
        chunk.end(end - first)

    def on_outcome(
        self,
        chunk: Any,
        index: int,
        response: InferResponse | None,
        error: ServerError | None,
        *,
        is_refused: bool,
    ) -> None:
        """Answer one request like one that is not in a chunk."""
        member: StreamedMember = chunk.callers[index]
        member.become_ordinary(self.spec)
        if error is None:
            assert response is not None, "a member has a response or an error"
            response.id = member.parsed.id
            member.on_response(response, final=True)
        elif is_refused:
            member.on_refused(error)
        else:
            member.on_error(error)
        chunk.end(1)


class StreamColumnTable(ColumnTable[StreamColumns]):
    """The layouts of streamed requests of sequences that repeat."""

    def __init__(self, engine: EngineClient, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(engine, loop, StreamColumns, is_framed=False)

    def take(self, call: StreamInferCall, message: Buffer) -> bool:
        """Add a request to a chunk; returns False if it has to take the ordinary way."""
        if not isinstance(message, bytes):
            return False
        taken = self.find(message, call.head, call.connection)
        if taken is None:
            return False
        model, columns, inputs, fields, is_alone = taken
        if is_alone:
            self.leave_alone()
            return False
        gatherer = columns.gatherer
        member = call.add_member(message, fields.id.encode(), gatherer)
        member.chunk, member.index = gatherer.add(model, inputs, member, fields)
        return True
