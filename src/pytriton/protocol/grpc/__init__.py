# SPDX-License-Identifier: Apache-2.0
"""gRPC over HTTP/2, without I/O: calls, messages, compression, statuses and their header blocks."""

from __future__ import annotations

from pytriton.protocol.grpc.calls import (
    OK_TRAILERS,
    RESPONSE_HEADS,
    CallHead,
    Metadata,
    encode_http_error,
    encode_trailers,
    encode_trailers_only,
    parse_call,
)
from pytriton.protocol.grpc.messages import (
    CompressionLevel,
    Inflation,
    MessageAssembler,
    encoding_for_level,
    message_prefix,
)
from pytriton.protocol.grpc.status import GrpcError, GrpcStatus

__all__ = [
    "OK_TRAILERS",
    "RESPONSE_HEADS",
    "CallHead",
    "CompressionLevel",
    "GrpcError",
    "GrpcStatus",
    "Inflation",
    "MessageAssembler",
    "Metadata",
    "encode_http_error",
    "encode_trailers",
    "encode_trailers_only",
    "encoding_for_level",
    "message_prefix",
    "parse_call",
]
