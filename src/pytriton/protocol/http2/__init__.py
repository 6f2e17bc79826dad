# SPDX-License-Identifier: Apache-2.0
"""The parts of HTTP/2 (RFC 9113) that a gRPC server needs, without I/O.

It takes received bytes and returns events and the bytes to send.
"""

from __future__ import annotations

from pytriton.protocol.http2.connection import Http2Connection
from pytriton.protocol.http2.events import (
    ConnectionTerminated,
    DataBuffered,
    DataReceived,
    Event,
    GoAwayReceived,
    InputLeft,
    PingAcknowledged,
    RequestReceived,
    StreamReset,
    TrailersReceived,
    WriteResumed,
)
from pytriton.protocol.http2.frames import Http2ErrorCode, LocalProtocolError
from pytriton.protocol.http2.headers import Http2RequestHead, encode_header_block
from pytriton.protocol.http2.limits import Http2Limits
from pytriton.protocol.http2.receiving import TOO_MANY_PINGS, IncompleteInput

__all__ = [
    "TOO_MANY_PINGS",
    "ConnectionTerminated",
    "DataBuffered",
    "DataReceived",
    "Event",
    "GoAwayReceived",
    "Http2Connection",
    "Http2ErrorCode",
    "Http2Limits",
    "Http2RequestHead",
    "IncompleteInput",
    "InputLeft",
    "LocalProtocolError",
    "PingAcknowledged",
    "RequestReceived",
    "StreamReset",
    "TrailersReceived",
    "WriteResumed",
    "encode_header_block",
]
