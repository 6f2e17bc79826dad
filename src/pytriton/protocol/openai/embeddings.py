# SPDX-License-Identifier: Apache-2.0
"""Embedding requests: reads them, makes requests for the model, and writes the answer."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import orjson
from numpy.typing import NDArray

from pytriton.base.errors import InternalError
from pytriton.base.messages import InferRequest, InferResponse, RequestFields
from pytriton.base.model_spec import ModelSpec
from pytriton.protocol.openai.errors import wrong
from pytriton.protocol.openai.generation import take_prompts
from pytriton.protocol.openai.inputs import Inputs, check_input_bytes, text_tensor
from pytriton.protocol.openai.members import DocumentMembers

MAX_TEXTS = 2048
_FORMATS = ("float", "base64")

Rows = NDArray[np.float32]


class EmbeddingJob(msgspec.Struct):
    """The options of a client, and the requests for the model, in order of the texts."""

    requests: list[InferRequest]
    row_counts: list[int]  # the number of texts in each of them
    is_base64: bool


def read_embeddings(members: DocumentMembers, spec: ModelSpec) -> EmbeddingJob:
    """Read a request; several texts are rows of one request if the model batches.

    Raises:
        OpenAIError: It is malformed, or asks for something that this model cannot do.
    """
    assert spec.openai is not None
    texts = take_prompts(members, "input")
    if len(texts) > MAX_TEXTS:
        raise wrong("input", f"expected at most {MAX_TEXTS} texts as 'input', got {len(texts)}")
    encoding = members.text("encoding_format") or "float"
    if encoding not in _FORMATS:
        raise wrong(
            "encoding_format",
            f"expected {' or '.join(_FORMATS)} as 'encoding_format', got '{encoding}'",
        )
    size = spec.max_batch_size or 1
    parts = [texts[at : at + size] for at in range(0, len(texts), size)]
    inputs = _inputs(members, spec, len(parts[0]))
    check_input_bytes("input", len(parts), inputs.size)
    last = inputs if len(parts[-1]) == len(parts[0]) else inputs.with_rows(len(parts[-1]))
    requests = []
    for part in parts:
        chosen = last if part is parts[-1] else inputs
        tensors = dict(chosen.tensors)
        expected = spec.inputs[spec.openai.prompt]
        tensors[expected.name] = text_tensor(expected, part, is_batched=spec.max_batch_size > 0)
        requests.append(
            InferRequest(spec.name, tensors, fields=RequestFields("", dict(inputs.parameters)))
        )
    return EmbeddingJob(requests, list(map(len, parts)), encoding == "base64")


def _inputs(members: DocumentMembers, spec: ModelSpec, rows: int) -> Inputs:
    inputs = Inputs(spec, rows if spec.max_batch_size else 0)
    inputs.add_rest(members)
    inputs.finish()
    return inputs


def read_rows(response: InferResponse, name: str, count: int) -> Rows:
    """Returns the embeddings of a response to `count` texts, one in each row.

    Raises:
        InternalError: The output is missing, or has not one embedding for each text.
    """
    for tensor in response.outputs:
        if tensor.name == name:
            values = np.frombuffer(tensor.data, tensor.dtype.numpy)
            if not values.size or values.size % count:
                raise InternalError(
                    f"expected an embedding for each of {count} text(s) in the output '{name}', "
                    f"got the shape {list(tensor.shape)}"
                )
            return values.astype(np.float32, copy=False).reshape(count, -1)
    raise InternalError(f"expected an output '{name}' in the response of the model, got none")


def encode_embeddings(model: str, rows: Sequence[Rows], tokens: int, *, is_base64: bool) -> bytes:
    """Encode an answer; with `is_base64` embeddings are the bytes of little-endian floats."""
    data: list[dict[str, Any]] = []
    for part in rows:
        for row in part:
            embedding: Any = row
            if is_base64:
                embedding = base64.b64encode(row.astype("<f4").tobytes()).decode()
            elif not row.flags.c_contiguous:
                embedding = row.copy()
            data.append({"object": "embedding", "index": len(data), "embedding": embedding})
    document = {
        "object": "list",
        "data": data,
        "model": model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
