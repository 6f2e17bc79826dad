# SPDX-License-Identifier: Apache-2.0
"""HTTP/2 (RFC 9113) as a gRPC server needs it, without I/O: bytes in, events and bytes out."""

from __future__ import annotations

from pytriton.wire.http2.connection import Connection
from pytriton.wire.http2.errors import ErrorCode, LocalProtocolError
from pytriton.wire.http2.events import (
    ConnectionTerminated,
    DataPlaced,
    DataReceived,
    Event,
    GoAwayReceived,
    PingAcknowledged,
    RequestReceived,
    StreamReset,
    TrailersReceived,
    WriteResumed,
)
from pytriton.wire.http2.header_encoding import encode_header_block
from pytriton.wire.http2.header_rules import RequestHead
from pytriton.wire.http2.limits import Limits
from pytriton.wire.http2.receiving import Unfinished

__all__ = [
    "Connection",
    "ConnectionTerminated",
    "DataPlaced",
    "DataReceived",
    "ErrorCode",
    "Event",
    "GoAwayReceived",
    "Limits",
    "LocalProtocolError",
    "PingAcknowledged",
    "RequestHead",
    "RequestReceived",
    "StreamReset",
    "TrailersReceived",
    "Unfinished",
    "WriteResumed",
    "encode_header_block",
]
