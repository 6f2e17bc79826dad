# SPDX-License-Identifier: Apache-2.0
"""Header blocks of gRPC responses. They suit any connection, so common ones are made at import."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.protocol.grpc.calls import encode_metadata
from pytriton.protocol.grpc.messages import IDENTITY, SUPPORTED
from pytriton.protocol.grpc.status import GrpcStatus, percent_encode
from pytriton.protocol.http2.headers import encode_header_block

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytriton.protocol.http2.headers import Field

    Entries = Sequence[tuple[str, str | bytes]]

_HEAD: list[Field] = [(b":status", b"200"), (b"content-type", b"application/grpc")]
_ACCEPT_ENCODING: Field = (b"grpc-accept-encoding", ", ".join(SUPPORTED).encode())
# gRPC's C core may reject metadata of more than 8 KiB, and then loses the status, too.
_MAX_MESSAGE_BYTES = 7 << 10


def encode_response_head(encoding: str = IDENTITY, metadata: Entries = ()) -> bytes:
    """Returns the head of a response with messages in `encoding`."""
    fields = [*_HEAD, *encode_metadata(metadata)]
    if encoding != IDENTITY:
        fields.append((b"grpc-encoding", encoding.encode()))
    return encode_header_block(fields)


def encode_trailers(status: GrpcStatus, message: str = "", metadata: Entries = ()) -> bytes:
    """Returns the trailers of a response; a very long message is truncated."""
    if not message and not metadata:
        return _BARE_TRAILERS[status]
    return encode_header_block(_trailer_fields(status, message, metadata))


def encode_trailers_only(status: GrpcStatus, message: str = "") -> bytes:
    """Returns a response without any message, to be sent as HEADERS with END_STREAM."""
    fields = [*_HEAD, *_trailer_fields(status, message, ())]
    if status is GrpcStatus.UNIMPLEMENTED:
        fields.append(_ACCEPT_ENCODING)  # the reason may be the client's encoding
    return encode_header_block(fields)


def encode_http_error(http_status: int) -> bytes:
    """Returns the response to a request that is not gRPC, to be sent like the one above."""
    fields = [(b":status", str(http_status).encode())]
    if http_status == 405:
        fields.append((b"allow", b"POST"))
    return encode_header_block(fields)


def _trailer_fields(status: GrpcStatus, message: str, metadata: Entries) -> list[Field]:
    fields = [(b"grpc-status", str(int(status)).encode())]
    if message:
        fields.append((b"grpc-message", percent_encode(message, _MAX_MESSAGE_BYTES)))
    return fields + encode_metadata(metadata)


_BARE_TRAILERS = {
    status: encode_header_block(_trailer_fields(status, "", ())) for status in GrpcStatus
}
OK_TRAILERS = _BARE_TRAILERS[GrpcStatus.OK]
RESPONSE_HEADS = {encoding: encode_response_head(encoding) for encoding in SUPPORTED}
