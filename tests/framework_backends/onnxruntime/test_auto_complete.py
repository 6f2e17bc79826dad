# SPDX-License-Identifier: Apache-2.0
"""What is filled into a configuration from what a model declares."""

from __future__ import annotations

import pytest

from pytriton.base.errors import InvalidArgumentError, UnsupportedError
from pytriton.runtime.framework_backends.onnxruntime.configuration import (
    complete,
    is_complete,
    read_signature,
)
from pytriton.runtime.framework_backends.shared import default_max_batch_size


class Node:
    """A tensor as a session describes it."""

    def __init__(self, name, shape, type_="tensor(float)"):
        self.name, self.shape, self.type = name, shape, type_


BATCHED = read_signature([Node("x", ["n", 3])], [], [Node("y", [None, "m"])])
FIXED = read_signature([Node("x", [2, 3])], [Node("w", [1])], [Node("y", [])])
VECTORS = read_signature([Node("x", ["n"])], [], [Node("y", ["n"])])


def completed(config, signature, default=4):
    config = {"name": "m", **config}
    complete(config, signature, default)
    return config


@pytest.mark.parametrize(
    "config, is_so",
    [
        ({}, False),
        ({"input": [{"name": "x"}], "output": []}, False),
        ({"output": [{"name": "y"}]}, False),
        ({"input": [{"name": "x"}], "output": [{"name": "y"}]}, True),
        ({"batch_input": [{"kind": "BATCH_ELEMENT_COUNT"}], "output": [{"name": "y"}]}, True),
    ],
)
def test_configuration_is_complete_with_inputs_and_outputs(config, is_so):
    assert is_complete(config) is is_so


def test_model_with_a_first_dimension_that_varies_batches():
    assert completed({"max_batch_size": 0}, BATCHED) == {
        "name": "m",
        "max_batch_size": 4,
        "dynamic_batching": {},
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [3]}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [-1]}],
    }


def test_model_with_fixed_shapes_does_not_batch():
    config = completed({"max_batch_size": 0}, FIXED)

    assert config["max_batch_size"] == 0
    assert "dynamic_batching" not in config
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [2, 3]}]
    # A scalar; overridable initializers are never listed.
    assert config["output"] == [{"name": "y", "data_type": "TYPE_FP32", "dims": [1]}]


def test_batch_dimension_alone_becomes_one_dimension_that_is_reshaped():
    (entry,) = completed({}, VECTORS)["input"]

    reshaped = {"dims": [1], "reshape": {"shape": []}}
    assert entry == {"name": "x", "data_type": "TYPE_FP32", **reshaped}


def test_vector_without_batching_has_its_full_shape():
    (entry,) = completed({}, VECTORS, default=0)["input"]

    assert entry == {"name": "x", "data_type": "TYPE_FP32", "dims": [-1]}


def test_batching_that_the_model_cannot_do_is_refused():
    with pytest.raises(InvalidArgumentError) as caught:
        completed({"max_batch_size": 8}, FIXED)

    assert caught.value.message == (
        "autofill failed for model 'm': model does not support batching while non-zero"
        " max_batch_size is specified"
    )


@pytest.mark.parametrize(
    "config, expected",
    [
        ({"max_batch_size": 8}, {"dynamic_batching": {}}),
        ({"max_batch_size": 1}, {}),
        ({"max_batch_size": 8, "sequence_batching": {}}, {"sequence_batching": {}}),
        (
            {"max_batch_size": 8, "dynamic_batching": {"preferred_batch_size": [2]}},
            {"dynamic_batching": {"preferred_batch_size": [2]}},
        ),
    ],
)
def test_dynamic_batching_is_added_where_nothing_is_chosen(config, expected):
    found = completed(config, BATCHED)

    assert found["max_batch_size"] == config["max_batch_size"]
    assert {key: found[key] for key in found if key.endswith("_batching")} == expected


