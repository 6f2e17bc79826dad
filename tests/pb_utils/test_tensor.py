# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from triton_python_backend_utils import Tensor, TritonModelException

from pytriton.base import dtypes

ALL_NUMPY = [row for row in dtypes.BY_NUMBER.values() if row not in (dtypes.BYTES, dtypes.BF16)]


@pytest.mark.parametrize("row", ALL_NUMPY, ids=lambda row: row.name)
def test_tensor_keeps_the_array_and_knows_its_datatype(row):
    array = np.zeros((2, 3), dtype=row.numpy)
    tensor = Tensor("IN", array)

    assert tensor.name() == "IN"
    assert tensor.shape() == [2, 3]
    assert tensor.is_cpu()
    assert tensor.triton_dtype() == row.number
    assert tensor.as_numpy() is array
    assert tensor.to_wire()[:2] == (row, (2, 3))
    assert tensor.to_wire()[2] is array


def test_name_may_be_bytes():
    assert Tensor(b"IN", np.zeros(1)).name() == "IN"


NO_ARRAY = r"numpy\.ndarray"
NO_DATATYPE = r"NumPy dtype is not supported\."
WRONG = [
    (b"\xff", np.zeros(1), TypeError, "UTF-8"),
    *((name, np.zeros(1), TypeError, "name must be a str") for name in (None, 5, ["a"])),
    *(("", array, TypeError, NO_ARRAY) for array in (None, [1.0], 1.0, b"x")),
    ("", np.zeros(1), TritonModelException, "Tensor name cannot be an empty string"),
    *(
        ("A", np.zeros(1, dtype), TritonModelException, NO_DATATYPE)
        for dtype in ("<U5", "complex64", "datetime64[s]")
    ),
]


@pytest.mark.parametrize("name, array, kind, text", WRONG)
def test_wrong_name_or_array_is_refused(name, array, kind, text):
    with pytest.raises(kind, match=text):
        Tensor(name, array)


def test_array_with_gaps_is_made_contiguous():
    array = np.arange(6, dtype=np.int32).reshape(2, 3).T
    tensor = Tensor("A", array)

    assert tensor.as_numpy().flags.c_contiguous
    np.testing.assert_array_equal(tensor.as_numpy(), array)


def test_big_endian_array_is_turned_around():
    tensor = Tensor("A", np.array([1, 2], dtype=">i4"))

    assert tensor.to_wire()[0] is dtypes.INT32
    assert tensor.as_numpy().tobytes() == np.array([1, 2], dtype="<i4").tobytes()


def test_scalar_array_has_no_dimensions():
    assert Tensor("A", np.array(3.0)).shape() == []


def test_bfloat16_array_is_taken_and_given_back():
    array = np.array([1.5, -2], dtype=ml_dtypes.bfloat16)
    tensor = Tensor("A", array)

    assert tensor.to_wire()[0] is dtypes.BF16
    assert tensor.triton_dtype() == 14
    assert tensor.as_numpy() is array


def test_object_array_is_given_back_and_travels_as_texts():
    array = np.array([[b"x", 5], ["y", None]], dtype=object)
    tensor = Tensor("A", array)
    dtype, shape, elements = tensor.to_wire()

    assert tensor.as_numpy() is array
    assert dtype is dtypes.BYTES
    assert shape == (2, 2)
    assert dtypes.array_to_bytes_elements(elements) == [b"x", b"5", b"y", b"None"]


def test_object_array_of_texts_travels_as_it_is():
    array = np.array([b"x", "y"], dtype=object)

    assert Tensor("A", array).to_wire()[2] is array


@pytest.mark.parametrize("dtype", [object, "S3"])
def test_array_without_texts_is_a_bytes_tensor_without_elements(dtype):
    tensor = Tensor("A", np.array([], dtype=dtype))

    assert tensor.to_wire()[0] is dtypes.BYTES
    assert tensor.shape() == [0]


def test_array_of_fixed_length_texts_is_a_bytes_tensor():
    dtype, _, elements = Tensor("A", np.array([b"xy", b"z"])).to_wire()

    assert dtype is dtypes.BYTES
    assert dtypes.array_to_bytes_elements(elements) == [b"xy", b"z"]


def test_trusted_array_is_taken_as_it_is():
    array = np.zeros((1, 2), dtype=np.float32)
    tensor = Tensor.from_array("A", array)

    assert tensor.as_numpy() is array
    assert tensor.to_wire()[0] is dtypes.FP32


def test_tensor_shows_name_type_and_shape():
    assert repr(Tensor("A", np.zeros((1, 2), dtype=np.int8))) == "Tensor('A', INT8, shape=[1, 2])"
