# SPDX-License-Identifier: Apache-2.0
"""Bodies of inference over HTTP: requests and answers with binary tensors, and streams. No I/O."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any, cast

import orjson

from pytriton.client.kserve.errors import AskError
from pytriton.client.kserve.records import (
    Document,
    ModelAnswer,
    ModelQuery,
    PlainTensor,
    input_entry,
    outputs_of_body,
    tensor_of_elements,
)
from pytriton.protocol.json_text import dump_json

_OF_THE_ANSWER = frozenset({"model_name", "model_version", "id"})


@dataclasses.dataclass(frozen=True, slots=True)
class EncodedRequest:
    """The parts of a body; `head_length` is that of its JSON if binary tensors follow."""

    parts: tuple[bytes, ...]  # or views
    head_length: int | None

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)


def encode(question: ModelQuery, *, is_binary: bool, may_view: bool = True) -> EncodedRequest:
    """Make the body of a request for inference.

    Args:
        question: what is asked.
        is_binary: whether the server understands tensors in binary, which every datatype has.
        may_view: whether large tensors may be views of their arrays, which nobody may change then
            until they are sent.
    """
    tensors = [PlainTensor.of(each, may_view=may_view) for each in question.inputs]
    document: dict[str, Any] = {"id": question.request_id} if question.request_id else {}
    document["inputs"] = [
        input_entry(each, None if is_binary else _elements(each)) for each in tensors
    ]
    parameters = dict(question.parameters)
    if question.outputs:
        wish = {"parameters": {"binary_data": True}} if is_binary else {}
        document["outputs"] = [{"name": name, **wish} for name in question.outputs]
    elif is_binary:
        parameters["binary_data_output"] = True
    if parameters:
        document["parameters"] = parameters
    if not is_binary:
        return EncodedRequest((json.dumps(document).encode(),), None)
    head = dump_json(document)
    return EncodedRequest((head, *[each.data for each in tensors]), len(head))


def decode(body: bytes | bytearray, head_length: int | None) -> ModelAnswer:
    """Read the answer to a request for inference; its arrays are views of a body in binary.

    Raises:
        ValueError, KeyError, TypeError: It is not such an answer.
    """
    view = cast("bytes", memoryview(body))
    document = read_json(view if head_length is None else view[:head_length])
    outputs = outputs_of_body(document, view, head_length)
    return ModelAnswer(
        document.get("model_name", ""),
        str(document.get("model_version", "")),
        document.get("id", ""),
        document.get("parameters", {}),
        tuple([tensor.named() for tensor in outputs]),
    )


def read_json(text: bytes | bytearray) -> Any:
    """Read JSON, in which Triton may write NaN and infinities.

    Raises:
        ValueError: It is no JSON.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(bytes(text))


def _elements(tensor: PlainTensor) -> list[Any]:
    """Returns the elements for JSON, in one list.

    Raises:
        AskError: There are bytes that are no text, which JSON cannot carry.
    """
    try:
        return tensor.json_elements()
    except UnicodeDecodeError as error:
        raise AskError(
            f"Input '{tensor.name}' has bytes that are no text, which this request cannot carry: "
            "ask over gRPC."
        ) from error


def generate_body(question: ModelQuery, metadata: Document) -> dict[str, Any]:
    """Make the body of a request for a stream.

    Raises:
        AskError: A shape cannot be expressed; over gRPC it can.
    """
    declared = {tensor["name"]: tensor["shape"] for tensor in metadata.get("inputs", ())}
    body: dict[str, Any] = {}
    if question.request_id:
        body["id"] = question.request_id
    body.update(question.parameters)
    for tensor in question.inputs:
        shape = generated_shape(declared.get(tensor.name, [-1]), tensor.array.size)
        if shape != tensor.array.shape:
            raise AskError(
                f"A stream over HTTP cannot carry input '{tensor.name}' with the shape "
                f"{list(tensor.array.shape)}: ask over gRPC."
            )
        elements = _elements(PlainTensor.of(tensor))
        body[tensor.name] = elements[0] if len(elements) == 1 else elements
    return body


def generated_shape(declared: Sequence[int], count: int) -> tuple[int, ...] | None:
    """Returns the shape that a server gives to so many elements; None if it refuses them."""
    fixed = math.prod(size for size in declared if size > 0)
    if not count or count % fixed:
        return None
    rest = count // fixed
    shape = []
    for size in reversed(declared):
        if size > 0:
            shape.append(size)
        else:
            shape.append(rest)
            rest = 1
    return tuple(reversed(shape)) if rest == 1 else None


def generated(document: Document, metadata: Document, wanted: Sequence[str]) -> ModelAnswer:
    """Read one event of a stream, where each output is a flat member."""
    datatypes = {tensor["name"]: tensor["datatype"] for tensor in metadata.get("outputs", ())}
    outputs = []
    for name, datatype in datatypes.items():
        if name in document and (not wanted or name in wanted):
            value = document[name]
            elements = value if isinstance(value, list) else [value]
            outputs.append(tensor_of_elements(name, datatype, (len(elements),), elements).named())
    parameters = {
        name: value
        for name, value in document.items()
        if name not in datatypes and name not in _OF_THE_ANSWER
    }
    return ModelAnswer(
        document.get("model_name", ""),
        str(document.get("model_version", "")),
        document.get("id", ""),
        parameters,
        tuple(outputs),
    )
