# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from pytriton.decorators import ConstantPadder, batch, group_by_values
from pytriton.exceptions import PyTritonBadParameterError, PyTritonRuntimeError
from pytriton.proxy.types import Request


def test_rows_of_equal_value_share_a_call_and_come_back_in_order():
    calls = []

    @group_by_values("key")
    def infer(key, data):
        calls.append((key.tolist(), data.tolist()))
        return {"x": data * 10}

    outputs = infer(key=np.array([[2], [1], [2]]), data=np.array([[1], [2], [3]]))

    assert calls == [([[1]], [[2]]), ([[2], [2]], [[1], [3]])]
    assert outputs["x"].tolist() == [[10], [20], [30]]


@pytest.mark.parametrize(
    "key",
    [
        np.array([2, 1, 2]),
        np.array([[b"z"], [b"xx"], [b"z"]], dtype=object),
        np.array([[b"z"], [b"xx"], [b"z"]]),
        np.array([["z"], ["xx"], ["z"]]),
        np.array([[1.0, 2.0], [1.0, 3.0], [1.0, 2.0]]),
        np.array([b"z", b"x", b"z"], dtype=object),
        np.array([[[1], [2]], [[2], [1]], [[1], [2]]]),
    ],
)
def test_values_of_any_type_group(key):
    sizes = []

    @group_by_values("key")
    def infer(key, data):
        sizes.append(len(key))
        return {"x": data}

    outputs = infer(key=key, data=np.array([[1], [2], [3]]))

    assert sorted(sizes) == [1, 2]
    assert outputs["x"].tolist() == [[1], [2], [3]]


def test_byte_strings_do_not_run_together():
    calls = []

    @group_by_values("key")
    def infer(key):
        calls.append(key)
        return {"x": key}

    infer(key=np.array([[b"ab", b"c"], [b"a", b"bc"]], dtype=object))

    assert len(calls) == 2


def test_several_inputs_make_the_value():
    calls = []

    @group_by_values("a", "b")
    def infer(a, b):
        calls.append((a.tolist(), b.tolist()))
        return {"x": a}

    infer(a=np.array([1, 1, 0]), b=np.array([1, 2, 1]))

    assert calls == [([0], [1]), ([1], [1]), ([1], [2])]


def test_grouping_works_below_batch():
    @batch
    @group_by_values("key")
    def infer(key):
        return {"x": key * 2}

    responses = infer([Request({"key": np.array([[2], [1]])}), Request({"key": np.array([[2]])})])

    assert [item["x"].tolist() for item in responses] == [[[4], [2]], [[4]]]


def test_grouping_above_batch_is_refused():
    infer = group_by_values("key")(batch(lambda key: {"x": key}))

    expected = "The @group_by_values decorator must be used after the @batch decorator."
    with pytest.raises(PyTritonRuntimeError, match=expected):
        infer([Request({"key": np.array([[1]])})])


def test_grouping_needs_inputs():
    with pytest.raises(PyTritonBadParameterError, match="inputs to group by, got none"):
        group_by_values()


def test_missing_input_is_named():
    infer = group_by_values("key", "other")(lambda **inputs: inputs)

    with pytest.raises(PyTritonRuntimeError, match="expected the inputs key, other, got key"):
        infer(key=np.array([1]))


def test_one_row_stands_for_its_group():
    infer = group_by_values("key")(lambda key: {"x": key[:1]})

    assert infer(key=np.array([2, 1, 2]))["x"].tolist() == [2, 1, 2]


def test_wider_strings_of_a_later_group_keep_their_end():
    infer = group_by_values("key")(lambda key: {"x": np.array([b"abc"[: key[0]]] * len(key))})

    assert infer(key=np.array([3, 1]))["x"].tolist() == [b"abc", b"a"]


def test_groups_of_different_shape_need_padding():
    def infer(key):
        return {"x": np.ones((len(key), key[0]), dtype=np.int64)}

    with pytest.raises(PyTritonRuntimeError, match=r"`x` of shape \(1, 1\), got \(1, 2\); use pad"):
        group_by_values("key")(infer)(key=np.array([2, 1]))
    padded = group_by_values("key", pad_fn=ConstantPadder(7))(infer)(key=np.array([2, 1]))
    assert padded["x"].tolist() == [[1, 1], [1, 7]]


def test_output_that_a_group_lacks_is_zero_there():
    infer = group_by_values("key")(lambda key: {"x": key} if key[0] else {"x": key, "y": key + 5})

    assert infer(key=np.array([1, 0]))["y"].tolist() == [0, 5]


@pytest.mark.parametrize(
    "narrow, wide, expected",
    [
        ([[1]], [[1, 2]], [[1, 7]]),
        ([[b"x"]], [[b"x", b"yy"]], [[b"x", b""]]),
        ([["x"]], [["x", "yy"]], [["x", ""]]),
        (
            np.array([[b"x"]], dtype=object),
            np.array([[b"x", b"y"]], dtype=object),
            [[b"x", b""]],
        ),
        ([[[1]], [[2]]], [[[1, 2], [3, 4]]], [[[1, 7], [7, 7]], [[2, 7], [7, 7]]]),
    ],
)
def test_padder_fills_up_to_the_largest_shape(narrow, wide, expected):
    narrow, wide = np.array(narrow), np.array(wide)

    first, second = ConstantPadder(7)([{"x": narrow}, {"x": wide}])

    assert first["x"].tolist() == expected
    assert first["x"].dtype == second["x"].dtype
    assert second["x"].tolist() == wide.tolist()


def test_padder_leaves_missing_outputs_missing():
    first, second = ConstantPadder()([{"x": np.array([[1]])}, {"y": np.array([[1]])}])

    assert (list(first), list(second)) == (["x"], ["y"])


@pytest.mark.parametrize("other", [np.array([[1.0]]), np.array([[b"1"]]), np.array([[1]], "i4")])
def test_padder_refuses_different_types(other):
    with pytest.raises(PyTritonRuntimeError, match="must have the same dtype: `x` has int64, "):
        ConstantPadder()([{"x": np.array([[1]], "i8")}, {"x": other}])


def test_padder_refuses_different_numbers_of_dimensions():
    with pytest.raises(
        PyTritonRuntimeError, match=r"same number of dimensions, got \(1,\), \(1, 1"
    ):
        ConstantPadder()([{"x": np.array([1])}, {"x": np.array([[1]])}])
