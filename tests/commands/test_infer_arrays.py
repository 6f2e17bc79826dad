# SPDX-License-Identifier: Apache-2.0
"""How values that a person gives become tensors that fit a model."""

from __future__ import annotations

import numpy as np
import pytest

from pytriton.base import dtypes
from pytriton.client.kserve.errors import AskError
from pytriton.tools.commands.infer.values import (
    ValueMismatchError,
    parse_value,
    read_json,
    read_pairs,
    scalar,
    tensor_of,
)
from pytriton.tools.commands.model_cards import ModelCard, TensorCard


def array_of(datatype, shape, value, *, has_batches=True):
    return tensor_of(TensorCard("x", datatype, shape), value, has_batches=has_batches).array


@pytest.mark.parametrize(
    "shape, has_batches, value, expected",
    [
        ((-1, 1), True, 5, (1, 1)),
        ((-1, 3), True, [1, 2, 3], (1, 3)),
        ((-1, 3), True, [[1, 2, 3]] * 2, (2, 3)),
        ((-1,), True, [1, 2], (2,)),
        ((-1,), True, 1, (1,)),
        ((1, 1, 1), False, 7, (1, 1, 1)),
        ((-1, -1), False, [[1, 2]], (1, 2)),
        ((-1, 2), None, [1, 2], (1, 2)),
        ((), False, 1, ()),
        ((0,), False, [], (0,)),
    ],
)
def test_axis_of_batches_and_single_values_are_completed(shape, has_batches, value, expected):
    assert array_of("INT32", shape, value, has_batches=has_batches).shape == expected


@pytest.mark.parametrize(
    "shape, has_batches, value, words",
    [
        ((-1, 3), True, [1, 2], "expects the shape [-1, 3] (or [3] for one row), got [2]."),
        ((-1, 3), True, 1, "got a single value."),
        ((2,), False, [[1, 2]], "expects the shape [2], got [1, 2]."),
        ((-1, 2), True, [[1], [1, 2]], "expects lists of one length, got lengths 1, 2."),
        ((-1, 2), True, [[1], 1], "expects lists that are equally deep."),
    ],
)
def test_shape_that_does_not_fit_is_named(shape, has_batches, value, words):
    with pytest.raises(ValueMismatchError) as caught:
        array_of("INT32", shape, value, has_batches=has_batches)

    assert str(caught.value).startswith("Input 'x' ")
    assert words in str(caught.value)


@pytest.mark.parametrize("datatype", sorted(dtypes.BY_NAME))
def test_every_datatype_takes_a_value(datatype):
    value = {"BYTES": "text", "BOOL": True}.get(datatype, 1)

    array = array_of(datatype, (-1, 1), value)
    assert array.dtype == dtypes.BY_NAME[datatype].numpy
    assert array.shape == (1, 1)


@pytest.mark.parametrize(
    "datatype, value, words",
    [
        ("INT8", 128, "expects INT8 from -128 to 127, got 128."),
        ("UINT8", -1, "expects UINT8 from 0 to 255, got -1."),
        ("INT64", 2**63, "expects INT64 from"),
        ("INT64", 2**80, "expects INT64 from"),
        ("INT32", 1.5, "expects INT32, got 1.5."),
        ("INT32", float("nan"), "expects INT32, got nan."),
        ("FP16", 1e6, "expects FP16 within its range, got 1000000.0."),
        ("FP32", 1e40, "expects FP32 within its range, got 1e+40."),
        ("FP32", "1", "expects FP32, got '1'."),
        ("FP32", None, "expects FP32, got None."),
        ("BOOL", 2, "expects BOOL (true or false), got 2."),
        ("BYTES", 2, "expects text (BYTES), got 2."),
        ("FP32", np.array(["a"]), "expects FP32, got an array of <U1."),
        ("FP99", 1, "has the unknown datatype FP99."),
    ],
)
def test_value_that_does_not_fit_its_datatype_is_named(datatype, value, words):
    with pytest.raises(ValueMismatchError) as caught:
        array_of(datatype, (-1, 1), value)

    assert words in str(caught.value)


@pytest.mark.parametrize(
    "datatype, value, expected",
    [
        ("FP32", np.array([1.5], np.float64), [[1.5]]),
        ("INT32", np.array([2.0]), [[2]]),
        ("FP64", np.array([True]), [[1.0]]),
        ("BOOL", np.array([1, 0])[:1], [[True]]),
        ("FP32", float("inf"), [[np.inf]]),
        ("BYTES", np.array(["ä"]), [["ä".encode()]]),
        ("BYTES", b"\xff", [[b"\xff"]]),
        ("UINT64", 2**64 - 1, [[2**64 - 1]]),
    ],
)
def test_values_are_converted_where_nothing_is_lost(datatype, value, expected):
    assert array_of(datatype, (-1, 1), value).tolist() == expected


@pytest.mark.parametrize(
    "datatype, text, expected",
    [
        ("BYTES", "true", "true"),
        ("BYTES", "5", "5"),
        ("BYTES", '"quoted"', "quoted"),
        ("BYTES", '["a", "b"]', ["a", "b"]),
        ("BYTES", "[no JSON", "[no JSON"),
        ("BYTES", "@@home", "@home"),
        ("BYTES", "-", b"from stdin"),
        ("FP32", "1e3", 1000.0),
        ("BOOL", "true", True),
    ],
)
def test_text_is_read_by_the_datatype(datatype, text, expected):
    tensor = TensorCard("x", datatype, (1,))

    assert parse_value(tensor, text, lambda: b"from stdin") == expected


def test_file_that_a_datatype_cannot_have_is_refused(tmp_path):
    (tmp_path / "a.png").write_bytes(b"abc")
    path = f"@{tmp_path}/a.png"

    assert parse_value(TensorCard("x", "UINT8", (-1,)), path, bytes).tolist() == [97, 98, 99]
    with pytest.raises(AskError, match=r"expected a \.npy, \.npz or \.json file"):
        parse_value(TensorCard("x", "FP32", (-1,)), path, bytes)


def test_pickled_arrays_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{}], object), allow_pickle=True)

    with pytest.raises(AskError, match="is not an array of numpy"):
        parse_value(TensorCard("x", "FP32", (-1,)), f"@{tmp_path}/a.npy", bytes)


def card(*names):
    return ModelCard("m", inputs=tuple(TensorCard(name, "BYTES", (1,)) for name in names))


def test_model_with_one_input_takes_a_bare_value():
    assert read_pairs(["hello"], card("x")) == {"x": "hello"}
    assert read_pairs(["a b = c"], card("x")) == {"x": "a b = c"}
    assert read_pairs(["x=y=z"], card("x")) == {"x": "y=z"}


def test_json_comes_from_a_file_or_standard_input(tmp_path):
    (tmp_path / "a.json").write_text('{"x": "from file"}')

    assert read_json(f"{tmp_path}/a.json", card("x")).values == {"x": "from file"}
    assert read_json("-", card("x"), lambda: b'{"x": "y"}').values == {"x": "y"}
    with pytest.raises(AskError, match=r"m has no input 'z'\. Its inputs are"):
        read_json('{"z": 1}', card("x"))


def test_misspelt_input_is_refused_with_the_nearest():
    with pytest.raises(
        AskError, match=r"m has no input 'nam', did you mean 'name'\? Its inputs are"
    ):
        read_json('{"nam": 1}', card("name"))


def test_scalars_of_parameters_keep_their_types():
    given = [scalar(text) for text in ("1", "1.5", "true", "text", "[1]", '"1"')]

    assert given == [1, 1.5, True, "text", "[1]", "1"]
