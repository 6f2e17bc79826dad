# SPDX-License-Identifier: Apache-2.0
"""A call: what a client sends, how it behaves meanwhile, and what came of it. Records only.

A call is made by `generator.py`, sent by a client, and judged by `oracle.py` when it has ended.
"""

from __future__ import annotations

import dataclasses
import enum
import struct
import types
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

# What clients say of compression over HTTP, and the coding that the answer has to have.
ACCEPTED_CODINGS = {
    "": "",
    "gzip": "gzip",
    "deflate": "deflate",
    "deflate;q=0.5, gzip": "gzip",
    "identity;q=0.2, deflate": "deflate",
    "identity, gzip;q=0.1": "",
    "br": "",
}
_WINDOW_BITS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


def compress(data: bytes, coding: str) -> bytes:
    packer = zlib.compressobj(1, wbits=_WINDOW_BITS[coding])
    return packer.compress(data) + packer.flush()


def decompress(data: bytes, coding: str) -> bytes:
    """The plain data; raises ValueError if it is not compressed in this way, and whole."""
    unpacker = zlib.decompressobj(wbits=_WINDOW_BITS[coding])
    try:
        plain = unpacker.decompress(data)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError("the compressed data does not end with the body")
    return plain


# The letter of `struct` for each datatype that the models of the workload have.
STRUCT_CODES = {"INT32": "i", "INT64": "q", "UINT64": "Q", "FP32": "f", "BOOL": "?"}


class Port(enum.Enum):
    """The port of the server that a connection is for."""

    HTTP = "http"
    GRPC = "grpc"
    METRICS = "metrics"

    __hash__ = object.__hash__  # see `Kind`


class Kind(enum.Enum):
    """What is asked of the server."""

    INFER = "infer"  # HTTP: infer; gRPC: ModelInfer
    STREAM = "stream"  # HTTP: generate_stream; gRPC: a request of a ModelStreamInfer
    EVENTS = "events"  # HTTP: infer, answered by server-sent events
    GENERATE = "generate"  # HTTP
    CHAT = "chat"  # OpenAI's route, whole
    CHAT_STREAM = "chat_stream"  # OpenAI's route, as a stream
    COMPLETION = "completion"  # OpenAI's route that continues a prompt
    COMPLETION_STREAM = "completion_stream"
    LIVE = "live"
    READY = "ready"
    MODEL_READY = "model_ready"
    INDEX = "index"
    LOAD = "load"
    UNLOAD = "unload"
    STATISTICS = "statistics"
    METRICS = "metrics"
    REGISTER = "register"  # a region of shared memory, whose name is the text of the call
    UNREGISTER = "unregister"  # the same; without a text, all
    REGIONS = "regions"  # which regions there are; with a text, only this one
    INVALID = "invalid"  # bytes that the protocol or the model does not allow

    __hash__ = object.__hash__  # that of enums takes a microsecond, and tables by kind are common


OPENAI_KINDS = frozenset((Kind.CHAT, Kind.CHAT_STREAM, Kind.COMPLETION, Kind.COMPLETION_STREAM))
OPENAI_STREAMS = frozenset((Kind.CHAT_STREAM, Kind.COMPLETION_STREAM))
INFERENCES = OPENAI_KINDS | {Kind.INFER, Kind.STREAM, Kind.EVENTS, Kind.GENERATE}


class Form(enum.Enum):
    """How tensors are written."""

    BINARY = "binary"  # the binary tensor extension of HTTP; raw contents of gRPC
    TEXT = "text"  # JSON; typed contents of gRPC


