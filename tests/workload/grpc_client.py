# SPDX-License-Identifier: Apache-2.0
"""A gRPC client that does no I/O of its own, and is strict about what it reads.

Messages are read and written by the protobuf classes, or by templates of what these write.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from pytriton.base.protos import service_pb2 as pb
from tests.workload.calls import (
    POLITE,
    Call,
    End,
    Form,
    Kind,
    Place,
    Response,
    TensorData,
    compress,
)
from tests.workload.connection import ViolationError
from tests.workload.http2_connection import Http2ClientConnection, Stream, literal, varint

_CACHE_ENTRIES = 4096
SERVICE = "/inference.GRPCInferenceService/"
_METHODS = {
    Kind.INFER: ("ModelInfer", pb.ModelInferResponse),
    Kind.STREAM: ("ModelStreamInfer", pb.ModelStreamInferResponse),
    Kind.LIVE: ("ServerLive", pb.ServerLiveResponse),
    Kind.READY: ("ServerReady", pb.ServerReadyResponse),
    Kind.MODEL_READY: ("ModelReady", pb.ModelReadyResponse),
    Kind.INDEX: ("RepositoryIndex", pb.RepositoryIndexResponse),
    Kind.LOAD: ("RepositoryModelLoad", pb.RepositoryModelLoadResponse),
    Kind.UNLOAD: ("RepositoryModelUnload", pb.RepositoryModelUnloadResponse),
    Kind.STATISTICS: ("ModelStatistics", pb.ModelStatisticsResponse),
    Kind.REGISTER: ("SystemSharedMemoryRegister", pb.SystemSharedMemoryRegisterResponse),
    Kind.UNREGISTER: ("SystemSharedMemoryUnregister", pb.SystemSharedMemoryUnregisterResponse),
    Kind.REGIONS: ("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusResponse),
}
_REGION_REQUESTS = {
    Kind.REGISTER: pb.SystemSharedMemoryRegisterRequest,
    Kind.UNREGISTER: pb.SystemSharedMemoryUnregisterRequest,
    Kind.REGIONS: pb.SystemSharedMemoryStatusRequest,
}
_CONTENTS = {
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "BOOL": "bool_contents",
    "BYTES": "bytes_contents",
}


class GrpcWriter:
    """Writes header blocks and messages; what repeats between calls is kept.

    Args:
        authority: the value of :authority.
        access_token: sent with every call that is not an inference.
    """

    def __init__(self, authority: str = "localhost", access_token: str = "") -> None:
        self._authority = authority
        self._token = access_token
        self._blocks: dict[Kind | str, bytes] = {}
        self._templates: dict[Any, tuple[bytes, bytes]] = {}

    def block(self, call: Call) -> bytes:
        """The header block of a call; nothing in it changes the server's table."""
        key = call.text if call.kind is Kind.INVALID else call.kind
        block = self._blocks.get(key)
        if block is None:
            block = self._blocks[key] = self._write_block(call)
        if call.coding:
            block += literal("grpc-encoding", call.coding)
        if call.accepts:
            block += literal("grpc-accept-encoding", call.accepts)
        if call.deadline_s is not None:
            block += literal("grpc-timeout", f"{max(int(call.deadline_s * 1e6), 1)}u")
        return block

    def _write_block(self, call: Call) -> bytes:
        is_invalid = call.kind is Kind.INVALID
        fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", call.text if is_invalid else SERVICE + _METHODS[call.kind][0]),
            (":authority", self._authority),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        ]
        if self._token and call.kind not in (Kind.INFER, Kind.STREAM, Kind.INVALID):
            fields.append(("triton-grpc-protocol-triton-access-token", self._token))
        return b"".join(literal(name, value) for name, value in fields)

    def message(self, call: Call) -> bytes:
        """The message of a call, with its prefix."""
        kind = call.kind
        if kind in (Kind.INFER, Kind.STREAM):
            message = self._infer(call)
        elif kind is Kind.INVALID:
            message = call.payload
        elif kind is Kind.MODEL_READY:
            message = pb.ModelReadyRequest(name=call.model).SerializeToString()
        elif kind is Kind.LOAD:
            message = pb.RepositoryModelLoadRequest(model_name=call.model).SerializeToString()
        elif kind is Kind.UNLOAD:
            message = pb.RepositoryModelUnloadRequest(model_name=call.model).SerializeToString()
        elif kind in _REGION_REQUESTS:
            fields = {} if call.region is None else call.region._asdict()
            message = _REGION_REQUESTS[kind](name=call.text, **fields).SerializeToString()
        else:
            message = b""
        if call.coding:
            message = compress(message, call.coding)
        return bytes((bool(call.coding),)) + len(message).to_bytes(4, "big") + message

    def _infer(self, call: Call) -> bytes:
        """A request whose fields are in their usual order, as any library writes them."""
        if call.form is Form.TEXT:
            return _infer_request(call, typed=True).SerializeToString()
        inputs = call.inputs
        if call.places:
            inputs = tuple(each for each in inputs if each.name not in call.places)
        if call.sequence is not None or call.priority or call.timeout_us or call.places:
            before, after = _parts(call)
        else:
            shapes = [each[:3] for each in inputs]
            key = (call.model, call.kind is Kind.STREAM, *shapes)
            template = self._templates.get(key)
            if template is None:
                if len(self._templates) > _CACHE_ENTRIES:
                    self._templates.clear()
                template = self._templates[key] = _parts(call)
            before, after = template
        pieces = [before, b"\x1a\x0a", call.id.encode(), after]
        for each in inputs:
            pieces += (b"\x3a", varint(len(each.raw)), each.raw)
        return b"".join(pieces)


