# SPDX-License-Identifier: Apache-2.0
"""The generate extension: one flat JSON object in, one out, and its server-sent events.

A key that names an input of the model is a tensor, any other a request parameter; on the way
back each output is a member, a plain value where it has one element.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from pytriton.errors import InternalError, InvalidArgumentError, ServerError
from pytriton.messages import InferRequest, InferTensor
from pytriton.wire.json_members import (
    access_error,
    parameter_value,
    refuse_reserved,
    text_member,
)
from pytriton.wire.json_text import dump_json, load_json
from pytriton.wire.kserve_json import request_prefix
from pytriton.wire.tensor_json import json_from_tensor, tensor_from_json

if TYPE_CHECKING:
    from pytriton.dtypes import Buffer
    from pytriton.engine.model_spec import ModelSpec, TensorSpec
    from pytriton.messages import InferResponse

EVENT_STREAM = "text/event-stream; charset=utf-8"
NOT_ONE_RESPONSE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that "
    "generates various number of responses"
)
_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_SORT_KEYS


class PackedElements(NamedTuple):
    """The elements of an array that were read already."""

    number: int
    data: bytes


def parse_generate(body: Buffer, spec: ModelSpec, model_version: str = "") -> InferRequest:
    """Read the body of a generate or generate_stream request.

    Args:
        body: One JSON object.
        spec: The model that the request is for.
        model_version: The version that the client named.

    Raises:
        ServerError: The request is malformed; the text is Triton's.
    """
    document = load_json(body)
    if type(document) is not dict:
        raise InternalError("attempt to get members for non-object")
    return request_from_members(document, spec, model_version)


def request_from_members(
    document: dict[str, Any], spec: ModelSpec, model_version: str = ""
) -> InferRequest:
    """Make a request of its members, as `parse_generate` does.

    Raises:
        ServerError: One is wrong.
    """
    request = InferRequest(spec.name, {}, model_version)
    if "id" in document:
        request.id = text_member(document, "id")
    for key, value in document.items():
        if key == "parameters":
            _read_nested(value, request, spec)
        else:
            _read_member(key, value, request, spec)
    return request


def encode_generate_response(response: InferResponse) -> bytes:
    """A response as one flat JSON object.

    Raises:
        ServerError: An output has no JSON form.
    """
    members = generate_members(response)
    for tensor in response.outputs:
        elements = json_from_tensor(tensor)
        members[tensor.name] = elements[0] if prod(tensor.shape) == 1 else elements
    return orjson.dumps(members, None, _OPTIONS)


def generate_members(response: InferResponse) -> dict[str, Any]:
    """The members of a response in their order; outputs are still tensors."""
    members: dict[str, Any] = {
        "model_name": response.model_name,
        "model_version": response.model_version,
    }
    if response.id:
        members["id"] = response.id
    for key, value in (response.parameters or {}).items():
        members[key] = orjson.Fragment(dump_json(value))
    for tensor in response.outputs:
        members[tensor.name] = tensor
    return members


def encode_event(content: bytes) -> bytes:
    """A JSON document as a server-sent event."""
    return b"data: %b\n\n" % content


def encode_error_event(error: ServerError) -> bytes:
    """An error that came after the stream had begun, as an event of its own."""
    return encode_event(dump_json({"error": error.message}))


def _read_nested(members: Any, request: InferRequest, spec: ModelSpec) -> None:
    if "parameters" in spec.inputs:
        raise InvalidArgumentError(
            "Keyword 'parameters' for nested schema also given as input tensor name"
        )
    if type(members) is not dict:
        raise InternalError(
            f"Expected JSON object for keyword: 'parameters': {access_error('object')}"
        )
    try:
        for key, value in members.items():
            _read_member(key, value, request, spec)
    except ServerError as error:
        raise type(error)(f"Converting keyword: 'parameters': {error.message}") from None


def _read_member(key: str, value: Any, request: InferRequest, spec: ModelSpec) -> None:
    expected = spec.inputs.get(key)
    if expected is None:
        refuse_reserved(key)
        request.parameters[key] = parameter_value(key, value)
        return
    if key in request.inputs:
        raise InvalidArgumentError(
            f"{request_prefix(request.id)}input '{key}' already exists in request"
        )
    if type(value) is PackedElements:
        count, data = value
        shape = _shape(expected, count)
    else:
        elements = value if type(value) is list else [value]
        shape = _shape(expected, len(elements))
        data = tensor_from_json(elements, expected.dtype, len(elements), key)
    request.inputs[key] = InferTensor(key, expected.dtype, shape, data)


def _shape(expected: TensorSpec, count: int) -> tuple[int, ...]:
    """The shape of `count` elements: fixed sizes as they are, what is left to the innermost -1."""
    left = count
    for size in expected.shape:
        if size != -1:
            left, remainder = divmod(left, size)
            if remainder:
                raise _shape_error(expected)
    shape: list[int] = []
    for size in reversed(expected.shape):
        if size == -1:
            shape.append(left)
            left = 1
        else:
            shape.append(size)
    if left != 1:
        raise _shape_error(expected)
    return tuple(reversed(shape))


def _shape_error(expected: TensorSpec) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"The schema can not convert input '{expected.name}' to tensor with proper shape"
    )
