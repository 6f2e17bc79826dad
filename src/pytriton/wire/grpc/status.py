# SPDX-License-Identifier: Apache-2.0
"""gRPC's status codes, the error that carries one, and how its message is written."""

from __future__ import annotations

import enum
import re

_UNSAFE = re.compile(rb"[^ -$&-~]")  # all but printable ASCII, and the percent sign itself
_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")


class Status(enum.IntEnum):
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
    """A call ends with this status."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def percent_encode(message: str, max_bytes: int | None = None) -> bytes:
    """A status message as `grpc-message` has it, cut where it is longer than `max_bytes`."""
    raw = message[:max_bytes].encode("utf-8", "replace")  # a client may make it very long
    encoded = _UNSAFE.sub(lambda match: b"%%%02X" % match[0][0], raw)
    if max_bytes is None or len(encoded) <= max_bytes:
        return encoded
    cut = encoded[:max_bytes]
    escape = cut.rfind(b"%", max(0, max_bytes - 2))
    return cut if escape < 0 else cut[:escape]


def percent_decode(field: bytes) -> str:
    """The message in a `grpc-message` field; what is no valid escape stays as it is."""
    raw = _ESCAPE.sub(lambda match: bytes((int(match[1], 16),)), field)
    return raw.decode("utf-8", "replace")
