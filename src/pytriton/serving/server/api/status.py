# SPDX-License-Identifier: Apache-2.0
"""The HTTP and gRPC status of each error kind. No other module maps one to the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.base.errors import ErrorCode

if TYPE_CHECKING:
    from pytriton.base.errors import ServerError
    from pytriton.serving.server.access.decisions import Denial

HTTP_STATUS: dict[ErrorCode, int] = {
    ErrorCode.UNKNOWN: 400,
    ErrorCode.INTERNAL: 500,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.INVALID_ARG: 400,
    ErrorCode.UNAVAILABLE: 503,
    ErrorCode.UNSUPPORTED: 501,
    ErrorCode.ALREADY_EXISTS: 400,
    ErrorCode.CANCELLED: 400,
    ErrorCode.RESOURCE_EXHAUSTED: 429,
    ErrorCode.PERMISSION_DENIED: 403,
}
HTTP_RESTRICTED = 403  # a restricted API without its header

GRPC_STATUS: dict[ErrorCode, int] = {
    ErrorCode.UNKNOWN: 2,
    ErrorCode.INTERNAL: 13,
    ErrorCode.NOT_FOUND: 5,
    ErrorCode.INVALID_ARG: 3,
    ErrorCode.UNAVAILABLE: 14,
    ErrorCode.UNSUPPORTED: 12,
    ErrorCode.ALREADY_EXISTS: 6,
    ErrorCode.CANCELLED: 1,
    ErrorCode.RESOURCE_EXHAUSTED: 8,
    ErrorCode.PERMISSION_DENIED: 7,
}
GRPC_RESTRICTED = GRPC_STATUS[ErrorCode.UNAVAILABLE]


def retry_header(error: ServerError) -> bytes:
    """Returns the header line that says when a client may try again; empty if nobody knows."""
    return b"Retry-After: %d\r\n" % error.retry_after_s if error.retry_after_s else b""


def retry_metadata(error: ServerError | Denial) -> tuple[tuple[bytes, bytes], ...]:
    """Returns the same as fields of the trailers of a call."""
    return ((b"retry-after", b"%d" % error.retry_after_s),) if error.retry_after_s else ()
