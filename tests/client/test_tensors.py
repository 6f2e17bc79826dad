# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from pytriton.client import tensors
from pytriton.client.exceptions import PyTritonClientValueError
from pytriton.model_config.triton_model_config import TensorSpec, TritonModelConfig

ONE = np.ones(1, np.float32)
CONFIG = TritonModelConfig(
    "Model", inputs=[TensorSpec(name, (1,), np.float32) for name in ("a", "b", "c")]
)


def test_inputs_are_needed():
    with pytest.raises(PyTritonClientValueError, match="Provide input data"):
        tensors.check_convention((), {})


def test_inputs_by_position_and_by_name_do_not_mix():
    with pytest.raises(
        PyTritonClientValueError,
        match="Use either positional either keyword method arguments convention",
    ):
        tensors.check_convention((ONE,), {"b": ONE})


@pytest.mark.parametrize("positional,named", [(([1.0],), {}), ((), {"a": 1.0})])
def test_inputs_have_to_be_arrays(positional, named):
    with pytest.raises(PyTritonClientValueError, match=r"is not a numpy array: got (list|float)"):
        tensors.check_arrays(positional, named)


@pytest.mark.parametrize("values", [{}, {"a": "x", "b": 1, "c": True}])
def test_parameters_may_be(values):
    assert tensors.check_parameters("Parameters", values) is None


@pytest.mark.parametrize(
    "values,text",
    [
        ([("a", 1)], "must be a dict, got list"),
        ({1: "x"}, "names of type str, got 1 of type int"),
        ({"a": 1.5}, "for 'a', got float"),
        ({"a": None}, "for 'a', got NoneType"),
    ],
)
def test_parameters_may_not_be(values, text):
    with pytest.raises(PyTritonClientValueError, match=text):
        tensors.check_parameters("Parameters", values)


@pytest.mark.parametrize("count,names", [(1, ["a"]), (3, ["a", "b", "c"])])
def test_positional_inputs_take_the_model_s_names_as_far_as_they_go(count, names):
    assert list(tensors.name_inputs(CONFIG, (ONE,) * count, {})) == names


def test_more_inputs_than_the_model_has_are_refused():
    expected = r"Expected at most 3 inputs for model Model \(a, b, c\), got 4"

    with pytest.raises(PyTritonClientValueError, match=expected):
        tensors.name_inputs(CONFIG, (ONE,) * 4, {})


def test_parameters_of_the_queue_are_told_from_the_model_s():
    given = {"priority": 1, "timeout": 1000, "mine": "x"}

    assert tensors.split_parameters(given) == ({"mine": "x"}, {"priority": 1, "timeout": 1000})
    assert tensors.split_parameters({"timeout": 1}) == (None, {"timeout": 1})
    assert tensors.split_parameters({"mine": 1}) == ({"mine": 1}, {})
    assert tensors.split_parameters(None) == (None, {})


@pytest.mark.parametrize("value", ["1", True, -1])
def test_parameter_of_the_queue_has_to_be_a_number(value):
    with pytest.raises(PyTritonClientValueError, match="expected an integer of 0 or more"):
        tensors.split_parameters({"priority": value})


def test_parameters_of_sequences_are_told_from_the_model_s():
    sequence = {"sequence_id": 7, "sequence_start": True, "sequence_end": False}

    assert tensors.split_parameters({**sequence, "mine": "x"}) == ({"mine": "x"}, sequence)
    assert tensors.split_parameters({"sequence_id": "a"}) == (None, {"sequence_id": "a"})


@pytest.mark.parametrize(
    "name,value,expected",
    [
        ("sequence_id", -1, "an integer of 0 or more"),
        ("sequence_id", True, "an integer of 0 or more"),
        ("sequence_start", 1, "a bool"),
        ("sequence_end", "yes", "a bool"),
    ],
)
def test_parameters_of_sequences_have_their_types(name, value, expected):
    with pytest.raises(PyTritonClientValueError, match=f"expected {expected} for '{name}'"):
        tensors.split_parameters({name: value})


def test_batch_axis_comes_and_goes():
    batch = tensors.add_batch_axis({"a": ONE, "scalar": np.array(1)})

    assert [array.shape for array in batch.values()] == [(1, 1), (1,)]
    assert tensors.remove_batch_axis({"a": batch["a"], "left_out": None}) == {
        "a": ONE,
        "left_out": None,
    }


@pytest.mark.parametrize(
    "array,datatype",
    [
        (np.zeros(1, np.float16), "FP16"),
        (np.zeros(1, bool), "BOOL"),
        (np.zeros(1, ml_dtypes.bfloat16), "BF16"),
        (np.array([b"x"]), "BYTES"),
        (np.array([b"x"], object), "BYTES"),
        (np.zeros(0, object), "BYTES"),
    ],
)
def test_array_has_a_datatype(array, datatype):
    assert tensors.datatype_of("a", array) == datatype


@pytest.mark.parametrize(
    "array,text",
    [
        (np.array(["text"]), "Encode it first"),
        (np.array(["text"], object), "elements of type str"),
    ],
)
def test_text_has_to_be_encoded(array, text):
    with pytest.raises(PyTritonClientValueError, match=text) as raised:
        tensors.datatype_of("a", array)

    assert isinstance(raised.value, RuntimeError)  # which users of PyTriton catch


@pytest.mark.parametrize("dtype", [np.complex64, ">f4", "datetime64[s]"])
def test_array_of_a_type_that_the_protocol_lacks_is_refused(dtype):
    with pytest.raises(PyTritonClientValueError, match="got dtype"):
        tensors.datatype_of("a", np.zeros(1, dtype))
