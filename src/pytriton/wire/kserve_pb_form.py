# SPDX-License-Identifier: Apache-2.0
"""The parts of a ModelInferRequest before anything is made of them: records, and how they are read.

Clients send the same inputs and outputs again and again, so each content is read once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from pytriton import dtypes
from pytriton.dtypes import DataType
from pytriton.errors import InvalidArgumentError
from pytriton.protos import service_pb2

_Request = service_pb2.ModelInferRequest
_parse_input = _Request.InferInputTensor.FromString
_parse_output = _Request.InferRequestedOutputTensor.FromString

MAX_FIELDS = 4096  # inputs, raw tensors, outputs and parameters of one request, of each so many
MAX_DIMENSIONS = 1024
_MAX_KNOWN = 1024
MAX_KNOWN_BYTES = 512
_INVALID = DataType(0, "<invalid>", "uint8", 1)


class Input(NamedTuple):
    """An element of `inputs`."""

    name: str
    dtype: DataType
    shape: tuple[int, ...]
    contents: Any = None  # an InferTensorContents message or LargeContents of a typed tensor
    region: str | None = None


class Output(NamedTuple):
    """An element of `outputs`."""

    name: str
    parameters: Any  # of the message


class InferForm(msgspec.Struct, gc=False):
    """The parts of a request message, but for raw tensors, before anything is made of them."""

    model_name: str = ""
    model_version: str = ""
    id: str = ""
    parameters: Any = None  # of a message
    inputs: Sequence[Input] = ()
    outputs: Sequence[Output] = ()


known_forms: dict[bytes, InferForm] = {}
known_inputs: dict[bytes, Input] = {}
known_outputs: dict[bytes, Output] = {}


def remember(known: dict[bytes, Any], content: bytes, value: Any) -> None:
    """Keep what a content says."""
    if len(known) >= _MAX_KNOWN:
        known.clear()
    known[content] = value


def read_input(content: bytes) -> Input:
    """An element of `inputs` from its bytes."""
    item = make_input(_parse_input(content))
    if item.contents is None and len(content) <= MAX_KNOWN_BYTES:
        remember(known_inputs, content, item)
    return item


def read_output(content: bytes) -> Output:
    """An element of `outputs` from its bytes."""
    message = _parse_output(content)
    item = Output(message.name, message.parameters)
    if len(content) <= MAX_KNOWN_BYTES:
        remember(known_outputs, content, item)
    return item


def make_input(message: Any) -> Input:
    """An element of `inputs` from its message.

    Raises:
        InvalidArgumentError: Its shape has too many dimensions.
    """
    if len(message.shape) > MAX_DIMENSIONS:
        raise InvalidArgumentError(
            f"expected at most {MAX_DIMENSIONS} dimensions of an input, got {len(message.shape)}"
        )
    contents = message.contents if message.HasField("contents") else None
    region = None
    if "shared_memory_region" in message.parameters:
        region = message.parameters["shared_memory_region"].string_param
    dtype = dtypes.BY_NAME.get(message.datatype, _INVALID)
    return Input(message.name, dtype, tuple(message.shape), contents, region)
