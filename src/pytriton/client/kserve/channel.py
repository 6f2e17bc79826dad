# SPDX-License-Identifier: Apache-2.0
"""A channel of gRPC to a server, and the calls of its service."""

from __future__ import annotations

from typing import Any

import grpc

from pytriton.base.protos import service_pb2
from pytriton.client.kserve.address import Tls
from pytriton.client.kserve.messages import SERVICE

Metadata = tuple[tuple[str, str], ...]

# By default, a channel that lost its server waits up to two minutes before it reconnects.
_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


class GrpcChannel:
    """A channel, which connects when it is first used.

    Args:
        library: `grpc` or `grpc.aio`, whose calls are awaited.
        place: host and port.
        tls: how connections are encrypted; None: they are not.

    Raises:
        OSError: A file of the TLS settings cannot be read.
    """

    def __init__(self, library: Any, place: str, tls: Tls | None) -> None:
        self._calls: dict[str, Any] = {}
        if tls is None:
            self._channel = library.insecure_channel(place, _OPTIONS)
        else:
            credentials = grpc.ssl_channel_credentials(**tls.grpc_files())
            self._channel = library.secure_channel(place, credentials, _OPTIONS)

    def call(
        self, method: str, request: Any, timeout_s: float | None, metadata: Metadata | None
    ) -> Any:
        """Call a method that answers once; a request may be given by the fields of its message."""
        call = self._calls.get(method)
        if call is None:
            call = self._calls[method] = self._channel.unary_unary(
                f"{SERVICE}/{method}",
                request_serializer=getattr(service_pb2, f"{method}Request").SerializeToString,
                response_deserializer=getattr(service_pb2, f"{method}Response").FromString,
            )
        if isinstance(request, dict):
            request = getattr(service_pb2, f"{method}Request")(**request)
        return call(request, timeout=timeout_s, metadata=metadata)

    def stream(self, requests: Any, metadata: Metadata | None) -> Any:
        """Start a stream of requests for inference; returns an iterator that can be cancelled."""
        start = self._channel.stream_stream(
            f"{SERVICE}/ModelStreamInfer",
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
        )
        return start(requests, metadata=metadata)

    def close(self) -> Any:
        return self._channel.close()
