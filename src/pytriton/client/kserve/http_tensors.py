# SPDX-License-Identifier: Apache-2.0
"""Requests and answers in the JSON of KServe and of Triton's generate extension; no I/O."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

from pytriton.client.kserve.errors import AskError
from pytriton.client.kserve.records import (
    Document,
    ModelAnswer,
    ModelQuery,
    PlainTensor,
    tensor_of_elements,
)

_OF_THE_ANSWER = frozenset({"model_name", "model_version", "id"})


@dataclasses.dataclass(frozen=True, slots=True)
class EncodedRequest:
    """The body of a request; `head_length` is that of its JSON if binary tensors follow."""

    body: bytes
    head_length: int | None


def encode(question: ModelQuery, *, is_binary: bool) -> EncodedRequest:
    """Make the body of a request for inference.

    Args:
        question: what is asked.
        is_binary: whether the server understands tensors in binary, which every datatype has.
    """
    tensors = [PlainTensor.of(each) for each in question.inputs]
    document: dict[str, Any] = {
        "inputs": [input_entry(each, is_binary=is_binary) for each in tensors]
    }
    if question.request_id:
        document["id"] = question.request_id
    parameters = dict(question.parameters)
    if is_binary and not question.outputs:
        parameters["binary_data_output"] = True
    if parameters:
        document["parameters"] = parameters
    if question.outputs:
        wish = {"parameters": {"binary_data": True}} if is_binary else {}
        document["outputs"] = [{"name": name, **wish} for name in question.outputs]
    head = json.dumps(document).encode()
    if not is_binary:
        return EncodedRequest(head, None)
    return EncodedRequest(b"".join([head, *(each.data for each in tensors)]), len(head))


def input_entry(tensor: PlainTensor, *, is_binary: bool) -> dict[str, Any]:
    """Returns the JSON of an input, with its elements or with the size of its binary data.

    Raises:
        AskError: There are bytes that are no text, which JSON cannot carry.
    """
    entry: dict[str, Any] = {
        "name": tensor.name,
        "shape": list(tensor.shape),
        "datatype": tensor.datatype,
    }
    if is_binary:
        return {**entry, "parameters": {"binary_data_size": len(tensor.data)}}
    return {**entry, "data": plain_elements(tensor)}


def decode(body: bytes, head_length: int | None) -> ModelAnswer:
    """Read the answer to a request for inference.

    Raises:
        ValueError, KeyError, TypeError: It is not such an answer.
    """
    document = json.loads(body if head_length is None else body[:head_length])
    outputs = outputs_of_body(document, body, head_length)
    return ModelAnswer(
        document.get("model_name", ""),
        str(document.get("model_version", "")),
        document.get("id", ""),
        document.get("parameters", {}),
        tuple(tensor.named() for tensor in outputs),
    )


def outputs_of_body(document: Document, body: bytes, head_length: int | None) -> list[PlainTensor]:
    """Returns the outputs of an answer; those in shared memory have no data in it."""
    at = head_length or 0
    outputs = []
    for entry in document.get("outputs", ()):
        parameters = entry.get("parameters", {})
        size = parameters.get("binary_data_size")
        name, datatype, shape = entry["name"], entry["datatype"], entry["shape"]
        if size is not None:
            outputs.append(PlainTensor(name, datatype, tuple(shape), body[at : at + size]))
            at += size
        elif "shared_memory_region" not in parameters:
            outputs.append(tensor_of_elements(name, datatype, shape, entry["data"]))
    return outputs


def plain_elements(tensor: PlainTensor) -> list[Any]:
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
        elements = plain_elements(PlainTensor.of(tensor))
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
