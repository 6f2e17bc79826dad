# SPDX-License-Identifier: Apache-2.0
"""Channels of gRPC to a server, and the calls of its service."""

from __future__ import annotations

from typing import Any

import grpc

from pytriton.base.protos import service_pb2
from pytriton.client.kserve.address import Tls
from pytriton.client.kserve.messages import SERVICE

# By default, a channel that lost its server waits up to two minutes before it reconnects.
_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


def open_channel(library: Any, place: str, tls: Tls | None) -> Any:
    """Returns a channel, which connects when it is first used.

    Args:
        library: `grpc` or `grpc.aio`.
        place: host and port.
        tls: how connections are encrypted; None: they are not.

    Raises:
        OSError: A file of the TLS settings cannot be read.
    """
    if tls is None:
        return library.insecure_channel(place, _OPTIONS)
    credentials = grpc.ssl_channel_credentials(**tls.grpc_files())
    return library.secure_channel(place, credentials, _OPTIONS)


def unary_of(channel: Any, method: str) -> Any:
    """Returns what calls a method that answers once."""
    return channel.unary_unary(
        f"{SERVICE}/{method}",
        request_serializer=getattr(service_pb2, f"{method}Request").SerializeToString,
        response_deserializer=getattr(service_pb2, f"{method}Response").FromString,
    )


def stream_of(channel: Any) -> Any:
    """Returns what starts a stream of requests for inference and their responses."""
    return channel.stream_stream(
        f"{SERVICE}/ModelStreamInfer",
        request_serializer=service_pb2.ModelInferRequest.SerializeToString,
        response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
    )
