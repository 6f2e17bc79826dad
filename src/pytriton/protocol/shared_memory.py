# SPDX-License-Identifier: Apache-2.0
"""Tensors in shared memory of clients: their parameters, and the requests that register regions.

Nothing is looked up here: `pytriton.serving.server.shared_memory` knows the registered regions.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from pytriton.base.errors import InternalError, InvalidArgumentError
from pytriton.protocol.json_text import (
    access_error,
    load_members,
    text_member,
    unsigned_member,
    utf8,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytriton.base.dtypes import Buffer

REGION, OFFSET, BYTE_SIZE = (
    "shared_memory_region",
    "shared_memory_offset",
    "shared_memory_byte_size",
)
_MAX_UNSIGNED = 2**64 - 1
CUDA_HANDLE_BYTES = 64


class RegionPlace(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The place of a tensor in a registered region. It stands for the data of an input."""

    region: str
    offset: int  # from the start of the region
    byte_size: int


class SystemRegion(NamedTuple):
    """The body of a request that registers a region of system shared memory."""

    key: str
    offset: int
    byte_size: int


# JSON


def place_from_json(parameters: dict[str, Any]) -> RegionPlace:
    """Read the parameters of a tensor that names a region; a missing number is 0, as in Triton.

    Raises:
        ServerError: A parameter has a wrong type.
    """
    region = text_member(parameters, REGION)
    offset = unsigned_member(parameters, OFFSET) if OFFSET in parameters else 0
    byte_size = unsigned_member(parameters, BYTE_SIZE) if BYTE_SIZE in parameters else 0
    return RegionPlace(region, offset, byte_size)


def read_system_region(body: Buffer) -> SystemRegion:
    """Parse the body of a request that registers a region of system shared memory.

    Raises:
        ServerError: The body is malformed.
    """
    members = _members(body)
    _require(members, "key")
    key = utf8(_text(members, "key"), "key")
    offset = _unsigned(members, "offset") if "offset" in members else 0
    _require(members, "byte_size")
    return SystemRegion(key, offset, _unsigned(members, "byte_size"))


class CudaRegion(NamedTuple):
    """The body of a request that registers a region of CUDA memory."""

    handle: bytes
    device: int
    byte_size: int


def read_cuda_region(body: Buffer) -> CudaRegion:
    """Parse the body of a request that registers a region of CUDA memory.

    Raises:
        ServerError: The body is malformed.
    """
    members = _members(body)
    _require(members, "raw_handle")
    handle = members["raw_handle"]
    text = _text(handle if isinstance(handle, dict) else {}, "b64")
    byte_size = _unsigned(members, "byte_size")
    device = _unsigned(members, "device_id")
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != CUDA_HANDLE_BYTES:
        raise InvalidArgumentError("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t")
    return CudaRegion(raw, device, byte_size)


def _members(body: Buffer) -> dict[str, Any]:
    document = load_members(body)  # the first of repeated members counts, as in Triton
    return document if isinstance(document, dict) else {}


def _require(members: dict[str, Any], key: str) -> None:
    if key not in members:
        raise InvalidArgumentError(f"Shared memory register request has no '{key}' field")


def _text(members: dict[str, Any], key: str) -> str:
    value = _value(members, key)
    if type(value) is not str:
        raise InternalError(access_error("string"))
    return value


def _unsigned(members: dict[str, Any], key: str) -> int:
    value = _value(members, key)
    if type(value) is not int or not 0 <= value <= _MAX_UNSIGNED:
        raise InternalError(access_error("unsigned-integer"))
    return value


def _value(members: dict[str, Any], key: str) -> Any:
    if key not in members:
        raise InternalError(f"attempt to access non-existing object member '{key}'")
    return members[key]


# gRPC


def place_from_message(parameters: Mapping[str, Any], tensor: str) -> RegionPlace | None:
    """Read the parameters of a tensor in a message; returns None if it names no region.

    The numbers are signed in the message and unsigned in the server, so a negative one is large.

    Raises:
        InvalidArgumentError: A parameter has a wrong type, or one of the others is missing.
    """
    if REGION not in parameters:
        for key in (OFFSET, BYTE_SIZE):
            if key in parameters:
                raise InvalidArgumentError(
                    f"'{key}' can not be specified without 'shared_memory_region' parameter for "
                    f"tensor '{tensor}'"
                )
        return None
    region = _choice(parameters, REGION, "string_param", tensor)
    offset = _choice(parameters, OFFSET, "int64_param", tensor) if OFFSET in parameters else 0
    if BYTE_SIZE not in parameters:
        raise InvalidArgumentError(
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' "
            f"parameter for tensor '{tensor}'"
        )
    byte_size = _choice(parameters, BYTE_SIZE, "int64_param", tensor)
    return RegionPlace(region, offset % 2**64, byte_size % 2**64)


def _choice(parameters: Mapping[str, Any], key: str, choice: str, tensor: str) -> Any:
    parameter = parameters[key]
    if parameter.WhichOneof("parameter_choice") != choice:
        raise InvalidArgumentError(
            f"invalid value type for '{key}' parameter for tensor '{tensor}', expected {choice}."
        )
    return getattr(parameter, choice)
