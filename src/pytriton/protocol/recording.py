# SPDX-License-Identifier: Apache-2.0
"""The format of recorded requests and answers: bytes to records and back, without I/O.

docs/recording.md describes the format. A file is a sequence of records, each with its length and
its checksum, so that it can be written and read as a stream, and one that was cut is readable up
to the cut.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec

from pytriton.base.messages import ParameterValue

MAGIC = b"PYTRITON RECORD\n"  # sixteen bytes, with which every file begins
VERSION = 1

# The lengths of head and body, and the checksum of these two numbers, the head and the body.
_PREFIX = struct.Struct("<IQI")
_LENGTHS = struct.Struct("<IQ")
MAX_HEAD_BYTES = 64 << 20  # more is no head: something else is in the file
MAX_BODY_BYTES = 1 << 40


class RecordedTensor(msgspec.Struct, frozen=True, gc=False):
    """A tensor in the protocol's byte layout; one that was redacted has zeros or empty strings."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes
    is_redacted: bool = False


class RecordedResponse(msgspec.Struct, gc=False):
    """One response of a model, or an error in its place."""

    after_ns: int  # since the request arrived
    outputs: list[RecordedTensor] = []
    parameters: dict[str, ParameterValue] = {}
    error: str | None = None
    code: int = 0  # of the error, an `ErrorCode`


class Exchange(msgspec.Struct, kw_only=True, gc=False):
    """A request with all its answers."""

    number: int = 0  # in the recording, in the order in which requests ended
    arrived_ns: int  # of the server's monotonic clock; see `RecordingHead`
    model: str
    version: str = ""  # that the client asked for; empty: the server's choice
    id: str = ""
    parameters: dict[str, ParameterValue] = {}
    priority: int = 0
    timeout_us: int = 0
    correlation_id: int | str = 0
    flags: int = 0  # 1: the first request of its sequence, 2: the last
    inputs: list[RecordedTensor] = []
    outputs: list[str] | None = None  # that the client asked for; None: all
    is_decoupled: bool = False  # any number of responses may come
    responses: list[RecordedResponse] = []
    ended_ns: int = 0  # since the request arrived

    @property
    def is_redacted(self) -> bool:
        """Whether the model would get another request than it got."""
        return any(tensor.is_redacted for tensor in self.inputs)

    @property
    def has_failed(self) -> bool:
        """Whether one of its answers is an error."""
        return any(response.error is not None for response in self.responses)


class RecordingHead(msgspec.Struct, tag="recording", omit_defaults=True, kw_only=True):
    """The first record of a file: where the others come from, and the two clocks at its start."""

    format: int = VERSION
    server: str = ""
    started_s: float = 0.0  # since the epoch
    started_ns: int = 0  # of the monotonic clock at the same time
    models: list[str] = []  # empty: all
    share: float = 1.0  # of the requests
    redacted: list[str] = []  # names of tensors and parameters


class RecordingEnd(msgspec.Struct, tag="end", omit_defaults=True, kw_only=True):
    """The last record: a file without it was cut."""

    reason: str
    exchanges: int = 0
    dropped: int = 0  # requests that were chosen and are not in the file


class _TensorHead(msgspec.Struct, omit_defaults=True):
    name: str
    datatype: str
    shape: tuple[int, ...]
    bytes: int
    redacted: bool = False


class _ResponseHead(msgspec.Struct, omit_defaults=True):
    after_ns: int
    outputs: list[_TensorHead] = []
    parameters: dict[str, ParameterValue] = {}
    error: str | None = None
    code: int = 0


class _ExchangeHead(msgspec.Struct, tag="exchange", omit_defaults=True, kw_only=True):
    number: int
    arrived_ns: int
    model: str
    version: str = ""
    id: str = ""
    parameters: dict[str, ParameterValue] = {}
    priority: int = 0
    timeout_us: int = 0
    correlation_id: int | str = 0
    flags: int = 0
    inputs: list[_TensorHead] = []
    outputs: list[str] | None = None
    decoupled: bool = False
    responses: list[_ResponseHead] = []
    ended_ns: int = 0


Record = RecordingHead | Exchange | RecordingEnd
_encode = msgspec.msgpack.Encoder().encode
_Head = RecordingHead | _ExchangeHead | RecordingEnd
_decoder: msgspec.msgpack.Decoder[_Head] = msgspec.msgpack.Decoder(_Head)


class RecordingError(ValueError):
    """Something is not a recording, or not one that this version reads."""


def encode_record(record: Record) -> bytes:
    """Returns the bytes of a record, with its length and its checksum."""
    if not isinstance(record, Exchange):
        return _framed(_encode(record), b"")
    tensors = [*record.inputs]
    for response in record.responses:
        tensors += response.outputs
    head = _ExchangeHead(
        number=record.number,
        arrived_ns=record.arrived_ns,
        model=record.model,
        version=record.version,
        id=record.id,
        parameters=record.parameters,
        priority=record.priority,
        timeout_us=record.timeout_us,
        correlation_id=record.correlation_id,
        flags=record.flags,
        inputs=_tensor_heads(record.inputs),
        outputs=record.outputs,
        decoupled=record.is_decoupled,
        responses=[
            _ResponseHead(
                each.after_ns, _tensor_heads(each.outputs), each.parameters, each.error, each.code
            )
            for each in record.responses
        ],
        ended_ns=record.ended_ns,
    )
    return _framed(_encode(head), b"".join([tensor.data for tensor in tensors]))


