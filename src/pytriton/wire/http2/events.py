# SPDX-License-Identifier: Apache-2.0
"""What a connection tells its owner, in the order in which it happened."""

from __future__ import annotations

import msgspec

from pytriton.wire.http2.errors import ErrorCode
from pytriton.wire.http2.header_rules import Field, RequestHead


class RequestReceived(msgspec.Struct, gc=False):
    """A stream was opened; with `end_stream` the request has no body."""

    stream_id: int
    head: RequestHead
    end_stream: bool


class DataReceived(msgspec.Struct, gc=False):
    """A part of a request's body, to be given back with `Connection.acknowledge` once used.

    Frames in a row of one `receive` may share one. A memoryview keeps what `receive` got alive.
    """

    stream_id: int
    data: bytes | bytearray | memoryview
    end_stream: bool


class DataPlaced(msgspec.Struct, gc=False):
    """A part of a request's body is in the memory that `Connection.place` gave; else as above."""

    stream_id: int
    size: int
    end_stream: bool


class TrailersReceived(msgspec.Struct, gc=False):
    """The request ended with trailers."""

    stream_id: int
    fields: tuple[Field, ...]


class StreamReset(msgspec.Struct, gc=False):
    """An open stream is gone: the peer reset it, or we did because the peer broke a rule of it."""

    stream_id: int
    code: int
    by_peer: bool
    message: str


class WriteResumed(msgspec.Struct, gc=False):
    """The queue of a stream whose `send_data` asked for a pause has drained."""

    stream_id: int


class PingAcknowledged(msgspec.Struct, gc=False):
    """The peer answered a ping."""

    payload: bytes


class GoAwayReceived(msgspec.Struct, gc=False):
    """The peer is going to leave; its open streams go on."""

    last_stream_id: int
    code: int
    debug: bytes


class ConnectionTerminated(msgspec.Struct, gc=False):
    """The connection ended with our GOAWAY: write what is left, then close. No event follows."""

    code: ErrorCode
    message: str


Event = (
    RequestReceived
    | DataReceived
    | DataPlaced
    | TrailersReceived
    | StreamReset
    | WriteResumed
    | PingAcknowledged
    | GoAwayReceived
    | ConnectionTerminated
)