def _parts(call: Call) -> tuple[bytes, bytes]:
    """The fields before and after the id, without the contents of tensors."""
    before = pb.ModelInferRequest(model_name=call.model).SerializeToString()
    request = _infer_request(call, typed=False)
    request.ClearField("model_name")
    request.ClearField("id")
    return before, request.SerializeToString()


def _infer_request(call: Call, *, typed: bool) -> Any:
    request = pb.ModelInferRequest(model_name=call.model, id=call.id)
    _write_parameters(request.parameters, call)
    for each in call.inputs:
        tensor = request.inputs.add(name=each.name, datatype=each.datatype, shape=each.shape)
        if each.name in call.places:
            _write_place(tensor, call.places[each.name])
        elif typed:
            getattr(tensor.contents, _CONTENTS[each.datatype]).extend(each.values())
    for name, place in call.output_places():
        _write_place(request.outputs.add(name=name), place)
    return request


def _write_parameters(parameters: Any, call: Call) -> None:
    if call.sequence is not None:
        name = "string_param" if isinstance(call.sequence.id, str) else "int64_param"
        setattr(parameters["sequence_id"], name, call.sequence.id)
        parameters["sequence_start"].bool_param = call.sequence.is_start
        parameters["sequence_end"].bool_param = call.sequence.is_end
    if call.priority:
        parameters["priority"].int64_param = call.priority
    if call.timeout_us:
        parameters["timeout"].int64_param = call.timeout_us
    if call.kind is Kind.STREAM:
        parameters["triton_enable_empty_final_response"].bool_param = True


def _write_place(tensor: Any, place: Place) -> None:
    """Write a place; numbers are signed in the message, and unsigned to the server."""
    tensor.parameters["shared_memory_region"].string_param = place.region
    for name, value in (("offset", place.offset), ("byte_size", place.byte_size)):
        signed = value - (1 << 64) if value >> 63 else value
        tensor.parameters[f"shared_memory_{name}"].int64_param = signed


class _Block(NamedTuple):
    """A header block of the server."""

    fields: dict[str, str]
    is_head: bool  # as every response of gRPC has it
    status: int | None  # grpc-status, in trailers
    error: str  # grpc-message


