# SPDX-License-Identifier: Apache-2.0
"""Custom metadata: the header fields of the application. Keys that end in `-bin` have bytes."""

from __future__ import annotations

import base64
import binascii
import re
from typing import TYPE_CHECKING

from pytriton.protocol.grpc.status import GrpcError, GrpcStatus

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytriton.protocol.http2.header_rules import Field

Metadata = tuple[tuple[str, "str | bytes"], ...]

_BINARY_SUFFIX = "-bin"
_PROTOCOL_FIELDS = frozenset(
    (
        b"te",
        b"content-type",
        b"content-length",
        b"grpc-timeout",
        b"grpc-encoding",
        b"grpc-accept-encoding",
        b"grpc-message-type",
    ),
)
_is_key = re.compile(r"[0-9a-z_.\-]+").fullmatch
_is_ascii_value = re.compile(r"[ -~]*").fullmatch


def parse_metadata(fields: Iterable[Field]) -> Metadata:
    """Returns the metadata of a request in order; GrpcError if a binary value is not base64."""
    metadata: list[tuple[str, str | bytes]] = []
    for name, value in fields:
        if name in _PROTOCOL_FIELDS:
            continue
        key = name.decode("ascii")
        if key.endswith(_BINARY_SUFFIX):
            # A proxy may have joined the values of one key with commas.
            metadata.extend((key, _decode_binary(key, part)) for part in value.split(b","))
        else:
            metadata.append((key, value.decode("latin-1")))
    return tuple(metadata)


def encode_metadata(metadata: Iterable[tuple[str, str | bytes]]) -> list[Field]:
    """Returns the header fields of metadata to send; ValueError if it cannot be sent."""
    return [(key.encode(), _encode_value(key, value)) for key, value in metadata]


def _decode_binary(key: str, value: bytes) -> bytes:
    stripped = value.strip(b" ").rstrip(b"=")
    padded = stripped + b"=" * (-len(stripped) % 4)
    try:
        return base64.b64decode(padded, validate=True)
    except binascii.Error as error:
        message = f"expected metadata {key} in base64, got {value[:32]!r}"
        raise GrpcError(GrpcStatus.INTERNAL, message) from error


def _encode_value(key: str, value: str | bytes) -> bytes:
    if not _is_key(key) or key.startswith("grpc-"):
        message = f"expected a metadata key of 0-9 a-z _ . - that is not gRPC's own, got {key!r}"
        raise ValueError(message)
    if key.endswith(_BINARY_SUFFIX):
        if isinstance(value, str):
            message = f"expected bytes for metadata {key}, got str"
            raise TypeError(message)
        return base64.b64encode(value).rstrip(b"=")
    if isinstance(value, bytes) or not _is_ascii_value(value) or value != value.strip():
        message = f"expected printable ASCII for metadata {key}, got {value!r}"
        raise ValueError(message)
    return value.encode("ascii")
