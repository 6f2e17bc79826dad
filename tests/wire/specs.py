# SPDX-License-Identifier: Apache-2.0
"""Small models for the tests of the codecs and of validation."""

from __future__ import annotations

from pytriton.base import dtypes
from pytriton.base.dtypes import DataType
from pytriton.base.messages import InferRequest, InferTensor
from pytriton.base.model_spec import ModelSpec, ModelTensor
from tests.fakes import infer_request


def tensor_spec(
    name: str,
    dtype: DataType,
    dims: tuple[int, ...],
    *,
    batched: bool,
    optional: bool = False,
    is_ragged: bool = False,
) -> ModelTensor:
    return ModelTensor(
        name=name,
        dtype=dtype,
        dims=dims,
        shape=(-1, *dims) if batched else dims,
        optional=optional,
        has_variable_dims=-1 in dims,
        is_ragged=is_ragged,
    )


def model_spec(
    *inputs: ModelTensor,
    name: str = "model",
    outputs: tuple[str, ...] = ("OUT",),
    max_batch_size: int = 0,
) -> ModelSpec:
    batched = max_batch_size > 0
    return ModelSpec(
        name=name,
        version=1,
        platform="python",
        max_batch_size=max_batch_size,
        inputs={item.name: item for item in inputs},
        outputs={item: tensor_spec(item, dtypes.FP32, (1,), batched=batched) for item in outputs},
        required_inputs=frozenset(item.name for item in inputs if not item.optional),
        batcher=None,
    )


def single(dtype: DataType, dims: tuple[int, ...] = (-1,), max_batch_size: int = 0) -> ModelSpec:
    """A model with one input called IN."""
    spec = tensor_spec("IN", dtype, dims, batched=max_batch_size > 0)
    return model_spec(spec, max_batch_size=max_batch_size)


ADD_SUB = model_spec(
    tensor_spec("a", dtypes.FP32, (1,), batched=True),
    tensor_spec("b", dtypes.FP32, (1,), batched=True),
    outputs=("add", "sub"),
    max_batch_size=8,
)


def request(*tensors: InferTensor, **fields: object) -> InferRequest:
    inputs = {tensor.name: tensor for tensor in tensors}
    return infer_request("model", inputs, **fields)
