# SPDX-License-Identifier: Apache-2.0
"""Makes a model's input tensors from a test's values, and checks them as a server does."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytriton.base import dtypes
from pytriton.base.messages import InferRequest, InferTensor
from pytriton.base.model_spec import ModelSpec, ModelTensor
from pytriton.runtime.pb_utils.tensor import Tensor
from pytriton.serving.engine.string_count import count_strings
from pytriton.serving.engine.validation import validate
from pytriton.testing.records import Request


def make_tensors(request: Request, spec: ModelSpec) -> list[Tensor]:
    """Make the tensors of a request's inputs.

    Raises:
        InvalidArgumentError: they do not fit the configuration, if that declares any tensor.
        TritonModelException: the protocol does not have the type of the array.
    """
    tensors = [
        _tensor(name, value, spec.inputs.get(name)) for name, value in request.inputs.items()
    ]
    if spec.inputs or spec.outputs:
        _check(request, tensors, spec)
    return [_reshaped(tensor, spec) for tensor in tensors]


def _reshaped(tensor: Tensor, spec: ModelSpec) -> Tensor:
    """Returns the tensor in the shape in which the model gets it."""
    expected = spec.inputs.get(tensor.name())
    if expected is None or expected.reshape is None:
        return tensor
    array = tensor.as_numpy()
    shape = expected.reshape.convert(array.shape, batching=spec.max_batch_size > 0)
    assert shape is not None, "the shape was checked before"
    return Tensor.from_array(tensor.name(), array.reshape(shape))


def _tensor(name: str, value: Any, expected: ModelTensor | None) -> Tensor:
    if isinstance(value, np.ndarray) or expected is None:
        array = np.array(value)
    else:
        array = np.array(value, dtype=expected.dtype.numpy)
    if array.dtype.kind == "U":
        array = array.astype(object)
    dtype, shape, array = Tensor(name, array).to_wire()
    if dtype is dtypes.BYTES:
        array = dtypes.bytes_elements_to_array(dtypes.array_to_bytes_elements(array), shape)
    return Tensor.from_array(name, array)


def _check(request: Request, tensors: list[Tensor], spec: ModelSpec) -> None:
    inputs = {}
    for tensor in tensors:
        dtype, shape, array = tensor.to_wire()
        is_text = dtype is dtypes.BYTES
        data = dtypes.encode_bytes(array.ravel().tolist()) if is_text else array.tobytes()
        inputs[tensor.name()] = InferTensor(tensor.name(), dtype, shape, data)
    outputs = None if request.outputs is None else tuple(request.outputs)
    message = InferRequest(
        spec.name,
        inputs,
        None,  # type: ignore[arg-type]  # nothing is sent, only the tensors are read
        id=request.id,
        outputs=outputs,
    )
    count_strings(message)
    validate(message, spec)
