# SPDX-License-Identifier: Apache-2.0
"""gRPC's status codes, the exception that has one, and the encoding of its message."""

from __future__ import annotations

import enum
import re

_UNSAFE = re.compile(rb"[^ -$&-~]")  # anything but printable ASCII, and the percent sign
_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")


class GrpcStatus(enum.IntEnum):
    """The outcome of a call."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class GrpcError(Exception):
    """An error that ends a call with a status."""

    def __init__(self, status: GrpcStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def percent_encode(message: str, max_bytes: int | None = None) -> bytes:
    """Returns a status message for `grpc-message`, truncated to `max_bytes`."""
    raw = message[:max_bytes].encode("utf-8", "replace")  # a client can cause very long texts
    encoded = _UNSAFE.sub(lambda match: b"%%%02X" % match[0][0], raw)
    if max_bytes is None or len(encoded) <= max_bytes:
        return encoded
    cut = encoded[:max_bytes]
    escape = cut.rfind(b"%", max(0, max_bytes - 2))
    return cut if escape < 0 else cut[:escape]


def percent_decode(field: bytes) -> str:
    """Returns the message in a `grpc-message` field; invalid escapes are left unchanged."""
    raw = _ESCAPE.sub(lambda match: bytes((int(match[1], 16),)), field)
    return raw.decode("utf-8", "replace")
