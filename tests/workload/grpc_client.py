# SPDX-License-Identifier: Apache-2.0
"""A gRPC client that does no I/O of its own: a small HTTP/2 connection, strict about what it reads.

Frames, flow control and the states of streams are its own, so that a mistake of the server's code
is not shared; header blocks are read by `hpack`, messages by the protobuf classes.
"""

from __future__ import annotations

import itertools
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

import hpack
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
from tests.workload.connection import ClientConnection, ViolationError

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS = 0, 1, 2, 3, 4
PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 5, 6, 7, 8, 9
END_STREAM = ACK = 0x1
END_HEADERS, PADDED, WITH_PRIORITY = 0x4, 0x8, 0x20
CANCEL = 8
_MAX_FRAME_BYTES = 16_384
_DEFAULT_WINDOW_BYTES = 65_535
_CONNECTION_WINDOW_BYTES = 1 << 24
_LARGEST_WINDOW = (1 << 31) - 1
_MAX_STREAMS = 100  # until the server has said how many it allows
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


_pack_header = struct.Struct(">IBI").pack


_MOST_ENTRIES = 31  # of SETTINGS in a frame, with one more


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return _pack_header(len(payload) << 8 | kind, flags, stream_id) + payload


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
            block += _literal("grpc-encoding", call.coding)
        if call.accepts:
            block += _literal("grpc-accept-encoding", call.accepts)
        if call.deadline_s is not None:
            block += _literal("grpc-timeout", f"{max(int(call.deadline_s * 1e6), 1)}u")
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
        return b"".join(_literal(name, value) for name, value in fields)

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
            pieces += (b"\x3a", _varint(len(each.raw)), each.raw)
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


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _literal(name: str, value: str) -> bytes:
    """A field without indexing and without Huffman codes (RFC 7541, 6.2.2)."""
    return b"\0" + b"".join(_prefixed(each.encode()) for each in (name, value))


def _prefixed(text: bytes) -> bytes:
    """A text with its length, an integer with a prefix of 7 bits (RFC 7541, 5.1)."""
    if len(text) < 127:
        return bytes((len(text),)) + text
    return b"\x7f" + _varint(len(text) - 127) + text


class _Block(NamedTuple):
    """A header block of the server."""

    fields: dict[str, str]
    is_head: bool  # as every response of gRPC has it
    status: int | None  # grpc-status, in trailers
    error: str  # grpc-message


class _Stream:
    """A stream of the connection: a unary call, or the calls of a ModelStreamInfer."""

    __slots__ = (
        "buffer", "calls", "ended_here", "has_head", "id", "is_lane", "lane", "messages",
        "receive_left", "received", "send_left", "unsent", "wanted",
    )  # fmt: skip

    def __init__(self, stream_id: int, lane: int | None, send_left: int, receive_left: int) -> None:
        self.id = stream_id
        self.lane = lane
        self.is_lane = lane is not None
        self.calls: dict[str, Call] = {}  # open ones, by id
        self.send_left = send_left
        self.receive_left = receive_left  # what the server may still send
        self.received = 0  # since the last update of the window
        self.unsent: deque[tuple[memoryview, bool, Call]] = deque()  # data, whether it ends, whose
        self.buffer = bytearray()  # of a message that is not whole
        self.wanted = 5  # bytes that the buffer needs before it is looked at
        self.messages = 0
        self.has_head = False
        self.ended_here = False  # the client has ended its side


