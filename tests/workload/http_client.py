# SPDX-License-Identifier: Apache-2.0
"""A client of the HTTP port that does no I/O of its own, and is strict about what it reads.

It has the methods of an `asyncio.Protocol`, and gets its clock and timers. Its parser is its own,
so that a mistake of the server's parser is not shared. What the protocol does not allow is reported
as a violation, and ends the connection.
"""

from __future__ import annotations

import json
import re
import struct
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

from tests.workload.calls import (
    ACCEPTED_CODINGS,
    NO_PLACES,
    OPENAI_KINDS,
    OPENAI_STREAMS,
    POLITE,
    STRUCT_CODES,
    Call,
    Cut,
    End,
    Form,
    Kind,
    Place,
    Response,
    TensorData,
    compress,
    decompress,
    join_texts,
    split_texts,
)
from tests.workload.connection import ClientConnection, ViolationError

_STATUS_LINE = re.compile(rb"HTTP/1\.1 ([1-5][0-9][0-9]) [\x20-\x7e]*")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e\t\x80-\xff]*?)[ \t]*")
_CHUNK_SIZE = re.compile(rb"[0-9a-fA-F]{1,16}")
_NUMBER = re.compile(rb"[0-9]{1,18}")
_LONGEST_HEAD_BYTES = 64 << 10
_CACHE_ENTRIES = 4096  # heads and templates that are kept; all are dropped when there are more

_PATHS = {
    Kind.LIVE: b"GET /v2/health/live",
    Kind.READY: b"GET /v2/health/ready",
    Kind.MODEL_READY: b"GET /v2/models/%b/ready",
    Kind.INDEX: b"POST /v2/repository/index",
    Kind.LOAD: b"POST /v2/repository/models/%b/load",
    Kind.UNLOAD: b"POST /v2/repository/models/%b/unload",
    Kind.STATISTICS: b"GET /v2/models/stats",
    Kind.METRICS: b"GET /metrics",
    Kind.INFER: b"POST /v2/models/%b/infer",
    Kind.EVENTS: b"POST /v2/models/%b/infer",
    Kind.GENERATE: b"POST /v2/models/%b/generate",
    Kind.STREAM: b"POST /v2/models/%b/generate_stream",
    Kind.REGISTER: b"POST /v2/systemsharedmemory/region/%b/register",
    Kind.CHAT: b"POST /v1/chat/completions",
    Kind.CHAT_STREAM: b"POST /v1/chat/completions",
    Kind.COMPLETION: b"POST /v1/completions",
    Kind.COMPLETION_STREAM: b"POST /v1/completions",
}
# Those about regions: the last word of their paths.
_REGION_PATHS = {Kind.UNREGISTER: (b"POST", b"unregister"), Kind.REGIONS: (b"GET", b"status")}
_WITHOUT_BODY = (
    *(Kind.LIVE, Kind.READY, Kind.MODEL_READY, Kind.LOAD, Kind.UNLOAD),
    *(Kind.REGISTER, Kind.UNREGISTER),
)


class Head(NamedTuple):
    """The head of a response."""

    status: int
    fields: dict[bytes, bytes]  # by lower-case name
    body_bytes: int | None  # None for a chunked body
    json_bytes: int | None  # Inference-Header-Content-Length
    is_last: bool  # the connection ends after it
    is_events: bool


