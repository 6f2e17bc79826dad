# SPDX-License-Identifier: Apache-2.0
"""The outputs in the answers of requests, for exports and to compare them with expected ones."""

from __future__ import annotations

import struct
from typing import Any

import orjson

from pytriton.base import dtypes
from pytriton.base.protos import service_pb2
from pytriton.tools.perf.load.recipe import Recipe
from pytriton.tools.perf.load.tensors import PlainTensor, from_json_values

_PREFIX = struct.Struct(">BI")


class AnswerError(ValueError):
    """An answer does not have what an inference answer has."""


def outputs_of(
    answer: bytes, json_bytes: int, *, is_grpc: bool, is_streaming: bool
) -> list[PlainTensor]:
    """The outputs of one response.

    Raises:
        OutputError: it is not the answer to an inference.
    """
    try:
        if is_grpc:
            return _outputs_of_message(answer if is_streaming else answer[_PREFIX.size :])
        if is_streaming:
            return _outputs_of_event(answer)
        return _outputs_of_body(answer, json_bytes)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise AnswerError(f"expected the answer to an inference, got {answer[:80]!r}") from error


def _outputs_of_message(message: bytes) -> list[PlainTensor]:
    response = service_pb2.ModelInferResponse.FromString(message)
    raw = list(response.raw_output_contents)
    if len(raw) == len(response.outputs):
        return [
            PlainTensor(output.name, output.datatype, tuple(output.shape), data)
            for output, data in zip(response.outputs, raw, strict=True)
        ]
    return [
        from_json_values(output.name, output.datatype, list(output.shape), _contents(output))
        for output in response.outputs
    ]


def _contents(output: Any) -> list[Any]:
    for _, values in output.contents.ListFields():
        return list(values)
    return []


def _outputs_of_event(event: bytes) -> list[PlainTensor]:
    members = orjson.loads(event)
    return [
        PlainTensor(name, "BYTES", (1,), dtypes.encode_bytes([orjson.dumps(value)]))
        for name, value in members.items()
        if name not in ("model_name", "model_version", "id")
    ]


def _outputs_of_body(body: bytes, json_bytes: int) -> list[PlainTensor]:
    document = orjson.loads(body if json_bytes < 0 else body[:json_bytes])
    at = json_bytes
    outputs = []
    for output in document.get("outputs", ()):
        name, datatype, shape = output["name"], output["datatype"], output["shape"]
        size = output.get("parameters", {}).get("binary_data_size")
        if size is not None:
            outputs.append(PlainTensor(name, datatype, tuple(shape), body[at : at + size]))
            at += size
        elif "data" in output:
            outputs.append(from_json_values(name, datatype, shape, output["data"]))
    return outputs


def differs(
    recipe: Recipe, expected: list[PlainTensor], answers: list[bytes], json_bytes: list[int]
) -> str:
    """What is wrong with the responses of a request; empty if they are as expected."""
    for answer, size in zip(answers, json_bytes, strict=True):
        try:
            outputs = outputs_of(
                answer, size, is_grpc=recipe.is_grpc, is_streaming=recipe.is_streaming
            )
        except AnswerError as error:
            return str(error)
        found = {output.name: output for output in outputs}
        for right in expected:
            output = found.get(right.name)
            if output is None:
                return f"expected output '{right.name}', got {', '.join(found) or 'none'}"
            if output.data != right.data:
                return f"output '{right.name}' differs from the expected data"
    return ""
