# SPDX-License-Identifier: Apache-2.0
"""The HTTP and gRPC status of each error kind. No other module maps one to the other."""

from __future__ import annotations

from pytriton.base.errors import ErrorCode

HTTP_STATUS: dict[ErrorCode, int] = {
    ErrorCode.UNKNOWN: 400,
    ErrorCode.INTERNAL: 500,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.INVALID_ARG: 400,
    ErrorCode.UNAVAILABLE: 503,
    ErrorCode.UNSUPPORTED: 501,
    ErrorCode.ALREADY_EXISTS: 400,
    ErrorCode.CANCELLED: 400,
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
}
GRPC_RESTRICTED = GRPC_STATUS[ErrorCode.UNAVAILABLE]
