# SPDX-License-Identifier: Apache-2.0
"""The outputs in the answers of requests, for exports and to compare them with expected ones."""

from __future__ import annotations

import orjson

from pytriton.base import dtypes
from pytriton.base.protos import service_pb2
from pytriton.client.kserve.messages import outputs_of_message
from pytriton.client.kserve.records import PlainTensor, outputs_of_body
from pytriton.tools.perf.load.recipe import Recipe
from pytriton.tools.perf.load.requests import PREFIX


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
            message = answer if is_streaming else answer[PREFIX.size :]
            return outputs_of_message(service_pb2.ModelInferResponse.FromString(message))
        if is_streaming:
            return _outputs_of_event(answer)
        head_length = None if json_bytes < 0 else json_bytes
        return outputs_of_body(orjson.loads(answer[:head_length]), answer, head_length)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise AnswerError(f"expected the answer to an inference, got {answer[:80]!r}") from error


def _outputs_of_event(event: bytes) -> list[PlainTensor]:
    members = orjson.loads(event)
    return [
        PlainTensor(name, "BYTES", (1,), dtypes.encode_bytes([orjson.dumps(value)]))
        for name, value in members.items()
        if name not in ("model_name", "model_version", "id")
    ]


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
