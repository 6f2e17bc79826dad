# SPDX-License-Identifier: Apache-2.0
"""Decorators that pass inputs to an inference callable in a more convenient form.

The order from the outermost to the innermost is: decorators of request lists (`group_by_keys`,
`fill_optionals`), one decorator that converts the list to keyword arguments (`batch`, `sample`),
decorators of keyword arguments (`group_by_values`, `pad_batch`, `first_value`), `triton_context`.
`model` is for annotated functions, which need none of these.
"""

from pytriton.constants import TRITON_CONTEXT_FIELD_NAME
from pytriton.decorators.batching import (
    InferenceRequest,
    InferenceRequests,
    InferenceResult,
    InferenceResults,
    InputNames,
    batch,
    convert_output,
    get_inference_request_batch_size,
    group_by_keys,
    sample,
    whole_batch_callable,
)
from pytriton.decorators.context import (
    ModelConfigDict,
    TritonContext,
    get_model_config,
    get_triton_context,
    triton_context,
)
from pytriton.decorators.declaration import ModelDeclaration, model
from pytriton.decorators.inputs import (
    ConstantPadder,
    fill_optionals,
    first_value,
    group_by_values,
    pad_batch,
)

__all__ = [
    "TRITON_CONTEXT_FIELD_NAME",
    "ConstantPadder",
    "InferenceRequest",
    "InferenceRequests",
    "InferenceResult",
    "InferenceResults",
    "InputNames",
    "ModelConfigDict",
    "ModelDeclaration",
    "TritonContext",
    "batch",
    "convert_output",
    "fill_optionals",
    "first_value",
    "get_inference_request_batch_size",
    "get_model_config",
    "get_triton_context",
    "group_by_keys",
    "group_by_values",
    "model",
    "pad_batch",
    "sample",
    "triton_context",
    "whole_batch_callable",
]