def _tensor_heads(tensors: Sequence[RecordedTensor]) -> list[_TensorHead]:
    return [
        _TensorHead(each.name, each.datatype, each.shape, len(each.data), each.is_redacted)
        for each in tensors
    ]


def _framed(head: bytes, body: bytes) -> bytes:
    lengths = _LENGTHS.pack(len(head), len(body))
    return b"".join((lengths, _checksum(lengths, head, body).to_bytes(4, "little"), head, body))


def _checksum(lengths: bytes, head: bytes | memoryview, body: bytes | memoryview) -> int:
    return zlib.crc32(body, zlib.crc32(head, zlib.crc32(lengths)))


class RecordReader:
    """Reads records from the bytes of a file, which come in pieces of any size."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._has_magic = False
        self.position = 0  # of the end of the last whole record

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[Record]:
        """Yields the records that are whole with this piece.

        Raises:
            RecordingError: This is no recording, a record is damaged, or a later version of the
                format is needed.
        """
        self._buffer += data
        if not self._has_magic and not self._take_magic():
            return
        while (record := self._take()) is not None:
            yield record

    @property
    def rest_bytes(self) -> int:
        """The bytes of a record whose end has not come."""
        return len(self._buffer)

    def _take_magic(self) -> bool:
        begin = bytes(self._buffer[: len(MAGIC)])
        if not MAGIC.startswith(begin):
            raise RecordingError(
                f"expected a recording, which begins with {MAGIC!r}, got {begin!r}"
            )
        if len(begin) < len(MAGIC):
            return False
        self._has_magic = True
        self._drop(len(MAGIC))
        return True

    def _take(self) -> Record | None:
        buffer = self._buffer
        if len(buffer) < _PREFIX.size:
            return None
        head_bytes, body_bytes, checksum = _PREFIX.unpack_from(buffer)
        if head_bytes > MAX_HEAD_BYTES or body_bytes > MAX_BODY_BYTES:
            raise RecordingError(
                f"the record at byte {self.position} is damaged: its length is wrong"
            )
        start, end = _PREFIX.size + head_bytes, _PREFIX.size + head_bytes + body_bytes
        if len(buffer) < end:
            return None
        head, body = bytes(buffer[_PREFIX.size : start]), bytes(buffer[start:end])
        if _checksum(bytes(buffer[: _LENGTHS.size]), head, body) != checksum:
            raise RecordingError(
                f"the record at byte {self.position} is damaged: its checksum is wrong"
            )
        record = self._read(head, body)
        self._drop(end)
        return record

    def _drop(self, count: int) -> None:
        del self._buffer[:count]
        self.position += count

    def _read(self, head: bytes, body: bytes) -> Record:
        try:
            record = _decoder.decode(head)
        except msgspec.DecodeError as error:
            raise RecordingError(
                f"the record at byte {self.position} has another form than expected: {error}"
            ) from error
        if isinstance(record, _ExchangeHead):
            return _exchange(record, body)
        if isinstance(record, RecordingHead) and record.format > VERSION:
            raise RecordingError(
                f"expected a recording of format {VERSION} or before, got format {record.format}"
            )
        return record


def _exchange(head: _ExchangeHead, body: bytes) -> Exchange:
    at = 0

    def tensors(heads: Sequence[_TensorHead]) -> list[RecordedTensor]:
        nonlocal at
        read = []
        for each in heads:
            data = body[at : at + each.bytes]
            if each.bytes < 0 or len(data) != each.bytes:
                raise RecordingError(f"exchange {head.number} has fewer bytes than its tensors")
            at += each.bytes
            read.append(RecordedTensor(each.name, each.datatype, each.shape, data, each.redacted))
        return read

    inputs = tensors(head.inputs)
    responses = [
        RecordedResponse(
            each.after_ns, tensors(each.outputs), each.parameters, each.error, each.code
        )
        for each in head.responses
    ]
    return Exchange(
        number=head.number,
        arrived_ns=head.arrived_ns,
        model=head.model,
        version=head.version,
        id=head.id,
        parameters=head.parameters,
        priority=head.priority,
        timeout_us=head.timeout_us,
        correlation_id=head.correlation_id,
        flags=head.flags,
        inputs=inputs,
        outputs=head.outputs,
        is_decoupled=head.decoupled,
        responses=responses,
        ended_ns=head.ended_ns,
    )


def redact(exchange: Exchange, names: Collection[str]) -> Exchange:
    """Returns an exchange without the values of these tensors and parameters.

    Shapes and datatypes stay, so that a model accepts the request.
    """
    if not names:
        return exchange
    return msgspec.structs.replace(
        exchange,
        parameters=_without(exchange.parameters, names),
        inputs=[_redacted(each, names) for each in exchange.inputs],
        responses=[
            msgspec.structs.replace(
                each,
                outputs=[_redacted(output, names) for output in each.outputs],
                parameters=_without(each.parameters, names),
            )
            for each in exchange.responses
        ],
    )


def _redacted(tensor: RecordedTensor, names: Collection[str]) -> RecordedTensor:
    if tensor.name not in names:
        return tensor
    # An empty string is its length, in four bytes.
    size = 4 * math.prod(tensor.shape) if tensor.datatype == "BYTES" else len(tensor.data)
    return RecordedTensor(tensor.name, tensor.datatype, tensor.shape, bytes(size), is_redacted=True)


def _without(parameters: dict[str, Any], names: Collection[str]) -> dict[str, ParameterValue]:
    return {name: type(value)() if name in names else value for name, value in parameters.items()}
