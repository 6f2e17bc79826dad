# SPDX-License-Identifier: Apache-2.0
"""Parses the head of a gRPC call from the head of an HTTP/2 request."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from pytriton.protocol.grpc.compression import IDENTITY, SUPPORTED
from pytriton.protocol.grpc.metadata import Metadata, parse_metadata
from pytriton.protocol.grpc.status import GrpcError, GrpcStatus
from pytriton.protocol.http2.header_rules import Http2RequestHead

_CONTENT_TYPE = b"application/grpc"
_METHOD_NOT_ALLOWED = 405
_UNSUPPORTED_MEDIA_TYPE = 415
_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNIT_NS = {
    b"H": 3_600_000_000_000,
    b"M": 60_000_000_000,
    b"S": 1_000_000_000,
    b"m": 1_000_000,
    b"u": 1_000,
    b"n": 1,
}


class CallHead(msgspec.Struct, gc=False):
    """The head of a call; calls with equal header blocks may share an object.

    If the call cannot be served, either `http_status` or `error` is set.
    """

    path: str  # /package.Service/Method
    timeout_ns: int | None = None
    encoding: str = IDENTITY  # of the request's messages
    accepted_encodings: tuple[str, ...] = ()  # for the response's messages
    metadata: Metadata = ()
    http_status: int | None = None  # the answer if the request is not gRPC
    error: GrpcError | None = None
    columns: Any = None  # for the layer above: what may serve requests with this head at once


def parse_call(head: Http2RequestHead) -> CallHead:
    """Returns the head of a call; it is parsed once for every request head."""
    call: CallHead | None = head.memo
    if call is None:
        call = head.memo = _parse(head)
    return call


def _parse(head: Http2RequestHead) -> CallHead:
    if head.method != "POST":
        return CallHead(head.path, http_status=_METHOD_NOT_ALLOWED)
    fields = dict(head.fields)
    if not _is_grpc(fields.get(b"content-type", b"")):
        return CallHead(head.path, http_status=_UNSUPPORTED_MEDIA_TYPE)
    try:
        timeout = fields.get(b"grpc-timeout")
        return CallHead(
            head.path,
            timeout_ns=None if timeout is None else parse_timeout_ns(timeout),
            encoding=_request_encoding(fields.get(b"grpc-encoding", b"")),
            accepted_encodings=_accepted_encodings(fields.get(b"grpc-accept-encoding", b"")),
            metadata=parse_metadata(head.fields),
        )
    except GrpcError as error:
        # A new exception without a traceback: that would refer to `head`, which refers to the
        # result. The garbage collector cannot free this cycle because these records have gc=False.
        return CallHead(head.path, error=GrpcError(error.status, error.message))


def _is_grpc(content_type: bytes) -> bool:
    if not content_type.startswith(_CONTENT_TYPE):
        return False
    return content_type[len(_CONTENT_TYPE) :][:1] in (b"", b"+", b";")


def _request_encoding(field: bytes) -> str:
    encoding = field.decode("latin-1") or IDENTITY
    if encoding not in SUPPORTED:
        message = f"expected grpc-encoding to be one of {', '.join(SUPPORTED)}, got {encoding!r}"
        raise GrpcError(GrpcStatus.UNIMPLEMENTED, message)
    return encoding


def _accepted_encodings(field: bytes) -> tuple[str, ...]:
    return tuple(name for part in field.split(b",") if (name := part.strip().decode("latin-1")))


def parse_timeout_ns(field: bytes) -> int:
    """Returns the nanoseconds of a grpc-timeout field; GrpcError if it is malformed."""
    match = _TIMEOUT.fullmatch(field)
    if match is None:
        message = f"expected grpc-timeout of 1 to 8 digits and a unit (HMSmun), got {field[:32]!r}"
        raise GrpcError(GrpcStatus.INTERNAL, message)
    return int(match[1]) * _UNIT_NS[match[2]]