def test_lists_that_are_there_stay_as_they_are():
    mine = [{"name": "x", "data_type": "TYPE_FP32", "dims": [7]}]

    assert completed({"input": mine, "max_batch_size": 2}, BATCHED)["input"] == mine


def test_inputs_that_the_server_adds_are_not_listed():
    signature = read_signature(
        [Node(name, ["n", 1]) for name in ("x", "start", "state")], [], [Node("y", ["n", 1])]
    )
    control = {"kind": "CONTROL_SEQUENCE_START", "fp32_false_true": [0, 1]}
    sequences = {
        "control_input": [{"name": "start", "control": [control]}],
        "state": [{"input_name": "state", "output_name": "next"}],
    }

    config = completed({"sequence_batching": sequences}, signature)

    assert [entry["name"] for entry in config["input"]] == ["x"]


def test_user_is_warned_of_a_batch_size_that_was_chosen():
    (warning,) = complete({"name": "m"}, BATCHED, 4)

    assert "set to 4" in warning
    assert complete({"name": "m", "max_batch_size": 3}, BATCHED, 4) == []


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({}, 4),
        ({"default-max-batch-size": "7"}, 7),
        ({"default-max-batch-size": "-1"}, 0),
        ({"default-max-batch-size": "0"}, 0),
    ],
)
def test_default_batch_size_is_a_setting_of_the_backend(settings, expected):
    assert default_max_batch_size(settings) == expected


def test_default_batch_size_must_be_a_number():
    with pytest.raises(InvalidArgumentError, match="expected a number as default-max-batch-size"):
        default_max_batch_size({"default-max-batch-size": "many"})


@pytest.mark.parametrize(
    "type_, data_type",
    [
        ("tensor(bool)", "TYPE_BOOL"),
        ("tensor(uint8)", "TYPE_UINT8"),
        ("tensor(uint16)", "TYPE_UINT16"),
        ("tensor(uint32)", "TYPE_UINT32"),
        ("tensor(uint64)", "TYPE_UINT64"),
        ("tensor(int8)", "TYPE_INT8"),
        ("tensor(int16)", "TYPE_INT16"),
        ("tensor(int32)", "TYPE_INT32"),
        ("tensor(int64)", "TYPE_INT64"),
        ("tensor(float16)", "TYPE_FP16"),
        ("tensor(float)", "TYPE_FP32"),
        ("tensor(double)", "TYPE_FP64"),
        ("tensor(bfloat16)", "TYPE_BF16"),
        ("tensor(string)", "TYPE_STRING"),
        ("tensor(complex64)", "TYPE_INVALID"),
        ("tensor(float8e4m3fn)", "TYPE_INVALID"),
        ("tensor(int4)", "TYPE_INVALID"),
    ],
)
def test_every_element_type_has_its_datatype(type_, data_type):
    signature = read_signature([Node("x", [1], type_)], [], [])

    assert signature.inputs["x"].data_type == data_type


@pytest.mark.parametrize(
    "type_, word",
    [
        ("seq(tensor(float))", "SEQUENCE"),
        ("map(int64,tensor(float))", "MAP"),
        ("optional(tensor(float))", "OPTIONAL"),
        ("sparse_tensor(float)", "SPARSETENSOR"),
    ],
)
def test_what_is_not_a_tensor_is_refused(type_, word):
    with pytest.raises(UnsupportedError) as caught:
        read_signature([], [], [Node("y", None, type_)])

    assert caught.value.message == (
        f"Unsupported ONNX Type 'ONNX_TYPE_{word}' for I/O 'y', expected 'ONNX_TYPE_TENSOR'."
    )


def test_dimensions_with_names_or_without_vary():
    signature = read_signature([Node("x", ["n", None, 3])], [], [Node("y", None)])

    assert signature.inputs["x"].shape == (-1, -1, 3)
    assert signature.outputs["y"].shape == ()