class GrpcClient(ClientConnection):
    """One connection to the gRPC port.

    Args:
        now: see `ClientConnection`.
        call_later: the same.
        on_end: the same.
        writer: makes header blocks and messages; clients may share one.
        window_bytes: how much the server may send on a stream before the client allows more.
        told: `on_lost` and `on_violation` of `ClientConnection`.
    """

    def __init__(
        self,
        now: Callable[[], float],
        call_later: Callable[..., Any],
        on_end: Callable[[Call], None],
        *,
        writer: GrpcWriter | None = None,
        window_bytes: int = 1 << 20,
        **told: Any,
    ) -> None:
        super().__init__(now, call_later, on_end, **told)
        self._writer = writer or GrpcWriter()
        self._window_bytes = window_bytes
        self._decoder = hpack.Decoder()
        self._streams: dict[int, _Stream] = {}
        self._lanes: dict[int, _Stream] = {}
        self._raw: list[Call] = []  # invalid calls that have no stream
        self._next_id = 1
        self._max_streams = _MAX_STREAMS
        self._peer_window = _DEFAULT_WINDOW_BYTES  # of new streams
        self._peer_frame_bytes = _MAX_FRAME_BYTES
        self._send_left = _DEFAULT_WINDOW_BYTES  # of the connection
        self._receive_left = _CONNECTION_WINDOW_BYTES
        self._received = 0
        self._buffer = b""
        self._block: tuple[int, bool, bytes] | None = None  # stream, whether it ends, fragments
        self._has_settings = False
        self._goaway: tuple[int, int, str] | None = None  # last stream, code, text
        # Streams that the client has reset: frames on them were under way until the server has
        # acknowledged the SETTINGS that followed the reset.
        self._reset: dict[int, int] = {}
        self._answered: deque[int] = deque(maxlen=64)  # streams that both sides have ended
        self._settings_sent = 0
        self._settings_acknowledged = 0
        self._stream: _Stream | None = None  # the one whose frame is read

    @property
    def is_usable(self) -> bool:
        return not (self.is_lost or self.is_cut or self._goaway is not None)

    @property
    def open_count(self) -> int:
        """How many calls have not ended."""
        streams = sum(len(stream.calls) for stream in self._streams.values())
        return streams + len(self._waiting) + len(self._raw)

    # Sending

    def _opened(self) -> None:
        settings = struct.pack(">HIHI", 2, 0, 4, self._window_bytes)  # no push; the window
        update = _CONNECTION_WINDOW_BYTES - _DEFAULT_WINDOW_BYTES
        self._settings_sent = 1
        self._transport.write(PREFACE + frame(SETTINGS, 0, 0, settings) + _window_update(0, update))

    def _pump(self) -> None:
        if self._transport is None:
            return
        while (
            self._waiting
            and not self._is_held
            and self._sending is None
            and not self.is_cut
            and self._goaway is None
        ):
            call = self._waiting[0]
            lane = None if call.lane is None else self._lanes.get(call.lane)
            if lane is None and len(self._streams) >= self._max_streams:
                return
            self._waiting.popleft()
            if call.kind is Kind.INVALID and not call.text:
                self._raw.append(call)
                self._begin_sending(call, call.payload)
            else:
                if call.payload and call.kind is not Kind.INVALID:
                    self._change_settings(call.payload)
                self._send(call, lane)

    def _change_settings(self, entries: bytes) -> None:
        """Send SETTINGS, as many as servers take in a frame; then windows are as before."""
        own = struct.pack(">HI", 4, self._window_bytes)
        frames = [
            frame(SETTINGS, 0, 0, entries[at : at + _MOST_ENTRIES * len(own)] + own)
            for at in range(0, len(entries), _MOST_ENTRIES * len(own))
        ]
        self._settings_sent += len(frames)
        self._write(b"".join(frames))

    def _send(self, call: Call, stream: _Stream | None) -> None:
        head = b""
        if stream is None:
            stream = _Stream(self._next_id, call.lane, self._peer_window, self._window_bytes)
            self._next_id += 2
            self._streams[stream.id] = stream
            if call.lane is not None:
                self._lanes[call.lane] = stream
            head = frame(HEADERS, END_HEADERS, stream.id, self._writer.block(call))
        if call.id in stream.calls:
            raise AssertionError(f"{call} is sent twice")
        stream.calls[call.id] = call
        ends = call.lane is None or call.closes_lane
        if ends and stream.is_lane:
            del self._lanes[stream.lane]
        message = self._writer.message(call)
        size = len(message)
        left = min(stream.send_left, self._send_left, self._peer_frame_bytes)
        if size <= left and not stream.unsent:
            stream.send_left -= size
            self._send_left -= size
            stream.ended_here = ends
            data = frame(DATA, END_STREAM if ends else 0, stream.id, message)
            self._begin_sending(call, head + data)
            return
        stream.unsent.append((memoryview(message), ends, call))
        data, ended = self._take_unsent(stream)
        self._begin_sending(call, head + data)
        if not ended and call.conduct is POLITE:
            call.outcome.sent_s = None

    def _take_unsent(self, stream: _Stream) -> tuple[bytes, bool]:
        """DATA frames for what the windows allow; whether nothing is left."""
        pieces = []
        while stream.unsent:
            message, ends, call = stream.unsent[0]
            size = min(len(message), stream.send_left, self._send_left, self._peer_frame_bytes)
            if size <= 0 and message:
                break
            stream.send_left -= size
            self._send_left -= size
            is_last = size == len(message)
            flags = END_STREAM if ends and is_last else 0
            pieces.append(frame(DATA, flags, stream.id, message[:size]))
            if is_last:
                stream.unsent.popleft()
                stream.ended_here = ends
                if call.outcome.began_s is not None and self._sending is None:
                    call.outcome.sent_s = self._now()
            else:
                stream.unsent[0] = (message[size:], ends, call)
        return b"".join(pieces), not stream.unsent

    def _send_rest(self) -> None:
        """Windows have grown."""
        for stream in list(self._streams.values()):
            if stream.unsent and self._send_left > 0 and stream.send_left > 0:
                data, _ = self._take_unsent(stream)
                if data:
                    self._write(data)

    def _give_up(self, call: Call) -> None:
        """Reset the stream of a call, and all calls on it."""
        for stream in self._streams.values():
            if stream.calls.get(call.id) is call:
                break
        else:
            return
        if self._sending is not None and self._sending[0] is call:
            # Parts of frames cannot be taken back, and a stream is not there before its head.
            self._later(call, 0.001, self._cancel, call)
            return
        self._reset_stream(stream)
        for each in list(stream.calls.values()):
            self._finish(each, End.CANCELLED)
        self._pump()

    def _reset_stream(self, stream: _Stream) -> None:
        """Reset a stream, and learn from the acknowledged SETTINGS when the server knows."""
        self._forget(stream)
        self._settings_sent += 1
        self._reset[stream.id] = self._settings_sent
        code = CANCEL.to_bytes(4, "big")
        self._write(frame(RST_STREAM, 0, stream.id, code) + frame(SETTINGS, 0, 0, b""))

    def _forget(self, stream: _Stream) -> None:
        del self._streams[stream.id]
        if stream.lane is not None and self._lanes.get(stream.lane) is stream:
            del self._lanes[stream.lane]

    # Reading

    def _receive(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        self._buffer = b""
        at, size = 0, len(buffer)
        while size - at >= 9:
            length_and_kind, flags, stream_id = _unpack_header(buffer, at)
            length, kind = length_and_kind >> 8, length_and_kind & 0xFF
            end = at + 9 + length
            if end > size and length <= _MAX_FRAME_BYTES:
                break
            if kind > WINDOW_UPDATE or self._block is not None or not self._has_settings:
                self._check_frame(kind, flags, stream_id)
            take = _FRAMES.get(kind)
            if take is None or length > _MAX_FRAME_BYTES or stream_id >> 31:
                what = f"of kind {kind} on stream {stream_id} has {length} bytes"
                raise ViolationError(f"a frame {what}")
            self._stream = None
            take(self, flags, stream_id, bytes(buffer[at + 9 : end]))
            at = end
            if self.is_cut and not self._is_half_closed:
                return
        self._buffer = bytes(buffer[at:])

    def _check_frame(self, kind: int, flags: int, stream_id: int) -> None:
        """Check whether a frame may come now, inside of a header block or at the beginning."""
        if self._block is not None and (kind != CONTINUATION or stream_id != self._block[0]):
            raise ViolationError(f"a frame of kind {kind} came inside of a header block")
        if not self._has_settings and (kind != SETTINGS or flags & ACK):
            raise ViolationError(f"the first frame is of kind {kind}, not SETTINGS")

    def _find(self, stream_id: int, what: str) -> _Stream | None:
        """The stream of a frame; None for one that this client has reset a moment ago."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._stream = stream
            return stream
        if stream_id in self._reset:
            return None
        if stream_id == 0 or stream_id % 2 == 0 or stream_id >= self._next_id:
            raise ViolationError(f"{what} came on stream {stream_id}, which nobody opened")
        raise ViolationError(f"{what} came on stream {stream_id} after its end")

    def _take_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        size = len(payload)
        self._receive_left -= size
        if self._receive_left < 0:
            raise ViolationError("DATA exceeds the window of the connection")
        self._received += size
        updates = b""
        if self._received >= _CONNECTION_WINDOW_BYTES // 2:
            updates = _window_update(0, self._received)
            self._receive_left += self._received
            self._received = 0
        stream = self._find(stream_id, f"DATA of {size} bytes")
        if stream is not None:
            if not stream.has_head:
                raise ViolationError("DATA came before the head of the response")
            stream.receive_left -= size
            stream.received += size
            if stream.receive_left < 0:
                raise ViolationError(f"DATA exceeds the window of the stream by {size} bytes")
            if flags & END_STREAM:
                raise ViolationError("DATA ends a gRPC stream, which has no trailers then")
            if stream.received * 2 >= self._window_bytes:
                updates += _window_update(stream_id, stream.received)
                stream.receive_left += stream.received
                stream.received = 0
            self._take_body(stream, _unpadded(flags, payload))
        if updates and not self.is_cut:
            self._write(updates)

    def _take_body(self, stream: _Stream, body: bytes) -> None:
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

    def _take_message(self, stream: _Stream, message: bytes) -> None:
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

    def _take_stream_message(self, stream: _Stream, message: bytes, now: float) -> None:
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

    def _end_call(self, stream: _Stream, call: Call, end: End) -> None:
        if next(iter(stream.calls.values())) is not call:
            earlier = itertools.takewhile(lambda each: each is not call, stream.calls.values())
            call.outcome.overtook = tuple(earlier)
        del stream.calls[call.id]
        self._finish(call, end)

    def _begin_block(self, flags: int, stream_id: int, payload: bytes) -> None:
        if flags & WITH_PRIORITY:
            raise ViolationError("HEADERS of a server have a priority")
        fragment = _unpadded(flags, payload)
        if flags & END_HEADERS:
            self._take_block(stream_id, bool(flags & END_STREAM), fragment)
        else:
            self._block = (stream_id, bool(flags & END_STREAM), fragment)

    def _take_continuation(self, flags: int, stream_id: int, fragment: bytes) -> None:
        if self._block is None:
            raise ViolationError("CONTINUATION came without a header block")
        _, ends, before = self._block
        self._block = (stream_id, ends, before + fragment)
        if flags & END_HEADERS:
            self._block = None
            self._take_block(stream_id, ends, before + fragment)

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

    def _decode(self, encoded: bytes) -> _Block:
        """Read a header block; one that depends on no table and changes none is read once."""
        table = self._decoder.header_table
        has_table = bool(table.dynamic_entries)
        if not has_table:
            kept = _BLOCKS.get(encoded)
            if kept is not None:
                return kept
        try:
            pairs = self._decoder.decode(encoded)
        except hpack.HPACKError as error:
            raise ViolationError(f"a header block cannot be read ({error!r})") from error
        block = _read_block(pairs)
        if not has_table and not table.dynamic_entries:
            if len(_BLOCKS) > _CACHE_ENTRIES:
                _BLOCKS.clear()
            _BLOCKS[encoded] = block
        return block

    def _end_stream(self, stream: _Stream, status: int, error: str) -> None:
        calls = list(stream.calls.values())
        if status == 0 and stream.is_lane and calls:
            raise ViolationError(f"the stream ended, but not {', '.join(map(str, calls))}")
        if not stream.is_lane and stream.messages != (status == 0):
            raise ViolationError(f"a call with status {status} has {stream.messages} messages")
        if stream.ended_here:
            self._forget(stream)
            self._answered.append(stream.id)
        else:
            self._reset_stream(stream)
        for call in calls:
            outcome = call.outcome
            outcome.status = status
            outcome.error = error or ("" if status == 0 else f"status {status}")
            self._finish(call, End.ANSWERED if status == 0 else End.ERROR)
        self._pump()

    def _stop_sending(self, call: Call) -> None:
        # Others need the connection, so the rest of the frames has to follow anyway.
        assert self._sending is not None
        _, message, at = self._sending
        self._transport.write(message[at:])
        self._end_sending()

    def _take_reset(self, flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ViolationError(f"RST_STREAM is {payload!r}")
        code = int.from_bytes(payload, "big")
        if code == 0 and stream_id in self._answered:
            self._answered.remove(stream_id)
            return  # the server ended the stream before it saw that the client had
        stream = self._find(stream_id, f"RST_STREAM {code}")
        if stream is None:
            return
        self._forget(stream)
        for call in list(stream.calls.values()):
            call.outcome.status = code
            call.outcome.error = f"RST_STREAM {code}"
            self._finish(call, End.RESET)
        self._pump()

    def _take_window_update(self, flags: int, stream_id: int, payload: bytes) -> None:
        increment = int.from_bytes(payload, "big")
        if len(payload) != 4 or not 0 < increment <= _LARGEST_WINDOW:
            raise ViolationError(f"WINDOW_UPDATE is {payload!r}")
        if stream_id == 0:
            self._send_left += increment
            left = self._send_left
        elif stream_id in self._streams:
            stream = self._streams[stream_id]
            stream.send_left += increment
            left = stream.send_left
        else:
            if stream_id % 2 == 0 or stream_id >= self._next_id:
                raise ViolationError(f"WINDOW_UPDATE came on stream {stream_id}")
            return  # the stream has ended meanwhile
        if left > _LARGEST_WINDOW:
            raise ViolationError(f"a window grew to {left}")
        self._send_rest()

    def _take_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        _check_connection_frame("SETTINGS", stream_id)
        if flags & ACK:
            self._settings_acknowledged += 1
            if payload or self._settings_acknowledged > self._settings_sent:
                raise ViolationError("SETTINGS were acknowledged that nobody sent")
            done = self._settings_acknowledged
            self._reset = {each: sent for each, sent in self._reset.items() if sent > done}
            return
        if len(payload) % 6:
            raise ViolationError(f"SETTINGS have {len(payload)} bytes")
        self._has_settings = True
        for name, value in struct.iter_unpack(">HI", payload):
            self._change_setting(name, value)
        self._write(frame(SETTINGS, ACK, 0, b""))
        self._send_rest()
        self._pump()

    def _change_setting(self, name: int, value: int) -> None:
        if name == 3:
            self._max_streams = value
        elif name == 4:
            if value > _LARGEST_WINDOW:
                raise ViolationError(f"INITIAL_WINDOW_SIZE is {value}")
            for stream in self._streams.values():
                stream.send_left += value - self._peer_window
            self._peer_window = value
        elif name == 5:
            if not _MAX_FRAME_BYTES <= value < 1 << 24:
                raise ViolationError(f"MAX_FRAME_SIZE is {value}")
            self._peer_frame_bytes = min(value, 1 << 20)
        elif name == 2 and value:
            raise ViolationError("a server allows push")

    def _take_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        _check_connection_frame("PING", stream_id)
        if len(payload) != 8 or flags & ACK:
            raise ViolationError(f"PING with flags {flags} is {payload!r}")
        self._write(frame(PING, ACK, 0, payload))

    def _take_goaway(self, flags: int, stream_id: int, payload: bytes) -> None:
        _check_connection_frame("GOAWAY", stream_id)
        if len(payload) < 8:
            raise ViolationError(f"GOAWAY is {payload!r}")
        last, code = struct.unpack_from(">II", payload)
        if self._goaway is not None and last > self._goaway[0]:
            raise ViolationError(f"GOAWAY named stream {self._goaway[0]}, then {last}")
        self._goaway = (last, code, payload[8:].decode("latin-1"))
        for stream in [each for each in self._streams.values() if each.id > last]:
            self._forget(stream)
            for call in list(stream.calls.values()):
                self._finish(call, End.UNSENT)  # the server says that it did nothing of it
        self._drop_unsent()

    # Ends

    def connection_lost(self, error: Exception | None) -> None:
        if error is None and self._goaway is not None and self._goaway[1]:
            error = ConnectionError(f"GOAWAY {self._goaway[1]}: {self._goaway[2]}")
        super().connection_lost(error)

    def _take_open(self) -> list[Call]:
        calls = self._raw
        for stream in self._streams.values():
            calls += stream.calls.values()
        self._raw = []
        self._streams.clear()
        self._lanes.clear()
        return calls

    def _current(self) -> Call | None:
        calls = self._stream.calls.values() if self._stream is not None else self._raw
        return next(iter(calls), None)


_FRAMES: dict[int, Callable[[GrpcClient, int, int, bytes], None]] = {
    DATA: GrpcClient._take_data,
    HEADERS: GrpcClient._begin_block,
    CONTINUATION: GrpcClient._take_continuation,
    RST_STREAM: GrpcClient._take_reset,
    WINDOW_UPDATE: GrpcClient._take_window_update,
    SETTINGS: GrpcClient._take_settings,
    PING: GrpcClient._take_ping,
    GOAWAY: GrpcClient._take_goaway,
}
_BLOCKS: dict[bytes, _Block] = {}


_unpack_header = struct.Struct(">IBI").unpack_from


def _check_connection_frame(name: str, stream_id: int) -> None:
    if stream_id:
        raise ViolationError(f"{name} is on stream {stream_id}")


def _window_update(stream_id: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, increment.to_bytes(4, "big"))


def _unpadded(flags: int, payload: bytes) -> bytes:
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ViolationError("the padding is longer than its frame")
    return payload[1 : len(payload) - payload[0]]


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
