# SPDX-License-Identifier: Apache-2.0
"""gRPC over HTTP/2, without I/O: calls, messages, compression, statuses and their header blocks."""

from __future__ import annotations

from pytriton.wire.grpc.calls import CallHead, parse_call
from pytriton.wire.grpc.compression import (
    CompressionLevel,
    Inflation,
    compress,
    encoding_for_level,
)
from pytriton.wire.grpc.messages import MessageAssembler, message_prefix
from pytriton.wire.grpc.metadata import Metadata
from pytriton.wire.grpc.responses import (
    OK_TRAILERS,
    RESPONSE_HEADS,
    encode_http_error,
    encode_response_head,
    encode_trailers,
    encode_trailers_only,
)
from pytriton.wire.grpc.status import GrpcError, Status

__all__ = [
    "OK_TRAILERS",
    "RESPONSE_HEADS",
    "CallHead",
    "CompressionLevel",
    "GrpcError",
    "Inflation",
    "MessageAssembler",
    "Metadata",
    "Status",
    "compress",
    "encode_http_error",
    "encode_response_head",
    "encode_trailers",
    "encode_trailers_only",
    "encoding_for_level",
    "message_prefix",
    "parse_call",
]