class TensorData(NamedTuple):
    """A tensor as on the wire: `raw` has the bytes of the binary extension."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    raw: bytes

    def values(self) -> list[Any]:
        """The elements as Python objects, texts as bytes."""
        if self.datatype == "BYTES":
            return split_texts(self.raw)
        code = STRUCT_CODES[self.datatype]
        return list(struct.unpack(f"<{len(self.raw) // struct.calcsize(code)}{code}", self.raw))


def make_tensor(name: str, datatype: str, shape: tuple[int, ...], values: Any) -> TensorData:
    """A tensor of Python objects; texts are bytes."""
    if datatype == "BYTES":
        return TensorData(name, datatype, shape, join_texts(values))
    raw = struct.pack(f"<{len(values)}{STRUCT_CODES[datatype]}", *values)
    return TensorData(name, datatype, shape, raw)


def join_texts(texts: Any) -> bytes:
    return b"".join(len(each).to_bytes(4, "little") + each for each in texts)


def split_texts(raw: bytes) -> list[bytes]:
    """The texts of a BYTES tensor; raises ValueError if lengths do not fit."""
    texts = []
    at = 0
    while at < len(raw):
        end = at + 4 + int.from_bytes(raw[at : at + 4], "little")
        if end > len(raw):
            raise ValueError(f"a text of a BYTES tensor ends at {end} of {len(raw)} bytes")
        texts.append(raw[at + 4 : end])
        at = end
    return texts


@dataclasses.dataclass(slots=True, frozen=True)
class SequenceStep:
    """The place of a request in its sequence; `index` counts from 0."""

    id: int | str
    index: int
    is_start: bool
    is_end: bool


class Region(NamedTuple):
    """A part of an object of shared memory, which clients give a name."""

    key: str
    offset: int
    byte_size: int


class Place(NamedTuple):
    """Where a tensor is: a part of a region."""

    region: str
    offset: int
    byte_size: int


NO_PLACES: Mapping[str, Place] = types.MappingProxyType({})


class MemoryAct(NamedTuple):
    """What a client does with shared memory before it sends a call.

    Args:
        key: name of the object.
        size: makes it, if there is none of this name, or else changes its size; None takes its name
            away, while those that have it open keep it.
        only_makes: changes nothing of an object that is there.
    """

    key: str
    size: int | None
    only_makes: bool = True


class Cut(enum.Enum):
    """How a client ends its connection."""

    CLOSE = "close"  # what is written is still sent
    ABORT = "abort"  # at once
    HALF = "half"  # only its sending side


@dataclasses.dataclass(slots=True, frozen=True)
class Conduct:
    """What a client does with a call besides sending it and reading the answer.

    Args:
        piece_bytes: size of the pieces in which it sends; 0 sends the whole.
        piece_pause_s: time between two pieces.
        cancel_after_s: gives up that long after it began: over HTTP/2 it resets the call (or, on a
            ModelStreamInfer, the whole stream), over HTTP/1.1 it ends its connection.
        cut_after_sent_bytes: ends its connection when it has sent this much of the request.
        cut_after_received_bytes: ends its connection when it has this much of answers to the call.
        cut: how it ends its connection.
        read_pause_after_bytes: stops reading when it has received this much.
        read_pause_s: for how long it stops.
    """

    piece_bytes: int = 0
    piece_pause_s: float = 0.0
    cancel_after_s: float | None = None
    cut_after_sent_bytes: int | None = None
    cut_after_received_bytes: int | None = None
    cut: Cut = Cut.ABORT
    read_pause_after_bytes: int | None = None
    read_pause_s: float = 0.0

    @property
    def is_rude(self) -> bool:
        """Whether the client may leave before its answer is there."""
        return (
            self.cancel_after_s is not None
            or self.cut_after_sent_bytes is not None
            or self.cut_after_received_bytes is not None
        )


POLITE = Conduct()


class End(enum.Enum):
    """How a call ended, as its client saw it."""

    ANSWERED = "answered"  # the protocol said that it succeeded
    ERROR = "error"  # the protocol said why not: see status and error
    CANCELLED = "cancelled"  # the client cancelled it, the connection lives on
    CUT = "cut"  # its client ended the connection
    LOST = "lost"  # the connection ended for another reason
    RESET = "reset"  # the server reset the stream, see status for the code of HTTP/2
    UNSENT = "unsent"  # the connection ended, or was never there, before the first byte was sent
    BROKEN = "broken"  # the server said what the protocol does not allow

    __hash__ = object.__hash__  # see `Kind`


@dataclasses.dataclass(slots=True)
class Response:
    """One response of a model, or the document that a management request was answered with."""

    time_s: float
    id: str = ""
    model: str = ""
    version: str = ""
    outputs: tuple[TensorData, ...] = ()
    parameters: dict[str, Any] = dataclasses.field(default_factory=dict)
    document: Any = None  # of OpenAI's routes and of management


@dataclasses.dataclass(slots=True)
class Outcome:
    """What a client observed; times are those of its clock, None for what never was."""

    submitted_s: float | None = None
    began_s: float | None = None  # the first byte was written
    sent_s: float | None = None  # the last byte was written
    first_s: float | None = None  # the first response came
    last_s: float | None = None  # the last response came
    ended_s: float | None = None
    read_on_s: float | None = None  # when its client last read again, after it had stopped to
    end: End | None = None
    status: int | None = None  # of HTTP or gRPC
    error: str = ""
    responses: list[Response] = dataclasses.field(default_factory=list)
    violations: list[str] = dataclasses.field(default_factory=list)
    overtook: tuple[Call, ...] = ()  # earlier calls of its ModelStreamInfer that were still open
    ends: int = 0  # how often it ended; more than once is a finding
    received_bytes: int = 0


@dataclasses.dataclass(slots=True, eq=False)
class Call:
    """One request.

    Args:
        number: unique in a run; values of inputs and the id of the request are made from it.
        kind: what is asked.
        port: the protocol.
        model: name of the model, if it is about one.
        inputs: what is sent to the model.
        form: how tensors are written, both ways.
        coding: how its body or message is compressed, if it is.
        accepts: what its client says of the compression of the answer.
        text: the words of a chat, or the name of a region.
        payload: of an invalid call, the bytes that follow whatever its client does at first; a
            request of HTTP/1.1 becomes one of HTTP/2 if its client speaks that. Of another call
            over gRPC, entries of SETTINGS that its client sends before it.
        deadline_s: the time limit that the server is told over gRPC.
        timeout_us: queue timeout of the request, 0 for none.
        priority: queue priority of the request, 0 for none.
        sequence: its place in a sequence.
        lane: number of the ModelStreamInfer on its connection that it is a request of.
        closes_lane: whether it is the last request of its ModelStreamInfer.
        stream_length: how many responses it gets, for a decoupled model.
        work_s: how long the model takes for it at least, of which it is told by its inputs.
        region: the region that is registered, or in which the client believes its tensors to be.
        places: of the tensors that are in a region, inputs and outputs, by name.
        acts: what the client does with shared memory before.
        conduct: what the client does with it.
        pause_s: how long its client waits before it sends it.
        waits: whether its client waits for the end of all calls before it.
    """

    number: int
    kind: Kind
    port: Port
    model: str = ""
    inputs: tuple[TensorData, ...] = ()
    form: Form = Form.BINARY
    coding: str = ""
    accepts: str = ""
    text: str = ""
    payload: bytes = b""
    deadline_s: float | None = None
    timeout_us: int = 0
    priority: int = 0
    sequence: SequenceStep | None = None
    lane: int | None = None
    closes_lane: bool = False
    stream_length: int = 1
    work_s: float = 0.0
    region: Region | None = None
    places: Mapping[str, Place] = dataclasses.field(default_factory=lambda: NO_PLACES)
    acts: tuple[MemoryAct, ...] = ()
    conduct: Conduct = POLITE
    pause_s: float = 0.0
    waits: bool = True
    outcome: Outcome = dataclasses.field(default_factory=Outcome)
    memory: Any = None  # of the oracle

    @property
    def id(self) -> str:
        """The id of the request; its length is fixed, so that bytes around it repeat."""
        return f"{self.number:010d}"

    def output_places(self) -> list[tuple[str, Place]]:
        """The names of outputs in a region, with their places."""
        if not self.places:
            return []
        inputs = {each.name for each in self.inputs}
        return [each for each in self.places.items() if each[0] not in inputs]

    def __str__(self) -> str:
        outcome = self.outcome
        how = "open" if outcome.end is None else outcome.end.value
        return (
            f"call {self.number} ({self.port.value} {self.kind.value} {self.model}"
            f"{f' of sequence {self.sequence.id}' if self.sequence else ''}: {how}, "
            f"status {outcome.status}, {len(outcome.responses)} responses, "
            f"began {outcome.began_s}, ended {outcome.ended_s})"
        )
