# SPDX-License-Identifier: Apache-2.0
"""Makes the tensors of a configuration's warm-up samples: zeros, random numbers or file content."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pytriton.base import dtypes
from pytriton.base.errors import InternalError, InvalidArgumentError
from pytriton.base.messages import InferTensor
from pytriton.serving.repository.loading.plans import WarmupSample
from pytriton.serving.repository.reading.layout import ModelPlace, contained_file

DIRECTORY = "warmup"
# The maximum size of a protobuf message.
MAX_TENSOR_BYTES = (2 << 30) - 1
_SEED = 0  # each load warms up with the same numbers


def build_warmup(place: ModelPlace, config: Any) -> tuple[WarmupSample, ...]:
    """Returns the samples to run; samples without requests are left out.

    Raises:
        ServerError: A sample's data cannot be made.
    """
    rng = np.random.default_rng(_SEED)
    return tuple(
        WarmupSample(
            name=sample.name,
            request_count=sample.batch_size,
            execution_count=sample.count or 1,
            inputs=tuple(
                _tensor(place, name, sample.inputs[name], rng) for name in sorted(sample.inputs)
            ),
        )
        for sample in config.model_warmup
        if sample.batch_size
    )


def _tensor(place: ModelPlace, name: str, setting: Any, rng: np.random.Generator) -> InferTensor:
    dtype = dtypes.BY_NUMBER.get(setting.data_type)
    if dtype is None:
        raise InvalidArgumentError(f"warmup setting expects a data type for input '{name}'")
    shape = tuple(setting.dims)
    if any(dim < 0 for dim in shape):
        raise InvalidArgumentError(
            f"warmup setting expects all variable-size dimensions are specified for input '{name}'"
        )
    count = math.prod(shape)
    if count * (dtype.itemsize or 4) > MAX_TENSOR_BYTES:
        raise InvalidArgumentError(
            f"warmup setting expects at most {MAX_TENSOR_BYTES} bytes for input '{name}', "
            f"got shape {list(shape)}"
        )
    source = setting.WhichOneof("input_data_type")
    if source == "input_data_file":
        data = _file_data(place, setting.input_data_file, dtype, count)
    elif source is None:
        raise InvalidArgumentError(
            f"warmup setting expects zero_data, random_data or input_data_file for input '{name}'"
        )
    elif source == "zero_data" or dtype is dtypes.BYTES:
        data = bytes(count * (dtype.itemsize or 4))  # an empty BYTES element has 4 bytes
    else:
        data = _random_data(dtype, count, rng)
    return InferTensor(name, dtype, shape, data)


def _random_data(dtype: dtypes.DataType, count: int, rng: np.random.Generator) -> bytes:
    numpy_dtype = dtype.numpy
    if numpy_dtype.kind in "biu":
        data = rng.bytes(count * dtype.itemsize)
        return (np.frombuffer(data, "u1") & 1).tobytes() if dtype is dtypes.BOOL else data
    # Random bytes would sometimes be infinite or not a number.
    return rng.random(count).astype(numpy_dtype).tobytes()


def _file_data(place: ModelPlace, name: str, dtype: dtypes.DataType, count: int) -> bytes:
    path = contained_file(place, name, under=DIRECTORY)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InternalError(
            f"failed to open text file for read {path}: {error.strerror}"
        ) from error
    if dtype is dtypes.BYTES:
        _check_elements(data, name, count)
        return data
    size = count * dtype.itemsize
    if len(data) < size:
        raise InvalidArgumentError(
            f"warmup setting expects {size} bytes, but the data provided from {name} "
            f"only has {len(data)} bytes"
        )
    return data[:size]


def _check_elements(data: bytes, name: str, count: int) -> None:
    try:
        found = len(dtypes.decode_bytes(data))
    except ValueError as error:
        raise InvalidArgumentError(
            f"warmup setting expects elements with lengths in {name}: {error}"
        ) from error
    if found != count:
        raise InvalidArgumentError(
            f"warmup setting expects {count} elements, but the data provided from {name} "
            f"has {found}"
        )
