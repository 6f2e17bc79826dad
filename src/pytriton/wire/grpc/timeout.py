# SPDX-License-Identifier: Apache-2.0
"""The `grpc-timeout` field."""

from __future__ import annotations

import re

from pytriton.wire.grpc.status import GrpcError, Status

_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNIT_NS = {
    b"H": 3_600_000_000_000,
    b"M": 60_000_000_000,
    b"S": 1_000_000_000,
    b"m": 1_000_000,
    b"u": 1_000,
    b"n": 1,
}


def parse_timeout_ns(field: bytes) -> int:
    """The nanoseconds that a client gives a call; GrpcError where the field is malformed."""
    match = _TIMEOUT.fullmatch(field)
    if match is None:
        message = f"expected grpc-timeout of 1 to 8 digits and a unit (HMSmun), got {field[:32]!r}"
        raise GrpcError(Status.INTERNAL, message)
    return int(match[1]) * _UNIT_NS[match[2]]