def parse_head(head: bytes) -> Head:
    """Read a head, without the empty line at its end."""
    line, *lines = head.split(b"\r\n")
    match = _STATUS_LINE.fullmatch(line)
    if match is None:
        raise ViolationError(f"the status line is {line[:100]!r}")
    fields: dict[bytes, bytes] = {}
    for each in lines:
        field = _FIELD.fullmatch(each)
        if field is None:
            raise ViolationError(f"a header line is {each[:100]!r}")
        name = field[1].lower()
        if name in fields:
            raise ViolationError(f"the header {name!r} is there twice")
        fields[name] = field[2]
    status = int(match[1])
    length = fields.get(b"content-length")
    coding = fields.get(b"transfer-encoding")
    if coding is not None and (coding.lower() != b"chunked" or length is not None):
        raise ViolationError(f"Transfer-Encoding is {coding!r}, Content-Length is {length!r}")
    if coding is None and (length is None or _NUMBER.fullmatch(length) is None) and status >= 200:
        raise ViolationError(f"the length of the body is not known: {head[:200]!r}")
    split = fields.get(b"inference-header-content-length")
    if split is not None and _NUMBER.fullmatch(split) is None:
        raise ViolationError(f"Inference-Header-Content-Length is {split!r}")
    return Head(
        status,
        fields,
        None if length is None else int(length),
        None if split is None else int(split),
        fields.get(b"connection", b"").lower() == b"close",
        fields.get(b"content-type", b"").startswith(b"text/event-stream"),
    )


class RequestWriter:
    """Writes calls as requests; what repeats between them is kept.

    Args:
        authority: the value of Host.
        access_token: sent with every request that is not an inference.
    """

    def __init__(self, authority: str = "localhost", access_token: str = "") -> None:
        self._host = b"Host: %b\r\n" % authority.encode()
        self._token = b""
        if access_token:
            self._token = b"triton-access-token: %b\r\n" % access_token.encode()
        self._templates: dict[Any, tuple[bytes, bytes]] = {}

    def write(self, call: Call) -> bytes:
        message = self._write(call)
        if call.coding or call.accepts:
            return _with_codings(message, call)
        return message

    def _write(self, call: Call) -> bytes:
        kind = call.kind
        if kind is Kind.INVALID:
            return call.payload
        if kind is Kind.INFER and call.form is Form.BINARY:
            return self._binary(call)
        document = _DOCUMENTS.get(kind)
        if document is not None:
            return self._post(call, _dump(document(call)))
        line = self._line(call)
        length = b"" if line.startswith(b"GET") else b"Content-Length: 0\r\n"
        return b"".join((line, self._host, self._token, length, b"\r\n"))

    @staticmethod
    def _line(call: Call) -> bytes:
        if call.kind in _REGION_PATHS:
            method, action = _REGION_PATHS[call.kind]
            region = f"/region/{quote(call.text)}".encode() if call.text else b""
            return b"%b /v2/systemsharedmemory%b/%b HTTP/1.1\r\n" % (method, region, action)
        path = _PATHS[call.kind]
        if b"%b" in path:
            path %= (call.model or quote(call.text)).encode()
        return path + b" HTTP/1.1\r\n"

    def _post(self, call: Call, body: bytes) -> bytes:
        accept = b"Accept: text/event-stream\r\n" if call.kind is Kind.EVENTS else b""
        token = self._token if call.kind is Kind.REGISTER else b""
        return b"%b%b%b%bContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
            self._line(call),
            self._host,
            token,
            accept,
            len(body),
            body,
        )

    def _binary(self, call: Call) -> bytes:
        inputs = call.inputs
        if call.places:
            inputs = tuple(each for each in inputs if each.name not in call.places)
        if call.sequence is not None or call.priority or call.timeout_us or call.places:
            before, after = self._binary_head(call)
        else:
            key = (call.model, *((each.name, each.shape, len(each.raw)) for each in inputs))
            template = self._templates.get(key)
            if template is None:
                if len(self._templates) > _CACHE_ENTRIES:
                    self._templates.clear()
                template = self._templates[key] = self._binary_head(call)
            before, after = template
        return b"".join((before, call.id.encode(), after, *[each.raw for each in inputs]))

    def _binary_head(self, call: Call) -> tuple[bytes, bytes]:
        """The bytes before and after the id, up to the first tensor."""
        document = _infer_document(call)
        document.setdefault("parameters", {})["binary_data_output"] = True
        text = _dump(document)
        inline = (each.raw for each in call.inputs if each.name not in call.places)
        size = len(text) + sum(map(len, inline))
        head = (
            b"%b%bContent-Type: application/octet-stream\r\n"
            b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n"
        ) % (self._line(call), self._host, len(text), size)
        before, after = text.split(call.id.encode(), 1)
        return head + before, after


