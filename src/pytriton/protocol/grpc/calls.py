# SPDX-License-Identifier: Apache-2.0
"""The heads of gRPC calls: parses that of a request, and makes the header blocks of responses.

Our header blocks suit any connection, so common ones are made at import.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import TYPE_CHECKING, Any

import msgspec

from pytriton.protocol.grpc.messages import IDENTITY, SUPPORTED
from pytriton.protocol.grpc.status import GrpcError, GrpcStatus, percent_encode
from pytriton.protocol.http2.headers import Http2RequestHead, encode_header_block

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytriton.protocol.http2.headers import Field

Metadata = tuple[tuple[str, "str | bytes"], ...]

_BINARY_SUFFIX = "-bin"
_PROTOCOL_FIELDS = frozenset(
    (
        b"te",
        b"content-type",
        b"content-length",
        b"grpc-timeout",
        b"grpc-encoding",
        b"grpc-accept-encoding",
        b"grpc-message-type",
    ),
)


def parse_metadata(fields: Iterable[Field]) -> Metadata:
    """Returns the metadata of a request in order; GrpcError if a binary value is not base64."""
    metadata: list[tuple[str, str | bytes]] = []
    for name, value in fields:
        if name in _PROTOCOL_FIELDS:
            continue
        key = name.decode("ascii")
        if key.endswith(_BINARY_SUFFIX):
            # A proxy may have joined the values of one key with commas.
            metadata.extend((key, _decode_binary(key, part)) for part in value.split(b","))
        else:
            metadata.append((key, value.decode("latin-1")))
    return tuple(metadata)


def _decode_binary(key: str, value: bytes) -> bytes:
    stripped = value.strip(b" ").rstrip(b"=")
    padded = stripped + b"=" * (-len(stripped) % 4)
    try:
        return base64.b64decode(padded, validate=True)
    except binascii.Error as error:
        message = f"expected metadata {key} in base64, got {value[:32]!r}"
        raise GrpcError(GrpcStatus.INTERNAL, message) from error


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
    principal: str = ""  # for the layer above: who sends them; empty: nobody that is known
    grant: Any = None  # for the layer above: by which policy, and until when


def parse_call(head: Http2RequestHead) -> CallHead:
    """Returns the head of a call; it is parsed once for every request head."""
    call: CallHead | None = head.memo
    if call is None:
        call = head.memo = (head.base and _extend(head.base, head)) or _parse(head)
    return call


def _extend(base: Http2RequestHead, head: Http2RequestHead) -> CallHead | None:
    """Returns what `_parse` would, from the call of the first fields; None if it has to say why."""
    first = parse_call(base)
    if first.http_status is not None or first.error is not None:
        return None
    timeout_ns = first.timeout_ns
    fields = head.fields[len(base.fields) :]
    try:
        for name, value in fields:
            if name == b"grpc-timeout":
                timeout_ns = parse_timeout_ns(value)
        metadata = parse_metadata(fields)
    except GrpcError:
        return None
    return CallHead(
        first.path,
        timeout_ns,
        first.encoding,
        first.accepted_encodings,
        first.metadata + metadata,
    )


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


_HEAD: list[Field] = [(b":status", b"200"), (b"content-type", b"application/grpc")]
_ACCEPT_ENCODING: Field = (b"grpc-accept-encoding", ", ".join(SUPPORTED).encode())
# gRPC's C core may reject metadata of more than 8 KiB, and then loses the status, too.
_MAX_MESSAGE_BYTES = 7 << 10


def encode_trailers(status: GrpcStatus, message: str = "", metadata: Iterable[Field] = ()) -> bytes:
    """Returns the trailers of a response; a very long message is truncated."""
    if not message and not metadata:
        return _BARE_TRAILERS[status]
    return encode_header_block([*_trailer_fields(status, message), *metadata])


def encode_trailers_only(
    status: GrpcStatus, message: str = "", metadata: Iterable[Field] = ()
) -> bytes:
    """Returns a response without any message, to be sent as HEADERS with END_STREAM."""
    fields = [*_HEAD, *_trailer_fields(status, message), *metadata]
    if status is GrpcStatus.UNIMPLEMENTED:
        fields.append(_ACCEPT_ENCODING)  # the reason may be the client's encoding
    return encode_header_block(fields)


def encode_http_error(http_status: int) -> bytes:
    """Returns the response to a request that is not gRPC, to be sent like the one above."""
    fields = [(b":status", str(http_status).encode())]
    if http_status == 405:
        fields.append((b"allow", b"POST"))
    return encode_header_block(fields)


def _trailer_fields(status: GrpcStatus, message: str) -> list[Field]:
    fields = [(b"grpc-status", str(int(status)).encode())]
    if message:
        fields.append((b"grpc-message", percent_encode(message, _MAX_MESSAGE_BYTES)))
    return fields


_BARE_TRAILERS = {status: encode_header_block(_trailer_fields(status, "")) for status in GrpcStatus}
OK_TRAILERS = _BARE_TRAILERS[GrpcStatus.OK]
RESPONSE_HEADS = {
    IDENTITY: encode_header_block(_HEAD),
    **{
        encoding: encode_header_block([*_HEAD, (b"grpc-encoding", encoding.encode())])
        for encoding in SUPPORTED
        if encoding != IDENTITY
    },
}
