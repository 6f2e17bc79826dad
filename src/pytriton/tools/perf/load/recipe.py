# SPDX-License-Identifier: Apache-2.0
"""Messages between the measuring process and those that make load, over a pair of sockets.

Requests are bytes, with room for what changes in each. Everything slow is done before: the process
that makes load encodes no tensor.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from pytriton.client.kserve.address import Tls
from pytriton.client.kserve.records import PlainTensor
from pytriton.tools.perf.load.plan import Level, Sequences

M = TypeVar("M")

_LENGTH = struct.Struct("<Q")
_RECEIVE_BYTES = 1 << 20
_encode = msgspec.msgpack.Encoder().encode


class RequestTemplate(msgspec.Struct, frozen=True):
    """One request, cut where the sequence (and over a gRPC stream the id) is put in.

    Over HTTP, `before` and `after` are the JSON around the members of the sequence, and `binary`
    has the tensors behind it; `head` replaces that of the recipe. Over gRPC, `before` is the whole
    message, to whose end fields can be added in any order.
    """

    before: bytes
    after: bytes = b""
    binary: bytes = b""
    head: bytes = b""


class Recipe(msgspec.Struct, frozen=True):
    """All that a process of the generator needs to know.

    Attributes:
        is_grpc: gRPC, or else HTTP.
        host: The server's host.
        port: The server's port.
        head: Over HTTP the head of requests without their lengths, over gRPC the header block.
        streams: Streams of requests.
        is_streaming: Requests have streams of responses.
        is_decoupled: The number of responses of a request is open.
        has_binary: Whether an HTTP request says how long its JSON is.
        encoding: The compression of requests: empty, gzip or deflate.
        expected: For each request, counted through all streams, the right outputs.
        sequences: How requests form sequences.
        tls: Encrypted connections; None: plain ones.
        keeps_outputs: Whether answers are kept.
        connections: Lanes whose connections are opened before the first request.
        is_exact: Whether requests have to begin at their times, at the cost of processor time.
    """

    is_grpc: bool
    host: str
    port: int
    head: bytes
    streams: list[list[RequestTemplate]]
    is_streaming: bool = False
    is_decoupled: bool = False
    has_binary: bool = False
    encoding: str = ""
    expected: list[list[PlainTensor] | None] = []
    sequences: Sequences | None = None
    tls: Tls | None = None
    keeps_outputs: bool = False
    connections: int = 1
    is_exact: bool = False


class StartLoad(msgspec.Struct, frozen=True, tag=True):
    """The first message to a process."""

    recipe: Recipe


class TakeLevel(msgspec.Struct, frozen=True, tag=True):
    """Take up a level; `workers` processes share it, of which this is `worker`."""

    level: Level
    requests: int | None
    worker: int
    workers: int
    number: int  # tells the levels apart in `LevelDone`


class Take(msgspec.Struct, frozen=True, tag=True):
    """Answer with `Taken`."""


class StopLoad(msgspec.Struct, frozen=True, tag=True):
    """End, after the requests under way or at once; the last `Taken` follows."""

    at_once: bool


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The process reached the server, or it says why not."""

    problem: str = ""


class LevelDone(msgspec.Struct, frozen=True, tag=True):
    """All that a level asks for has ended."""

    number: int


class Taken(msgspec.Struct, frozen=True, tag=True):
    """What was recorded since the last time."""

    rows: bytes
    response_ns: bytes
    errors: dict[str, int]
    since_ns: int
    taken_ns: int
    cpu_ns: int
    waiting_ns: int
    lag_ns: int
    events: int
    is_last: bool = False
    answers: list[list[bytes]] = []  # the body or message of each response of each row
    json_bytes: list[list[int]] = []  # over HTTP, how much of each body is JSON; -1: all


Order = StartLoad | TakeLevel | Take | StopLoad
Report = Ready | LevelDone | Taken
decode_order = msgspec.msgpack.Decoder(Order).decode
decode_report = msgspec.msgpack.Decoder(Report).decode


class ControlClosedError(Exception):
    """The other process is gone."""


def send(connection: socket.socket, message: Order | Report) -> None:
    """Send a message; ControlClosedError if the other process is gone."""
    data = _encode(message)
    try:
        connection.sendall(_LENGTH.pack(len(data)) + data)
    except OSError as error:
        raise ControlClosedError from error


class LoadMessageInbox(Generic[M]):
    """Messages of the other process; an interrupt in between does not lose a part of one.

    Args:
        connection: The socket to the process.
        decode: Reads a message.
    """

    def __init__(self, connection: socket.socket, decode: Callable[[bytes], M]) -> None:
        self._connection = connection
        self._decode = decode
        self._data = bytearray()

    def receive(self) -> M:
        """Wait for a message; ControlClosedError if the process is gone."""
        while not self.has_message:
            try:
                received = self._connection.recv(_RECEIVE_BYTES)
            except OSError as error:
                raise ControlClosedError from error
            if not received:
                raise ControlClosedError
            self._data += received
        end = _LENGTH.size + _LENGTH.unpack_from(self._data)[0]
        message = self._decode(bytes(memoryview(self._data)[_LENGTH.size : end]))
        del self._data[:end]
        return message

    @property
    def has_message(self) -> bool:
        """Whether `receive` returns at once."""
        size = len(self._data) - _LENGTH.size
        return size >= 0 and size >= _LENGTH.unpack_from(self._data)[0]
