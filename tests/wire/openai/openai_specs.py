# SPDX-License-Identifier: Apache-2.0
"""Models for the tests of OpenAI's requests and answers."""

from __future__ import annotations

import json

import numpy as np

from pytriton.base import dtypes
from pytriton.base.messages import InferResponse, InferTensor
from pytriton.base.model_spec import ModelSpec
from pytriton.protocol.openai.members import DocumentMembers
from pytriton.serving.engine.config import config_from_text, normalise_config, spec_from_config

VLLM_INPUTS = {
    "text_input": "STRING [1]",
    "stream": "BOOL [1] ?",
    "sampling_parameters": "STRING [1] ?",
    "exclude_input_in_output": "BOOL [1] ?",
    "return_finish_reason": "BOOL [1] ?",
    "return_logprobs": "BOOL [1] ?",
    "return_num_input_tokens": "BOOL [1] ?",
    "return_num_output_tokens": "BOOL [1] ?",
}
VLLM_OUTPUTS = {"text_output": "STRING [-1]", "logprobs": "STRING [-1]"}


def spec(
    routes: str,
    inputs: dict[str, str],
    outputs: dict[str, str] | None = None,
    *,
    decoupled: bool = True,
    max_batch_size: int = 0,
    template: str = "plain",
) -> ModelSpec:
    """A model whose tensors are written as `INT32 [1] ?`, where `?` means optional."""
    lines = [f'name: "m" backend: "python" max_batch_size: {max_batch_size}']
    for kind, tensors in (("input", inputs), ("output", outputs or {"text": "STRING [1]"})):
        for name, text in tensors.items():
            dtype, dims, *optional = text.split(" ")
            flag = "optional: true" if optional else ""
            lines.append(f'{kind} {{ name: "{name}" data_type: TYPE_{dtype} dims: {dims} {flag} }}')
    for key, value in (("openai", routes), ("openai_chat_template", template)):
        lines.append(f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}')
    if decoupled:
        lines.append("model_transaction_policy { decoupled: true }")
    return spec_from_config(normalise_config(config_from_text("\n".join(lines), "-")), 1)


def members(**values: object) -> DocumentMembers:
    return DocumentMembers(json.dumps(values).encode())


def chat(content: str = "hi", **values: object) -> DocumentMembers:
    return members(messages=[{"role": "user", "content": content}], **values)


def value_of(tensor: InferTensor) -> object:
    """The elements of a tensor; only the element if there is one."""
    if tensor.dtype is dtypes.BYTES:
        elements = [each.decode() for each in dtypes.decode_bytes(tensor.data)]
    else:
        elements = np.frombuffer(tensor.data, tensor.dtype.numpy).tolist()
    return elements[0] if len(elements) == 1 else elements


def values(tensors: dict[str, InferTensor]) -> dict[str, object]:
    return {name: value_of(tensor) for name, tensor in tensors.items()}


def response(**outputs: object) -> InferResponse:
    """A response; texts and bytes become strings, other values numbers."""
    tensors = []
    for name, given in outputs.items():
        elements = given if isinstance(given, list) else [given]
        if isinstance(elements[0], (str, bytes)):
            raw = [each.encode() if isinstance(each, str) else each for each in elements]
            data, dtype = dtypes.encode_bytes(raw), dtypes.BYTES
        else:
            array = np.array(elements)
            array = array.astype(np.int32 if array.dtype.kind == "i" else np.float32)
            data, dtype = array.tobytes(), dtypes.from_numpy(array.dtype)
        tensors.append(InferTensor(name, dtype, (len(elements),), data))
    return InferResponse("m", "1", "", tensors)
