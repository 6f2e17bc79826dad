# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import triton_python_backend_utils as pb_utils

A, B = (pb_utils.Tensor(name, np.zeros(1)) for name in "AB")
CONFIG = {"input": [{"name": "A", "dims": [1]}], "output": [{"name": "B", "dims": [2]}]}
NUMBERS = [
    (1, np.bool_), (2, np.uint8), (3, np.uint16), (4, np.uint32), (5, np.uint64), (6, np.int8),
    (7, np.int16), (8, np.int32), (9, np.int64), (10, np.float16), (11, np.float32),
    (12, np.float64), (13, np.object_),
]  # fmt: skip


def test_input_is_found_by_name():
    request = pb_utils.InferenceRequest(inputs=[A, B], requested_output_names=[], model_name="m")

    assert pb_utils.get_input_tensor_by_name(request, "B") is B
    assert pb_utils.get_input_tensor_by_name(request, "C") is None


def test_output_is_found_by_name():
    response = pb_utils.InferenceResponse([A, B])

    assert pb_utils.get_output_tensor_by_name(response, "B") is B
    assert pb_utils.get_output_tensor_by_name(response, "C") is None


def test_settings_are_found_by_name():
    assert pb_utils.get_input_config_by_name(CONFIG, "A") is CONFIG["input"][0]
    assert pb_utils.get_output_config_by_name(CONFIG, "B") is CONFIG["output"][0]
    assert pb_utils.get_input_config_by_name(CONFIG, "B") is None
    assert pb_utils.get_output_config_by_name({}, "B") is None


@pytest.mark.parametrize(
    "config, expected",
    [
        ({}, False),
        ({"model_transaction_policy": {}}, False),
        ({"model_transaction_policy": {"decoupled": False}}, False),
        ({"model_transaction_policy": {"decoupled": True}}, True),
    ],
)
def test_decoupled_models_are_known_by_their_configuration(config, expected):
    assert pb_utils.using_decoupled_model_transaction_policy(config) is expected


@pytest.mark.parametrize("name", sorted(pb_utils.TRITON_STRING_TO_NUMPY))
def test_datatypes_of_configurations_have_numpy_types(name):
    dtype = np.dtype(pb_utils.triton_string_to_numpy(name))
    expected = {"TYPE_BOOL": "bool", "TYPE_STRING": "object"}.get(
        name, name.removeprefix("TYPE_").lower().replace("fp", "float")
    )

    assert dtype.name == expected


@pytest.mark.parametrize("name", ["TYPE_BF16", "FP32", ""])
def test_other_datatypes_have_none(name):
    with pytest.raises(KeyError):
        pb_utils.triton_string_to_numpy(name)


@pytest.mark.parametrize("number, numpy_type", NUMBERS)
def test_numbers_and_numpy_types_correspond(number, numpy_type):
    assert pb_utils.triton_to_numpy_type(number) is numpy_type
    assert pb_utils.numpy_to_triton_type(numpy_type) == number
    assert pb_utils.numpy_to_triton_type(np.dtype(numpy_type)) == number


@pytest.mark.parametrize(
    "numpy_type, number",
    [
        *((np.bytes_, 13), ("S3", 13), (ml_dtypes.bfloat16, 14)),
        *((np.complex64, None), (np.str_, None), ("datetime64[s]", None)),
    ],
)
def test_further_numpy_types_have_numbers_or_none(numpy_type, number):
    assert pb_utils.numpy_to_triton_type(numpy_type) == number


@pytest.mark.parametrize("number", [0, 14, 15])
def test_other_numbers_have_no_numpy_type(number):
    assert pb_utils.triton_to_numpy_type(number) is None


def test_texts_are_put_in_one_piece_and_taken_apart():
    array = np.array([[b"a", "bc"], [5, b""]], dtype=object)
    piece = pb_utils.serialize_byte_tensor(array)

    assert piece == b"\1\0\0\0a\2\0\0\0bc\1\0\0\x005\0\0\0\0"
    elements = pb_utils.deserialize_bytes_tensor(piece)
    assert elements.dtype == object
    assert elements.tolist() == [b"a", b"bc", b"5", b""]


@pytest.mark.parametrize(
    "array, piece",
    [([b"a"], b"\1\0\0\0a"), (np.array([], object), ()), ([1], None), (["x"], None)],
    ids=["fixed length", "no texts", "numbers", "unicode"],
)
def test_other_arrays_are_put_in_one_piece_or_in_none(array, piece):
    assert pb_utils.serialize_byte_tensor(np.asarray(array)) == piece


def test_piece_that_ends_too_early_is_refused():
    with pytest.raises(ValueError, match="needs 1 bytes, got 0"):
        pb_utils.deserialize_bytes_tensor(b"\1\0\0\0")
