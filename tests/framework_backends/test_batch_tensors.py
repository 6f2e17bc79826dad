# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from pytriton.base.errors import InternalError
from pytriton.runtime.framework_backends.batch_tensors import BatchTensors

# Two requests with 1 and 2 rows, of 3 and 4 elements each.
SHAPES = {"X": [(1, 3), (2, 4)]}
INPUTS = {"X": np.arange(11, dtype=np.float32)}
ROWS = [1, 2]


def batch_input(kind, data_type="TYPE_INT32"):
    return {
        "kind": kind,
        "target_name": ["T"],
        "data_type": data_type,
        "source_input": ["X"],
    }


def config(*entries, ragged=True, **members):
    return {
        "input": [{"name": "X", "allow_ragged_batch": ragged}],
        "batch_input": list(entries),
        **members,
    }


@pytest.mark.parametrize(
    "kind, expected",
    [
        ("BATCH_ELEMENT_COUNT", [3, 8]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT", [3, 11]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", [0, 3, 11]),
        ("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", [0] * 8),
        ("BATCH_ITEM_SHAPE", [[3], [4], [4]]),
        ("BATCH_ITEM_SHAPE_FLATTEN", [3, 4, 4]),
    ],
)
def test_batch_input_has_what_its_kind_says(kind, expected):
    tensors = BatchTensors(config(batch_input(kind)))

    prepared = tensors.prepare(INPUTS, ROWS, SHAPES)

    assert tensors.has_inputs
    assert prepared["T"].tolist() == expected
    assert prepared["T"].dtype == np.int32


def test_batch_input_can_have_floats():
    tensors = BatchTensors(config(batch_input("BATCH_ELEMENT_COUNT", "TYPE_FP32")))

    assert tensors.prepare(INPUTS, ROWS, SHAPES)["T"].dtype == np.float32


def test_shapes_that_are_equal_come_from_the_array():
    inputs = {"X": np.zeros((3, 5), np.float32)}
    tensors = BatchTensors(config(batch_input("BATCH_ELEMENT_COUNT")))

    prepared = tensors.prepare(inputs, ROWS, {})

    assert prepared["T"].tolist() == [5, 10]
    assert prepared["X"].shape == (15,)


def test_an_input_that_is_not_ragged_keeps_its_shape():
    tensors = BatchTensors(config(batch_input("BATCH_ELEMENT_COUNT"), ragged=False))

    assert tensors.prepare({"X": np.zeros((3, 5))}, ROWS, {})["X"].shape == (3, 5)


def test_batch_output_is_cut_by_the_shapes_of_its_source():
    entry = {"target_name": ["Y"], "source_input": ["X"]}
    tensors = BatchTensors(config(batch_output=[entry]))

    outputs = tensors.scatter({"Y": np.arange(11), "Z": np.zeros(3)}, INPUTS, ROWS, SHAPES)

    assert [part.shape for part in outputs["Y"]] == [(1, 3), (2, 4)]
    assert outputs["Y"][1].ravel().tolist() == list(range(3, 11))
    assert outputs["Z"].shape == (3,)


def test_batch_output_of_another_size_is_an_error():
    entry = {"target_name": ["Y"], "source_input": ["X"]}
    tensors = BatchTensors(config(batch_output=[entry]))

    with pytest.raises(InternalError, match=r"expected 11 elements in batch output 'Y'.*got 4"):
        tensors.scatter({"Y": np.arange(4)}, INPUTS, ROWS, SHAPES)


def test_configuration_without_ragged_tensors_needs_nothing():
    tensors = BatchTensors({"input": [{"name": "X"}]})

    assert not tensors.has_inputs
    assert not tensors.has_outputs
