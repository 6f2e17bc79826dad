# SPDX-License-Identifier: Apache-2.0
import dataclasses

import ml_dtypes
import numpy as np
import pytest

from pytriton.base import dtypes
from pytriton.exceptions import PyTritonValidationError
from pytriton.model_config import Tensor
from pytriton.model_config.tensor import triton_datatype


@pytest.mark.parametrize(
    "dtype, expected",
    [
        (np.float32, np.float32),
        (np.dtype("float32"), np.float32),
        (np.dtype(">f4"), np.float32),
        ("float32", np.float32),
        ("int8", np.int8),
        (bool, np.bool_),
        (int, np.int64),
        (float, np.float64),
        (np.bool_, np.bool_),
        (bytes, np.bytes_),
        (np.bytes_, np.bytes_),
        (np.dtype("S7"), np.bytes_),
        (object, np.object_),
        (np.object_, np.object_),
        (str, np.str_),
        (np.str_, np.str_),
        ("bfloat16", ml_dtypes.bfloat16),
        (ml_dtypes.bfloat16, ml_dtypes.bfloat16),
    ],
)
def test_tensor_keeps_the_numpy_type_of_its_dtype(dtype, expected):
    assert Tensor(shape=(1,), dtype=dtype).dtype is expected


NO_TYPE = "that Triton has a type for, got "
NO_SHAPE = "sequence of integers, got"
NO_SIZES = "positive or -1, got shape"


@pytest.mark.parametrize(
    "shape, dtype, text",
    [
        *(((1,), dtype, NO_TYPE) for dtype in (None, "float31", np.complex64, "datetime64[s]")),
        ((1,), np.dtype([("a", "f4")]), NO_TYPE),
        ((1,), np.complex128, r"got <class 'numpy\.complex128'>"),
        *((shape, np.float32, NO_SHAPE) for shape in (3, ("a",), (1.5,), None)),
        *((shape, np.float32, NO_SIZES) for shape in ((0,), (1, -2))),
    ],
)
def test_tensor_refuses_a_dtype_without_triton_type_and_what_is_no_shape(shape, dtype, text):
    with pytest.raises(PyTritonValidationError, match=text):
        Tensor(shape=shape, dtype=dtype)


@pytest.mark.parametrize(
    "dtype, name",
    [
        (np.bool_, "BOOL"), (np.int8, "INT8"), (np.int16, "INT16"), (np.int32, "INT32"),
        (np.int64, "INT64"), (np.uint8, "UINT8"), (np.uint16, "UINT16"), (np.uint32, "UINT32"),
        (np.uint64, "UINT64"), (np.float16, "FP16"), (np.float32, "FP32"), (np.float64, "FP64"),
        (bytes, "BYTES"), (np.bytes_, "BYTES"), (object, "BYTES"), (np.object_, "BYTES"),
        (str, "BYTES"), ("bfloat16", "BF16"), (ml_dtypes.bfloat16, "BF16"),
    ],
)  # fmt: skip
def test_datatype_follows_from_dtype(dtype, name):
    assert triton_datatype(dtype) is dtypes.BY_NAME[name]


def test_tensor_takes_shape_and_dtype_first():
    assert Tensor((1, 2), np.float32, "x", True) == Tensor(
        shape=(1, 2), dtype=np.float32, name="x", optional=True
    )


@pytest.mark.parametrize("shape", [(-1, 3), [-1, 3], (np.int64(-1), np.int64(3))])
def test_tensor_keeps_its_shape_as_a_tuple(shape):
    assert Tensor(shape=shape, dtype=np.float32).shape == (-1, 3)


def test_tensor_cannot_be_changed():
    tensor = Tensor(shape=(1,), dtype=np.float32)

    with pytest.raises(dataclasses.FrozenInstanceError):
        tensor.name = "x"