class GrpcClient(Http2ClientConnection):
    """One connection to the gRPC port.

    Args:
        now: see `ClientConnection`.
        call_later: the same.
        on_end: the same.
        writer: makes header blocks and messages; clients may share one.
        settings: those of `Http2ClientConnection`.
    """

    _blocks: dict[bytes, _Block] = {}  # noqa: RUF012  of all connections

    def __init__(
        self,
        now: Callable[[], float],
        call_later: Callable[..., Any],
        on_end: Callable[[Call], None],
        *,
        writer: GrpcWriter | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(now, call_later, on_end, **settings)
        self._writer = writer or GrpcWriter()

    def _is_raw(self, call: Call) -> bool:
        return call.kind is Kind.INVALID and not call.text

    def _write_call(self, call: Call, *, is_new: bool) -> tuple[bytes, bytes]:
        return self._writer.block(call) if is_new else b"", self._writer.message(call)

    def _read_block(self, pairs: list[tuple[str, str]]) -> _Block:
        return _read_block(pairs)

    def _take_body(self, stream: Stream, body: bytes, *, ends: bool) -> None:
        if ends:
            raise ViolationError("DATA ends a gRPC stream, which has no trailers then")
        for call in list(stream.calls.values()) if stream.is_lane else stream.calls.values():
            call.outcome.received_bytes += len(body)
            if call.conduct is not POLITE and self._reacts(call):
                return
        if stream.buffer:
            stream.buffer += body
            if len(stream.buffer) < stream.wanted:
                return  # a large message is looked at when it is whole
            body = bytes(stream.buffer)
        at = 0
        while len(body) - at >= 5:
            if body[at] != 0:
                raise ViolationError(f"the prefix of a message is {body[at : at + 5]!r}")
            end = at + 5 + int.from_bytes(body[at + 1 : at + 5], "big")
            if end > len(body):
                break
            stream.messages += 1
            self._take_message(stream, body[at + 5 : end])
            at = end
        stream.buffer = bytearray(body[at:])
        stream.wanted = 5
        if len(stream.buffer) >= 5:
            stream.wanted += int.from_bytes(stream.buffer[1:5], "big")

    def _take_message(self, stream: Stream, message: bytes) -> None:
        now = self._now()
        if stream.is_lane:
            self._take_stream_message(stream, message, now)
            return
        if stream.messages > 1:
            raise ViolationError("a unary call got a second message")
        (call,) = stream.calls.values()
        outcome = call.outcome
        outcome.first_s = outcome.last_s = now
        if call.kind is Kind.INVALID:
            outcome.responses.append(Response(now, document=message))
            return
        document = _parse(_METHODS[call.kind][1], message)
        if call.kind is Kind.INFER:
            outcome.responses.append(_read_response(document, now))
        else:
            outcome.responses.append(Response(now, document=document))

    def _take_stream_message(self, stream: Stream, message: bytes, now: float) -> None:
        document = _parse(pb.ModelStreamInferResponse, message)
        inner = document.infer_response
        call = stream.calls.get(inner.id)
        if call is None:
            raise ViolationError(
                f"a response came for {inner.id!r}, which is not open on the stream: "
                f"{document.error_message!r}"
            )
        outcome = call.outcome
        if outcome.first_s is None:
            outcome.first_s = now
        outcome.last_s = now
        is_final = inner.parameters["triton_final_response"].bool_param
        if document.error_message:
            outcome.error = document.error_message
            if len(inner.outputs):
                raise ViolationError("an error has outputs")
            # A request that was refused has one message, without the flag. One of a decoupled model
            # may have several responses whose outputs have no room in shared memory.
            if is_final or not inner.model_name or not call.output_places():
                self._end_call(stream, call, End.ERROR)
            return
        if len(inner.outputs) or not is_final:
            outcome.responses.append(_read_response(inner, now))
        if is_final and outcome.error:
            self._end_call(stream, call, End.ERROR)
        elif is_final:
            outcome.status = 0
            self._end_call(stream, call, End.ANSWERED)

    def _end_call(self, stream: Stream, call: Call, end: End) -> None:
        if next(iter(stream.calls.values())) is not call:
            earlier = itertools.takewhile(lambda each: each is not call, stream.calls.values())
            call.outcome.overtook = tuple(earlier)
        del stream.calls[call.id]
        self._finish(call, end)

    def _take_block(self, stream_id: int, ends: bool, encoded: bytes) -> None:
        block = self._decode(encoded)
        stream = self._find(stream_id, "HEADERS")
        if stream is None:
            return
        if not stream.has_head:
            stream.has_head = True
            if not block.is_head or (block.status is not None and not ends):
                raise ViolationError(f"the head of a response is {block.fields}")
            if not ends:
                return
        elif ":status" in block.fields:
            raise ViolationError(f"a second head came: {block.fields}")
        if not ends or block.status is None:
            raise ViolationError(f"trailers do not end the stream with a status: {block.fields}")
        if stream.buffer:
            raise ViolationError(f"a stream ends inside of a message: {stream.buffer[:40]!r}")
        self._end_stream(stream, block.status, block.error)

    def _end_stream(self, stream: Stream, status: int, error: str) -> None:
        calls = list(stream.calls.values())
        if status == 0 and stream.is_lane and calls:
            raise ViolationError(f"the stream ended, but not {', '.join(map(str, calls))}")
        if not stream.is_lane and stream.messages != (status == 0):
            raise ViolationError(f"a call with status {status} has {stream.messages} messages")
        self._end_here(stream)
        for call in calls:
            outcome = call.outcome
            outcome.status = status
            outcome.error = error or ("" if status == 0 else f"status {status}")
            self._finish(call, End.ANSWERED if status == 0 else End.ERROR)
        self._pump()


def _read_block(pairs: list[tuple[str, str]]) -> _Block:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ViolationError(f"a field is there twice: {pairs}")
    if any(name != name.lower() for name in fields):
        raise ViolationError(f"a name has capitals: {pairs}")
    content_type = fields.get("content-type", "")
    is_head = fields.get(":status") == "200" and content_type.startswith("application/grpc")
    text = fields.get("grpc-status")
    if text is None:
        return _Block(fields, is_head, None, "")
    if not text.isdecimal() or int(text) > 16:
        raise ViolationError(f"grpc-status is {text!r}")
    try:
        error = unquote_to_bytes(fields.get("grpc-message", "")).decode()
    except UnicodeDecodeError as wrong:
        raise ViolationError(f"grpc-message is no UTF-8: {fields}") from wrong
    return _Block(fields, is_head, int(text), error)


def _parse(message_type: Any, message: bytes) -> Any:
    try:
        document = message_type.FromString(message)
    except DecodeError as error:
        raise ViolationError(f"a message cannot be read ({error}): {message[:60]!r}") from error
    if len(UnknownFieldSet(document)):
        raise ViolationError(f"a message has fields that nobody knows: {message[:60]!r}")
    return document


def _read_response(document: Any, now: float) -> Response:
    raw = document.raw_output_contents
    outputs = document.outputs
    if len(raw) != len(outputs):
        raise ViolationError(f"{len(outputs)} outputs have {len(raw)} contents")
    tensors = [
        TensorData(each.name, each.datatype, tuple(each.shape), content)
        for each, content in zip(outputs, raw, strict=True)
    ]
    parameters = {}
    if document.parameters:
        for name, value in document.parameters.items():
            choice = value.WhichOneof("parameter_choice") or "bool_param"
            parameters[name] = getattr(value, choice)
    return Response(
        now, document.id, document.model_name, document.model_version, tuple(tensors), parameters
    )
