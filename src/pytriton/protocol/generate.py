# SPDX-License-Identifier: Apache-2.0
"""The generate extension: requests and responses are flat JSON objects, or server-sent events.

In a request, keys that are names of inputs have tensors, others have request parameters; for a
sequence model, `sequence_id`, `sequence_start` and `sequence_end` are those of infer requests. In a
response each output is a member; an output with one element is a plain value, but for annotated
functions, whose annotations say what is a value and what a list.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import orjson

from pytriton.base.errors import InternalError, InvalidArgumentError, ServerError
from pytriton.base.messages import InferRequest, InferTensor
from pytriton.base.request_words import came_words, no_json, unknown_input, wrong_value
from pytriton.protocol.json_text import (
    access_error,
    dump_json,
    dump_json_leniently,
    load_members,
    names_in,
    parameter_value,
    refuse_reserved,
    text_member,
    utf8,
)
from pytriton.protocol.kserve_json import request_prefix
from pytriton.protocol.sequence import SEQUENCE_MEMBERS, read_sequence_member
from pytriton.protocol.tensor_json import json_from_tensor, tensor_from_json

if TYPE_CHECKING:
    from pytriton.base.dtypes import Buffer
    from pytriton.base.messages import InferResponse
    from pytriton.base.model_spec import ModelSpec, ModelTensor

EVENT_STREAM = "text/event-stream; charset=utf-8"
NOT_ONE_RESPONSE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that "
    "generates various number of responses"
)
_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_SORT_KEYS


class PackedElements(NamedTuple):
    """The elements of an array, already converted to bytes."""

    number: int
    data: bytes


def parse_generate(body: Buffer, spec: ModelSpec, model_version: str = "") -> InferRequest:
    """Parse the body of a generate or generate_stream request: one JSON object.

    Raises:
        ServerError: The request is malformed; the text is Triton's, unless the model is an
            annotated function.
    """
    try:
        document = load_members(body)
    except ServerError as error:
        if spec.is_annotated:
            raise no_json(error) from None
        raise
    if not isinstance(document, dict):
        if spec.is_annotated:
            raise InvalidArgumentError(
                f"expected a JSON object with the inputs of model '{spec.name}' "
                f"({', '.join(spec.inputs) or 'none'}), got {came_words(document)}"
            )
        raise InternalError("attempt to get members for non-object")
    return request_from_members(document, spec, model_version)


def request_from_members(
    document: dict[str, Any], spec: ModelSpec, model_version: str = ""
) -> InferRequest:
    """Build a request from the members of its JSON object, like `parse_generate`.

    Raises:
        ServerError: A member is invalid.
    """
    request = InferRequest(spec.name, {}, model_version)
    if "id" in document:
        request.fields.id = text_member(document, "id")
    for key in names_in(document):
        if key == "parameters":
            _read_nested(document[key], request, spec)
        else:
            if spec.is_annotated:
                _refuse_unknown(key, spec)
            _read_member(key, document[key], request, spec)
    return request


def _refuse_unknown(key: str, spec: ModelSpec) -> None:
    """Refuse a member that is neither an input nor a parameter, such as a misspelling.

    Members of the nested object `parameters` are parameters on purpose, and are left alone.
    """
    known = [*spec.inputs, "id", *(SEQUENCE_MEMBERS if spec.sequence is not None else ())]
    if key in known:
        return
    raise unknown_input(utf8(key, "inputs"), spec)


def encode_generate_response(response: InferResponse, spec: ModelSpec) -> bytes:
    """Encode a response as one flat JSON object.

    Raises:
        ServerError: An output cannot be encoded as JSON.
    """
    members = generate_members(response)
    for tensor in response.outputs:
        members[tensor.name] = nested_json(tensor, answer_shape(tensor, spec))
    return orjson.dumps(members, None, _OPTIONS)


def answer_shape(tensor: InferTensor, spec: ModelSpec) -> tuple[int, ...]:
    """Returns the shape of an output in JSON: none for a plain value, more sizes for nested lists.

    That of an annotated function is what the annotation says, whatever the values are; a single row
    of a batch is as without batching. Triton's are flat, and one element is a plain value.
    """
    shape = tensor.shape
    if not spec.is_annotated:
        count = prod(shape)
        return () if count == 1 else (count,)
    if spec.max_batch_size and shape[:1] == (1,):
        shape = shape[1:]
    expected = spec.outputs.get(tensor.name)
    return shape[:-1] if expected is not None and expected.dims == (1,) else shape


def nested_json(tensor: InferTensor, shape: tuple[int, ...]) -> Any:
    """Returns the elements of an output for orjson, as lists of a shape.

    Raises:
        ServerError: The output cannot be encoded as JSON.
    """
    elements = json_from_tensor(tensor)
    if not shape:
        return elements[0]
    if len(shape) == 1:
        return elements
    if isinstance(elements, np.ndarray):
        return elements.reshape(shape)
    if isinstance(elements, orjson.Fragment):  # large, with a NaN or an infinity
        array = np.frombuffer(tensor.data, tensor.dtype.numpy).reshape(shape)
        return orjson.Fragment(dump_json_leniently(array.tolist()))
    if 0 in shape:
        return np.empty(shape).tolist()
    for size in reversed(shape[1:]):
        elements = [elements[at : at + size] for at in range(0, len(elements), size)]
    return elements


def generate_members(response: InferResponse) -> dict[str, Any]:
    """Returns the members of a response in order; outputs are not encoded."""
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
    return b"data: %b\n\n" % content


def encode_error_event(error: ServerError) -> bytes:
    return encode_event(dump_json({"error": error.message}))


def _read_nested(members: Any, request: InferRequest, spec: ModelSpec) -> None:
    if "parameters" in spec.inputs:
        raise InvalidArgumentError(
            "Keyword 'parameters' for nested schema also given as input tensor name"
        )
    if not isinstance(members, dict):
        raise InternalError(
            f"Expected JSON object for keyword: 'parameters': {access_error('object')}"
        )
    try:
        for key in names_in(members):
            _read_member(key, members[key], request, spec)
    except ServerError as error:
        raise type(error)(f"Converting keyword: 'parameters': {error.message}") from None


def _read_member(key: str, value: Any, request: InferRequest, spec: ModelSpec) -> None:
    expected = spec.inputs.get(key)
    if expected is None:
        if key in SEQUENCE_MEMBERS and spec.sequence is not None:
            read_sequence_member({key: value}, key, request.fields)
            return
        refuse_reserved(key)
        request.fields.parameters[key] = parameter_value(key, value)
        return
    if key in request.inputs:
        raise InvalidArgumentError(
            f"{request_prefix(request.fields.id)}input '{key}' already exists in request"
        )
    try:
        shape, data = _read_elements(value, expected, spec)
    except ServerError:
        if key in spec.nullable and (value is None or value == [None]):
            return
        if spec.is_annotated and type(value) is not PackedElements:
            raise wrong_value(expected, value, spec) from None
        raise
    request.inputs[key] = InferTensor(key, expected.dtype, shape, data)


def _read_elements(
    value: Any, expected: ModelTensor, spec: ModelSpec
) -> tuple[tuple[int, ...], bytes]:
    if type(value) is PackedElements:
        return _shape(expected, value.number), value.data
    elements = value if type(value) is list else [value]
    shape = _nested_shape(elements, expected) if spec.is_annotated else None
    if shape is None:
        shape = _shape(expected, len(elements))
    return shape, tensor_from_json(elements, expected.dtype, prod(shape), expected.name)


def _nested_shape(elements: list[Any], expected: ModelTensor) -> tuple[int, ...] | None:
    """Returns the shape that lists of lists have, if it is that of an input; None for others.

    Triton takes flat lists only, and so do models that are no annotated functions.
    """
    sizes: list[int] = []
    level: list[Any] = elements
    while level and len(sizes) < len(expected.shape):
        sizes.append(len(level) // prod(sizes))
        lengths = {len(each) if type(each) is list else -1 for each in level}
        if len(lengths) != 1:
            return None  # it is uneven
        if lengths == {-1}:
            break
        if lengths == {0}:
            sizes.append(0)
            break
        level = [element for each in level for element in each]
    if len(sizes) == len(expected.dims) < len(expected.shape):
        sizes.insert(0, 1)  # one row
    is_nested = type(elements[0]) is list if elements else False
    fits = len(sizes) == len(expected.shape) and all(
        wanted in (-1, size) for size, wanted in zip(sizes, expected.shape, strict=True)
    )
    return tuple(sizes) if is_nested and fits else None


def _shape(expected: ModelTensor, count: int) -> tuple[int, ...]:
    """Returns the shape of `count` elements: the last -1 gets all that fixed sizes leave."""
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


def _shape_error(expected: ModelTensor) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"The schema can not convert input '{expected.name}' to tensor with proper shape"
    )
