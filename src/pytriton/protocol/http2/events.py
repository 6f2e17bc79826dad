# SPDX-License-Identifier: Apache-2.0
"""The events that a connection returns to its owner, in order."""

from __future__ import annotations

import msgspec

from pytriton.protocol.http2.frames import Http2ErrorCode
from pytriton.protocol.http2.headers import Field, Http2RequestHead


class RequestReceived(msgspec.Struct, gc=False):
    """A stream was opened; with `end_stream` this is the whole request, and `body` is its body.

    A body has to be acknowledged like `DataReceived`.
    """

    stream_id: int
    head: Http2RequestHead
    end_stream: bool
    body: bytes = b""


class DataReceived(msgspec.Struct, gc=False):
    """A part of a request's body; call `Http2Connection.acknowledge` once it is consumed.

    Consecutive frames in one `receive` may share an event. If `data` is a memoryview, it keeps all
    the bytes that were passed to `receive` alive.
    """

    stream_id: int
    data: bytes | bytearray | memoryview
    end_stream: bool


class DataBuffered(msgspec.Struct, gc=False):
    """A part of a request's body was written to the buffer that `Http2Connection.set_buffer` set.

    It has to be acknowledged like `DataReceived`.
    """

    stream_id: int
    size: int
    end_stream: bool


class TrailersReceived(msgspec.Struct, gc=False):
    """The request ended with trailers."""

    stream_id: int
    fields: tuple[Field, ...]


class StreamReset(msgspec.Struct, gc=False):
    """An open stream was reset, by the peer or by us because of a violation by the peer."""

    stream_id: int
    code: int
    by_peer: bool
    message: str


class WriteResumed(msgspec.Struct, gc=False):
    """The queue of a stream is short again after `send_data` returned False."""

    stream_id: int


class PingAcknowledged(msgspec.Struct, gc=False):
    """The peer answered a ping."""

    payload: bytes


class GoAwayReceived(msgspec.Struct, gc=False):
    """The peer is going to close the connection; its open streams continue."""

    last_stream_id: int
    code: int
    debug: bytes


class InputLeft(msgspec.Struct, gc=False):
    """More was received than is processed at once: call `Http2Connection.receive_rest`, or `keep`.

    Until then, `receive` must not be called.
    """


class ConnectionTerminated(msgspec.Struct, gc=False):
    """We ended the connection with GOAWAY: end the streams, write the rest of the output, close.

    No event follows.
    """

    code: Http2ErrorCode
    message: str


Event = (
    RequestReceived
    | DataReceived
    | DataBuffered
    | TrailersReceived
    | StreamReset
    | WriteResumed
    | PingAcknowledged
    | GoAwayReceived
    | InputLeft
    | ConnectionTerminated
)
