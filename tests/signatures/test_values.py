# SPDX-License-Identifier: Apache-2.0
"""How values of a declared type are converted from and to arrays."""

from __future__ import annotations

import enum
from typing import Annotated, Literal

import numpy as np
import pytest

from pytriton.runtime.signatures.annotations import value_type

FP32 = np.float32


class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad"


def objects(*elements, shape=None):
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return array.reshape(shape or (len(elements),))


@pytest.mark.parametrize(
    "annotation, array, expected",
    [
        (float, np.array([1.5]), 1.5),
        (int, np.array([3]), 3),
        (bool, np.array([True]), True),
        (str, objects("é".encode()), "é"),
        (bytes, objects(b"\xff\x00"), b"\xff\x00"),
        (np.float32, np.array([1.5], FP32), FP32(1.5)),
        (np.str_, objects(b"a"), np.str_("a")),
        (list[float], np.array([1.0, 2.0]), [1.0, 2.0]),
        (list[list[int]], np.array([[1], [2]]), [[1], [2]]),
        (list[str], objects(b"a", b"b"), ["a", "b"]),
        (Literal["a", "b"], objects(b"b"), "b"),
        (Mood, objects(b"bad"), Mood.BAD),
        (list[Mood], objects(b"bad", b"good"), [Mood.BAD, Mood.GOOD]),
    ],
)
def test_input_of_one_request_is_what_is_declared(annotation, array, expected):
    value = value_type(annotation).from_array(array, batched=False)

    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    "annotation, array, expected",
    [
        (float, np.array([[1.5], [2.5]]), np.array([1.5, 2.5])),
        (np.float32, np.array([[1.5]], FP32), np.array([1.5], FP32)),
        (list[float], np.array([[1.0, 2.0]]), np.array([[1.0, 2.0]])),
        (Annotated[np.ndarray, FP32, ()], np.array([[1.0]], FP32), np.array([1.0], FP32)),
        (Annotated[np.ndarray, np.str_, ()], objects(b"ab", shape=(1, 1)), np.array(["ab"])),
    ],
)
def test_numbers_of_a_batch_are_arrays_with_one_more_axis(annotation, array, expected):
    value = value_type(annotation).from_array(array, batched=True)

    assert isinstance(value, np.ndarray)
    assert value.dtype == expected.dtype
    np.testing.assert_array_equal(value, expected, strict=True)


@pytest.mark.parametrize(
    "annotation, array, expected",
    [
        (str, objects(b"a", b"b", shape=(2, 1)), ["a", "b"]),
        (bytes, objects(b"a", shape=(1, 1)), [b"a"]),
        (list[str], objects(b"a", b"b", shape=(1, 2)), [["a", "b"]]),
        (Mood, objects(b"good", shape=(1, 1)), [Mood.GOOD]),
    ],
)
def test_texts_of_a_batch_are_lists(annotation, array, expected):
    assert value_type(annotation).from_array(array, batched=True) == expected


def test_array_is_not_copied():
    array = np.zeros((2, 3), FP32)

    declared = value_type(Annotated[np.ndarray, FP32, (3,)])

    assert declared.from_array(array, batched=True) is array
    assert declared.to_array(array, 2) is array


@pytest.mark.parametrize(
    "annotation, array, problem",
    [
        (str, objects(b"\xff"), r"expected text in UTF-8, got the bytes b'\\xff'"),
        (Mood, objects(b"x"), "expected one of 'good', 'bad', got 'x'"),
        (Literal[1, 2], np.array([3]), "expected one of 1, 2, got 3"),
    ],
)
def test_input_that_is_not_allowed_is_refused(annotation, array, problem):
    with pytest.raises(ValueError, match=problem):
        value_type(annotation).from_array(array, batched=False)


@pytest.mark.parametrize(
    "annotation, value, expected",
    [
        (float, 1, np.array([1.0])),
        (float, FP32(1.5), np.array([1.5])),
        (float, np.array([1.5]), np.array([1.5])),
        (int, True, np.array([1])),
        (Annotated[int, np.uint8], 255, np.array([255], np.uint8)),
        (list[float], [], np.array([], np.float64)),
        (list[int], [], np.array([], np.int64)),
        (list[float], (1, 2), np.array([1.0, 2.0])),
        (Annotated[np.ndarray, FP32, (2,)], [1, 2], np.array([1, 2], FP32)),
        (Annotated[np.ndarray, FP32, ()], FP32(1), np.array([1], FP32)),
        (str, "é", objects("é".encode())),
        (bytes, b"\xff\x00", objects(b"\xff\x00")),
        (list[list[str]], [["a", "b"]], objects(b"a", b"b", shape=(1, 2))),
        (Annotated[np.ndarray, np.str_, (2,)], np.array(["a", "b"]), objects(b"a", b"b")),
        (Mood, Mood.BAD, objects(b"bad")),
        (Literal["a"], "a", objects(b"a")),
    ],
)
def test_result_becomes_an_array_of_the_declared_type(annotation, value, expected):
    array = value_type(annotation).to_array(value, None)

    np.testing.assert_array_equal(array, expected, strict=True)


@pytest.mark.parametrize(
    "annotation, value, expected",
    [
        (float, np.array([1.0, 2.0]), np.array([[1.0], [2.0]])),
        (float, np.array([[1.0], [2.0]]), np.array([[1.0], [2.0]])),
        (str, ["a", "b"], objects(b"a", b"b", shape=(2, 1))),
        (list[str], [["a"], ["b"]], objects(b"a", b"b", shape=(2, 1))),
    ],
)
def test_results_of_a_batch_have_a_row_for_each_request(annotation, value, expected):
    np.testing.assert_array_equal(value_type(annotation).to_array(value, 2), expected, strict=True)


@pytest.mark.parametrize(
    "annotation, value, rows, problem",
    [
        (float, None, None, "expected float, got None: is a return missing?"),
        (float, "1", None, "expected float, got str '1'"),
        (int, 1.5, None, "expected int, got float 1.5"),
        (int, 2**70, None, "expected numbers in the range of int64"),
        (Annotated[int, np.int8], 300, None, "expected numbers in the range of int8, got 300"),
        (str, 5, None, "expected str, got int 5"),
        (list[str], ["a", 5], None, r"expected list\[str\], got int 5"),
        (list[str], "abc", None, r"expected shape \(-1,\), got shape \(\)"),
        (list[list[float]], [[1.0], [1.0, 2.0]], None, r"expected list\[list\[float\]\], got list"),
        (list[list[str]], [["a"], ["b", "c"]], None, "expected lists of the same length"),
        (list[float], 1.0, None, r"expected shape \(-1,\), got shape \(\)"),
        (Annotated[np.ndarray, FP32, (3,)], np.zeros(2, FP32), None,
         r"expected shape \(3,\), got shape \(2,\)"),
        (Annotated[np.ndarray, np.int64, (2,)], np.zeros(2, FP32), None,
         "expected an array of int, got ndarray"),
        (float, np.zeros(3), 2, r"expected shape \(2,\), as the batch has 2 rows, got"),
        (str, ["a"], 2, "as the batch has 2 rows"),
        (Mood, "x", None, "expected one of 'good', 'bad', got 'x'"),
    ],
)  # fmt: skip
def test_result_of_another_type_or_shape_is_refused(annotation, value, rows, problem):
    with pytest.raises(ValueError, match=problem):
        value_type(annotation).to_array(value, rows)
