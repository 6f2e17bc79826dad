# SPDX-License-Identifier: Apache-2.0
"""The parsed parts of a ModelInferRequest, and a cache for them.

Clients often repeat the same inputs, outputs and parameters, so their bytes are parsed once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from pytriton.base import dtypes
from pytriton.base.dtypes import DataType
from pytriton.base.errors import InvalidArgumentError
from pytriton.base.protos import service_pb2

_Request = service_pb2.ModelInferRequest
_parse_input = _Request.InferInputTensor.FromString
_parse_output = _Request.InferRequestedOutputTensor.FromString
_parse_parameter = _Request.ParametersEntry.FromString

MAX_FIELDS = 4096  # the limit for each of inputs, raw tensors, outputs and parameters
MAX_DIMENSIONS = 1024
_MAX_CACHED = 1024
MAX_CACHED_BYTES = 512
_INVALID = DataType(0, "<invalid>", "uint8", 1)


class PbInput(NamedTuple):
    """An element of `inputs`."""

    name: str
    dtype: DataType
    shape: tuple[int, ...]
    contents: Any = None  # of a typed tensor: an InferTensorContents message or LargeContents
    parameters: Any = None  # the map in the message, unless it is empty


class PbOutput(NamedTuple):
    """An element of `outputs`."""

    name: str
    parameters: Any  # the map in the message


class PbParameter(NamedTuple):
    """The value of a parameter."""

    choice: str | None  # the field of its message that is set
    value: Any


class ParsedMessage(msgspec.Struct, gc=False):
    """The parsed parts of a request message, without raw tensors."""

    model_name: str = ""
    model_version: str = ""
    id: str = ""
    parameters: Mapping[str, PbParameter] | None = None
    inputs: Sequence[PbInput] = ()
    outputs: Sequence[PbOutput] = ()
    uses: int = 0  # a counter for the layer above


cached_messages: dict[bytes, ParsedMessage] = {}
cached_inputs: dict[bytes, PbInput] = {}
cached_outputs: dict[bytes, PbOutput] = {}
cached_parameters: dict[bytes, tuple[str, PbParameter]] = {}  # sequences repeat theirs


def add_to_cache(known: dict[bytes, Any], content: bytes, value: Any) -> None:
    """Add the parsed value of some bytes to a cache, which is emptied first if it is full."""
    if len(known) >= _MAX_CACHED:
        known.clear()
    known[content] = value


def read_input(content: bytes) -> PbInput:
    """Parse the bytes of an element of `inputs`."""
    item = make_input(_parse_input(content))
    if item.contents is None and len(content) <= MAX_CACHED_BYTES:
        add_to_cache(cached_inputs, content, item)
    return item


def read_output(content: bytes) -> PbOutput:
    """Parse the bytes of an element of `outputs`."""
    message = _parse_output(content)
    item = PbOutput(message.name, message.parameters)
    if len(content) <= MAX_CACHED_BYTES:
        add_to_cache(cached_outputs, content, item)
    return item


def make_parameters(message: Mapping[str, Any]) -> dict[str, PbParameter]:
    """Make the parameters of a request from the map in its message."""
    return {name: _make_parameter(parameter) for name, parameter in message.items()}


def _make_parameter(message: Any) -> PbParameter:
    choice = message.WhichOneof("parameter_choice")
    return PbParameter(choice, getattr(message, choice) if choice else None)


def read_parameter(content: bytes) -> tuple[str, PbParameter]:
    """Parse the bytes of an entry of `parameters`; returns its name and its value."""
    entry = _parse_parameter(content)
    item = (entry.key, _make_parameter(entry.value))
    if len(content) <= MAX_CACHED_BYTES:
        add_to_cache(cached_parameters, content, item)
    return item


def make_input(message: Any) -> PbInput:
    """Make an `PbInput` from its message.

    Raises:
        InvalidArgumentError: The shape has too many dimensions.
    """
    if len(message.shape) > MAX_DIMENSIONS:
        raise InvalidArgumentError(
            f"expected at most {MAX_DIMENSIONS} dimensions of an input, got {len(message.shape)}"
        )
    contents = message.contents if message.HasField("contents") else None
    dtype = dtypes.BY_NAME.get(message.datatype, _INVALID)
    return PbInput(message.name, dtype, tuple(message.shape), contents, message.parameters or None)