def _with_codings(message: bytes, call: Call) -> bytes:
    """Compress the body of a request, and say which answers its client understands."""
    head, body = message.split(b"\r\n\r\n", 1)
    lines = head.split(b"\r\n")
    if call.coding:
        body = compress(body, call.coding)
        lines = [each for each in lines if not each.startswith(b"Content-Length:")]
        lines.append(b"Content-Length: %d" % len(body))
        lines.append(b"Content-Encoding: " + call.coding.encode())
    if call.accepts:
        lines.append(b"Accept-Encoding: " + call.accepts.encode())
    return b"\r\n".join((*lines, b"", body))


def _dump(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _infer_document(call: Call) -> dict[str, Any]:
    document: dict[str, Any] = {"id": call.id}
    parameters = _parameters(call)
    if parameters:
        document["parameters"] = parameters
    is_binary = call.form is Form.BINARY and call.kind is Kind.INFER
    inputs = []
    for each in call.inputs:
        tensor: dict[str, Any] = {
            "name": each.name,
            "shape": list(each.shape),
            "datatype": each.datatype,
        }
        if each.name in call.places:
            tensor["parameters"] = _place(call.places[each.name])
        elif is_binary:
            tensor["parameters"] = {"binary_data_size": len(each.raw)}
        else:
            tensor["data"] = _json_values(each)
        inputs.append(tensor)
    document["inputs"] = inputs
    outputs = call.output_places()
    if outputs:
        document["outputs"] = [
            {"name": name, "parameters": _place(place)} for name, place in outputs
        ]
    return document


def _place(place: Place) -> dict[str, Any]:
    return {
        "shared_memory_region": place.region,
        "shared_memory_offset": place.offset,
        "shared_memory_byte_size": place.byte_size,
    }


def _register_document(call: Call) -> dict[str, Any]:
    assert call.region is not None
    return call.region._asdict()


def _parameters(call: Call) -> dict[str, Any]:
    parameters: dict[str, Any] = {}
    if call.sequence is not None:
        parameters["sequence_id"] = call.sequence.id
        parameters["sequence_start"] = call.sequence.is_start
        parameters["sequence_end"] = call.sequence.is_end
    if call.priority:
        parameters["priority"] = call.priority
    if call.timeout_us:
        parameters["timeout"] = call.timeout_us
    return parameters


def _json_values(tensor: TensorData) -> list[Any]:
    values = tensor.values()
    return [each.decode() for each in values] if tensor.datatype == "BYTES" else values


def _flat_document(call: Call) -> dict[str, Any]:
    document: dict[str, Any] = {"id": call.id, **_parameters(call)}
    for each in call.inputs:
        values = _json_values(each)
        document[each.name] = values[0] if len(values) == 1 else values
    return document


def _completion_document(call: Call) -> dict[str, Any]:
    return {
        "model": call.model,
        "prompt": call.text,
        "stream": call.kind is Kind.COMPLETION_STREAM,
    }


def _chat_document(call: Call) -> dict[str, Any]:
    return {
        "model": call.model,
        "messages": [{"role": "user", "content": call.text}],
        "stream": call.kind is Kind.CHAT_STREAM,
    }


_DOCUMENTS: dict[Kind, Callable[[Call], dict[str, Any]]] = {
    Kind.INFER: _infer_document,
    Kind.EVENTS: _infer_document,
    Kind.GENERATE: _flat_document,
    Kind.STREAM: _flat_document,
    Kind.CHAT: _chat_document,
    Kind.CHAT_STREAM: _chat_document,
    Kind.COMPLETION: _completion_document,
    Kind.COMPLETION_STREAM: _completion_document,
    Kind.REGISTER: _register_document,
}


def read_infer_response(
    document: Any, blobs: bytes, time_s: float, places: Mapping[str, Place] = NO_PLACES
) -> Response:
    """An infer response of JSON, and of the binary tensors behind it; those in places are empty."""
    try:
        outputs = []
        at = 0
        for each in document["outputs"]:
            datatype, shape = each["datatype"], tuple(each["shape"])
            if each["name"] in places and "data" not in each and "parameters" not in each:
                raw = b""
            elif "data" in each:
                raw = _raw(datatype, each["data"])
            else:
                size = each["parameters"]["binary_data_size"]
                raw = blobs[at : at + size]
                at += size
                if datatype == "BYTES":
                    split_texts(raw)
            outputs.append(TensorData(each["name"], datatype, shape, raw))
    except (KeyError, TypeError, ValueError, struct.error) as error:
        raise ViolationError(f"not an infer response ({error!r}): {document!r:.300}") from error
    if at != len(blobs):
        raise ViolationError(f"tensors have {at} bytes, but {len(blobs)} follow the JSON")
    return Response(
        time_s,
        document.get("id", ""),
        document.get("model_name", ""),
        document.get("model_version", ""),
        tuple(outputs),
        document.get("parameters", {}),
    )


def _raw(datatype: str, values: list[Any]) -> bytes:
    if datatype == "BYTES":
        return join_texts([each.encode() for each in values])
    return struct.pack(f"<{len(values)}{STRUCT_CODES[datatype]}", *values)


class Events:
    """Reads the server-sent events of one answer."""

    __slots__ = ("_is_done", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._is_done = False  # an OpenAI stream has said so

    def take(self, call: Call, text: bytes, now: float) -> None:
        """Read a part of the body."""
        text = self._rest + text
        at = 0
        while (end := text.find(b"\n\n", at)) >= 0:
            if self._is_done:
                raise ViolationError(f"an event came after [DONE]: {text[at:end]!r}")
            if text[at : at + 6] != b"data: " or b"\n" in text[at:end]:
                raise ViolationError(f"an event is {text[at:end][:200]!r}")
            data = text[at + 6 : end]
            at = end + 2
            if data == b"[DONE]" and call.kind in OPENAI_STREAMS:
                self._is_done = True
            else:
                self._take_event(call, _load(data), now)
        self._rest = text[at:]

    @staticmethod
    def _take_event(call: Call, document: Any, now: float) -> None:
        outcome = call.outcome
        if outcome.error:
            raise ViolationError(f"an event came after an error: {document!r:.200}")
        if outcome.first_s is None:
            outcome.first_s = now
        outcome.last_s = now
        if "error" in document:
            outcome.error = _error_text(document, call.kind)
        elif call.kind is Kind.EVENTS:
            outcome.responses.append(read_infer_response(document, b"", now))
        else:
            outcome.responses.append(Response(now, document.get("id", ""), document=document))

    def end(self, call: Call, head: Head) -> None:
        """The answer has ended."""
        if self._rest:
            raise ViolationError(f"the events end with {self._rest[:200]!r}")
        is_chat = call.kind in OPENAI_STREAMS
        if is_chat and not self._is_done and not call.outcome.error:
            raise ViolationError("the chat ended without [DONE]")
        if head.status != 200 and not call.outcome.error:
            raise ViolationError(f"events with the status {head.status} have no error")


def end_answer(call: Call, head: Head, body: bytes, events: Events, now: float) -> End:
    """Note a whole answer in the outcome of its call; how the call ends."""
    outcome = call.outcome
    outcome.status = head.status
    if outcome.sent_s is None and head.status < 300:
        raise ViolationError("the answer came before the whole request was sent")
    if b"content-encoding" in head.fields or (call.accepts and head.status == 200):
        body = _plain_body(call, head, body)
    if head.is_events:
        events.end(call, head)
    elif head.status == 200:
        _take_answer(call, head, body, now)
    elif call.kind is Kind.INVALID:
        outcome.error = body.decode("latin-1") or f"status {head.status}"
    else:
        outcome.error = _error_text(_load(body), call.kind)
    outcome.last_s = now
    if outcome.first_s is None:
        outcome.first_s = now
    return End.ERROR if head.status != 200 or outcome.error else End.ANSWERED


def _take_answer(call: Call, head: Head, body: bytes, now: float) -> None:
    kind = call.kind
    responses = call.outcome.responses
    if kind is Kind.INFER:
        split = len(body) if head.json_bytes is None else head.json_bytes
        if split > len(body):
            raise ViolationError(f"the JSON has {split} bytes of {len(body)}")
        document = _load(body[:split])
        responses.append(read_infer_response(document, body[split:], now, call.places))
    elif kind in _WITHOUT_BODY:
        if body:
            raise ViolationError(f"the answer has a body: {body[:200]!r}")
        responses.append(Response(now))
    elif kind is Kind.METRICS:
        responses.append(Response(now, document=body.decode()))
    elif kind is Kind.INVALID:
        responses.append(Response(now, document=body))
    elif kind in (Kind.STREAM, Kind.EVENTS, *OPENAI_STREAMS):
        raise ViolationError(f"a stream was answered with {head.fields!r}")
    else:
        document = _load(body)
        named = document.get("id", "") if isinstance(document, dict) else ""
        responses.append(Response(now, named, document=document))


class HttpClient(ClientConnection):
    """One connection to the HTTP port, or to the port of metrics; calls are pipelined.

    Args:
        now: see `ClientConnection`.
        call_later: the same.
        on_end: the same.
        writer: makes requests; clients may share one.
        told: `on_lost` and `on_violation` of `ClientConnection`.
    """

    def __init__(
        self,
        now: Callable[[], float],
        call_later: Callable[..., Any],
        on_end: Callable[[Call], None],
        *,
        writer: RequestWriter | None = None,
        **told: Any,
    ) -> None:
        super().__init__(now, call_later, on_end, **told)
        self._writer = writer or RequestWriter()
        self._open: deque[Call] = deque()  # sent, at least in part; the first is answered next
        self._expects_close = False
        # The response that is being read
        self._buffer = b""
        self._head: Head | None = None
        self._parts: list[bytes] = []
        self._missing = 0  # bytes of the body, or of the chunk and its end
        self._in_chunk = False
        self._events = Events()

    @property
    def is_usable(self) -> bool:
        return not (self.is_lost or self.is_cut or self._expects_close)

    @property
    def open_count(self) -> int:
        """How many calls have not ended."""
        return len(self._open) + len(self._waiting)

    def _pump(self) -> None:
        if self._transport is None:
            return
        while self._waiting and not self._is_held and self._sending is None and not self.is_cut:
            call = self._waiting.popleft()
            self._open.append(call)
            self._begin_sending(call, self._writer.write(call))

    def _give_up(self, call: Call) -> None:
        self.cut(Cut.ABORT if call.conduct.cut is Cut.HALF else call.conduct.cut)

    def _stop_sending(self, call: Call) -> None:
        # An error came before all was sent: the rest makes no sense, nor does what is behind it.
        self._sending = None
        self._expects_close = True

    def _take_open(self) -> list[Call]:
        calls = list(self._open)
        self._open.clear()
        return calls

    def _current(self) -> Call | None:
        return self._open[0] if self._open else None

    def _receive(self, data: bytes) -> None:
        if self._open:
            first = self._open[0]
            first.outcome.received_bytes += len(data)
            if first.conduct is not POLITE and self._reacts(first):
                return
        self._read(data)

    # Reading

    def _read(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        self._buffer = b""
        at = 0
        size = len(buffer)
        while at < size:
            if self._head is None:
                end = buffer.find(b"\r\n\r\n", at)
                if end < 0:
                    self._keep_part_of_head(buffer[at:])
                    return
                self._begin_response(bytes(buffer[at:end]))
                at = end + 4
                if self._head is not None and self._head.body_bytes == 0:
                    self._end_response()
            elif self._missing:
                part = bytes(buffer[at : at + self._missing])
                at += len(part)
                self._missing -= len(part)
                self._take_part(part)
            else:
                end = buffer.find(b"\r\n", at)
                if end < 0:
                    self._buffer = bytes(buffer[at:])
                    if len(self._buffer) > 18:
                        raise ViolationError(f"a chunk begins with {self._buffer[:40]!r}")
                    return
                self._begin_chunk(bytes(buffer[at:end]))
                at = end + 2

    def _keep_part_of_head(self, part: bytes) -> None:
        if not self._open:
            raise ViolationError(f"{len(part)} bytes came that no call asked for: {part[:200]!r}")
        if len(part) > _LONGEST_HEAD_BYTES:
            raise ViolationError(f"a head has more than {_LONGEST_HEAD_BYTES} bytes")
        if not b"HTTP/1.1 ".startswith(part[:9]):
            raise ViolationError(f"a response begins with {part[:100]!r}")
        self._buffer = bytes(part)

    def _begin_response(self, text: bytes) -> None:
        if not self._open:
            raise ViolationError(f"a response came that no call asked for: {text[:200]!r}")
        if self._expects_close:
            raise ViolationError(f"a response came after the last one: {text[:200]!r}")
        head = _HEADS.get(text)
        if head is None:
            if len(_HEADS) > _CACHE_ENTRIES:
                _HEADS.clear()
            head = _HEADS[text] = parse_head(text)
        if head.status < 200:
            raise ViolationError(f"an interim response came: {text[:200]!r}")
        self._head = head
        self._in_chunk = False
        self._missing = head.body_bytes or 0

    def _begin_chunk(self, line: bytes) -> None:
        if self._in_chunk:  # the line is the end of the last, empty chunk: there are no trailers
            if line:
                raise ViolationError(f"trailers came: {line[:100]!r}")
            self._end_response()
            return
        if _CHUNK_SIZE.fullmatch(line) is None:
            raise ViolationError(f"the size of a chunk is {line[:100]!r}")
        size = int(line, 16)
        if size == 0:
            self._in_chunk = True
            return
        self._missing = size + 2

    def _take_part(self, part: bytes) -> None:
        head = self._head
        assert head is not None
        self._parts.append(part)
        if self._missing:
            return
        if head.body_bytes is not None:
            self._end_response()
            return
        chunk = b"".join(self._parts) if len(self._parts) > 1 else part
        if not head.is_events:
            # Chunks of other bodies are joined at the end.
            self._parts = [chunk[:-2]]
        else:
            self._parts = []
        if chunk[-2:] != b"\r\n":
            raise ViolationError(f"a chunk ends with {chunk[-2:]!r}")
        if head.is_events:
            self._events.take(self._open[0], chunk[:-2], self._now())

    def _end_response(self) -> None:
        head = self._head
        assert head is not None
        self._head = None
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts = []
        call = self._open[0]
        end = end_answer(call, head, body, self._events, self._now())
        if head.is_events:
            self._events = Events()
        self._expects_close = head.is_last
        self._open.popleft()
        self._finish(call, end)
        if self._expects_close and (self._waiting or not head.is_last):
            self.cut(Cut.CLOSE)


_HEADS: dict[bytes, Head] = {}


def _plain_body(call: Call, head: Head, body: bytes) -> bytes:
    """The body of an answer whose client has said which compression it understands."""
    coding = head.fields.get(b"content-encoding", b"").decode("latin-1")
    expected = ACCEPTED_CODINGS[call.accepts]
    if coding != expected:
        raise ViolationError(f"Content-Encoding is {coding!r}, expected {expected!r}")
    try:
        return decompress(body, coding) if coding else body
    except ValueError as error:
        raise ViolationError(f"the body is not {coding} ({error}): {body[:60]!r}") from error


def _load(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ViolationError(f"not JSON ({error}): {text[:200]!r}") from error


def _error_text(document: Any, kind: Kind) -> str:
    """The text of an error, which comes alone in its object; OpenAI's routes have more members."""
    if isinstance(document, dict) and list(document) == ["error"]:
        error = document["error"]
        if (
            kind in OPENAI_KINDS
            and isinstance(error, dict)
            and isinstance(error.get("message"), str)
        ):
            return error["message"] or "an error without a text"
        # While no model is there for OpenAI's routes, the server has none of them.
        if isinstance(error, str) and (kind not in OPENAI_KINDS or error == "Not Found"):
            return error or "an error without a text"
    raise ViolationError(f"not an error document: {document!r:.200}")
