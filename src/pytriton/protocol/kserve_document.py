# SPDX-License-Identifier: Apache-2.0
"""Decodes the JSON of an infer request into records with typed members.

A well-formed request is decoded directly (1.5 us for two small inputs). If that fails, the JSON is
parsed again, member by member, to raise Triton's errors, or to accept what only Triton's parser
accepts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from pytriton.base.errors import InternalError, InvalidArgumentError
from pytriton.protocol.json_members import member_error, text_member, unsigned_member
from pytriton.protocol.json_text import load_json
from pytriton.protocol.shared_memory import REGION, RegionPlace, place_from_json

if TYPE_CHECKING:
    from pytriton.base.dtypes import Buffer

# Triton's parser has no larger integers; the product of such numbers would take seconds.
_MAX_UNSIGNED = 2**64 - 1
Unsigned = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]  # msgspec cannot check for the above


class InputDocument(msgspec.Struct, gc=False):
    """An element of `inputs`."""

    name: str
    datatype: str
    shape: tuple[Unsigned, ...]
    data: list[Any] | UnsetType = UNSET
    parameters: Any = UNSET  # ignored unless it is an object


class RequestDocument(msgspec.Struct, gc=False):
    """The root of an infer request."""

    inputs: list[InputDocument]
    id: str = ""
    parameters: dict[str, Any] | UnsetType = UNSET
    outputs: list[Any] | UnsetType = UNSET


_decode = msgspec.json.Decoder(RequestDocument).decode


def read_document(text: Buffer) -> RequestDocument:
    """Parse the JSON of an infer request.

    Raises:
        ServerError: The JSON is malformed, or a member is missing or has a wrong type.
    """
    try:
        return _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _read_members(load_json(text))


def _read_members(document: Any) -> RequestDocument:
    if type(document) is not dict:
        raise member_error({}, "inputs", "array")
    request_id = text_member(document, "id") if "id" in document else ""
    parameters = document.get("parameters", UNSET)
    if parameters is not UNSET and type(parameters) is not dict:
        raise InternalError("failed to get request params.: attempt to get members for non-object")
    entries = document.get("inputs")
    if type(entries) is not list:
        raise member_error(document, "inputs", "array")
    inputs = [_read_input(entry) for entry in entries]
    outputs = document.get("outputs", UNSET)
    if outputs is not UNSET and type(outputs) is not list:
        raise member_error(document, "outputs", "array")
    return RequestDocument(inputs, request_id, parameters, outputs)


def _read_input(entry: Any) -> InputDocument:
    if type(entry) is not dict:
        entry = {}  # the error will be about missing members
    data = entry.get("data", UNSET)
    parameters = entry.get("parameters", UNSET)
    if data is UNSET or type(parameters) is dict:
        data_source(data, parameters)
    name = text_member(entry, "name")
    datatype = text_member(entry, "datatype")
    shape = entry.get("shape")
    if type(shape) is not list:
        raise member_error(entry, "shape", "array")
    if any(type(size) is not int or not 0 <= size <= _MAX_UNSIGNED for size in shape):
        raise member_error(entry, "shape", "unsigned-integer")
    if data is not UNSET and type(data) is not list:
        raise member_error(entry, "data", "array")
    return InputDocument(name, datatype, tuple(shape), data, parameters)


def data_source(data: Any, parameters: Any) -> int | RegionPlace | None:
    """Returns the size of an input's binary data, or its place; None if its data is in the JSON."""
    if type(parameters) is not dict:
        parameters = {}
    sources = [key for key in ("binary_data_size", REGION) if key in parameters]
    if data is not UNSET:
        sources.insert(0, "data")
    if len(sources) == 1:
        if data is not UNSET:
            return None
        if sources[0] == "binary_data_size":
            return unsigned_member(parameters, "binary_data_size")
        return place_from_json(parameters)
    found = " ".join(["set", *map(repr, sources)]) if sources else "no field is set"
    raise InvalidArgumentError(
        "Input must set only one of the following fields: 'data', 'binary_data_size' in "
        f"'parameters', 'shared_memory_region' in 'parameters'. But {found}"
    )
