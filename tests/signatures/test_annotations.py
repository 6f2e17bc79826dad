# SPDX-License-Identifier: Apache-2.0
"""Which tensor an annotation is, and what is said about one that is none."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NewType, Optional

import numpy as np
import pytest
from numpy.typing import NDArray

from pytriton.model_config import Tensor
from pytriton.runtime.signatures.annotations import (
    CannotInferError,
    text_of,
    value_type,
    without_none,
)
from pytriton.runtime.signatures.values import ValueForm

FP32, FP64, INT64, TEXT = np.float32, np.float64, np.int64, np.bytes_
Metres = NewType("Metres", float)


class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad"


class Mixed(enum.Enum):
    ONE = 1
    TWO = "two"


@pytest.mark.parametrize(
    "annotation, dtype, shape, form",
    [
        (float, FP64, (), ValueForm.SCALAR),
        (int, INT64, (), ValueForm.SCALAR),
        (bool, np.bool_, (), ValueForm.SCALAR),
        (str, TEXT, (), ValueForm.SCALAR),
        (bytes, TEXT, (), ValueForm.SCALAR),
        (Metres, FP64, (), ValueForm.SCALAR),
        (np.float32, FP32, (), ValueForm.NUMPY_SCALAR),
        (Annotated[float, FP32], FP32, (), ValueForm.SCALAR),
        (Annotated[int, "int8", "a size"], "int8", (), ValueForm.SCALAR),
        (list[float], FP64, (-1,), ValueForm.LIST),
        (Sequence[str], TEXT, (-1,), ValueForm.LIST),
        (list[list[int]], INT64, (-1, -1), ValueForm.LIST),
        (Annotated[list[float], FP32, (3,)], FP32, (3,), ValueForm.LIST),
        (Annotated[np.ndarray, FP32, (3, -1)], FP32, (3, -1), ValueForm.ARRAY),
        (Annotated[NDArray[FP32], (3,)], FP32, (3,), ValueForm.ARRAY),
        (Annotated[NDArray[Any], np.dtype("int16"), [2]], np.dtype("int16"), (2,), ValueForm.ARRAY),
        (Annotated[np.ndarray, Tensor(shape=(2, 2), dtype=FP32)], FP32, (2, 2), ValueForm.ARRAY),
        (Annotated[np.ndarray, "bfloat16", (1,)], "bfloat16", (1,), ValueForm.ARRAY),
        (Annotated[np.ndarray, np.str_, ()], TEXT, (), ValueForm.ARRAY),
        (np.ndarray[tuple[int, Literal[3]], np.dtype[FP32]], FP32, (-1, 3), ValueForm.ARRAY),
        (Literal["a", "b"], TEXT, (), ValueForm.SCALAR),
        (Literal[1, 2], INT64, (), ValueForm.SCALAR),
        (Mood, TEXT, (), ValueForm.SCALAR),
        (list[Mood], TEXT, (-1,), ValueForm.LIST),
    ],
)
def test_annotation_says_datatype_and_shape(annotation, dtype, shape, form):
    declared = value_type(annotation)

    assert (declared.dtype, declared.shape, declared.form) == (dtype, shape, form)


@pytest.mark.parametrize(
    "annotation, is_text",
    [
        (str, True),
        (bytes, False),
        (np.str_, True),
        (np.bytes_, False),
        (Annotated[np.ndarray, np.str_, (1,)], True),
        (Annotated[np.ndarray, object, (1,)], False),
    ],
)
def test_texts_and_byte_strings_are_told_apart(annotation, is_text):
    assert value_type(annotation).is_text is is_text


@pytest.mark.parametrize(
    "annotation, problem, advice",
    [
        (np.ndarray, "is an array without dtype and shape", "Annotated[np.ndarray, np.float32"),
        (NDArray[FP32], "is an array without shape", "-1 for a size that may vary"),
        (Annotated[np.ndarray, (3,)], "is an array without dtype", "np.float32"),
        (Annotated[np.ndarray, FP32, 3], "has the shape 3", "write the shape as (3,)"),
        (Annotated[np.ndarray, FP32, (0,)], "has the shape (0,)", "positive sizes"),
        (Annotated[np.ndarray, np.complex64, (1,)], "has the dtype complex64", "float"),
        (Annotated[str, FP32], "is str with the dtype float32", "same kind"),
        (Annotated[float, (3,)], "is float with the shape (3,)", "leave the shape out"),
        (Annotated[list[float], (3, 3)], "is list[float] with the shape", "give it 1 sizes"),
        (list, "is a list of unknown elements", "list[float]"),
        (list[NDArray[FP32]], "is an array without shape", "Annotated"),
        (list[np.float32], "is list[np.float32]", "Annotated"),
        (tuple[float, str], "is tuple[float, str]", "a dataclass with a field for each"),
        (dict, "does not say the names of its tensors", "TypedDict"),
        (dict[str, np.ndarray], "is dict[str, np.ndarray], which does not say", "TypedDict"),
        (int | str, "is int | str, one of several types", "choose one type"),
        (Mixed, "is Mixed, whose values are 1, 'two'", "all str"),
        (Literal[1, "a"], "is Literal[1, 'a'], whose values are 1, 'a'", "all str"),
        (Any, "is Any, which is not a tensor", "use float, int"),
        (complex, "is complex, which is not a tensor", "use float, int"),
        (type(None), "is None", "use float, int"),
    ],
)  # fmt: skip
def test_annotation_that_is_no_tensor_is_refused_with_advice(annotation, problem, advice):
    with pytest.raises(CannotInferError) as error:
        value_type(annotation)

    assert problem in error.value.problem
    assert advice in error.value.advice


@pytest.mark.parametrize(
    "annotation, expected",
    [
        (Optional[float], (float, True)),  # noqa: UP045  users still write it
        (float | None, (float, True)),
        (float, (float, False)),
        (int | str | None, (int | str | None, False)),
    ],
)
def test_none_is_taken_off(annotation, expected):
    assert without_none(annotation) == expected


def test_annotation_is_shown_as_it_is_written():
    shown = text_of(Annotated[NDArray[FP32], (3,)])  # `NDArray` is an alias since numpy 2.5

    assert shown.startswith(("Annotated[np.ndarray[", "Annotated[NDArray["))
    assert text_of(list[float]) == "list[float]"
    assert text_of(float) == "float"
