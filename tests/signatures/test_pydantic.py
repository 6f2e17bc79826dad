# SPDX-License-Identifier: Apache-2.0
"""Models of pydantic as parameters and results."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import pytest
from pydantic import BaseModel, ConfigDict, Field, model_validator

from pytriton.base.errors import InputValueError
from pytriton.model_config import ModelConfig
from pytriton.runtime.signatures.served import served_model
from pytriton.runtime.signatures.signature import SignatureError, read_signature


class Text(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    text: str
    limit: int = Field(2, ge=0)
    tags: list[str] = Field(default_factory=lambda: ["none"])
    weights: Annotated[np.ndarray, np.float32, (2,)] | None = None


class Words(BaseModel):
    words: list[str]
    count: int


class Pair(BaseModel):
    a: float
    b: float = 2.0


class Aliased(BaseModel):
    a: float = Field(alias="b")


class Range(BaseModel):
    low: float
    high: Annotated[list[float], Field(min_length=2)]

    @model_validator(mode="after")
    def is_range(self):
        if self.low > max(self.high):
            raise ValueError("low is above high")
        return self


def split(body: Text) -> Words:
    words = body.text.split()
    return Words(words=words[: body.limit], count=len(words) + len(body.tags))


def ask(function, config=None, **inputs):
    (infer,) = served_model(function, config=config).infer_funcs
    (result,) = infer([{name: np.asarray(value) for name, value in inputs.items()}])
    return {name: array.tolist() for name, array in result.items()}


def test_fields_are_tensors():
    signature = read_signature(split)

    assert [(each.name, each.dtype, each.shape, each.optional) for each in signature.inputs] == [
        ("text", np.bytes_, (1,), False),
        ("limit", np.int64, (1,), True),
        ("tags", np.bytes_, (-1,), True),
        ("weights", np.float32, (2,), True),
    ]
    assert [each.name for each in signature.outputs] == ["words", "count"]


def test_function_gets_and_returns_objects():
    assert ask(split, text=[b"a b c"]) == {"words": [b"a", b"b"], "count": [4]}


def test_each_request_has_defaults_of_its_own():
    def tagged(body: Text) -> list[str]:
        body.tags.append(body.text)
        return body.tags

    for _ in range(2):
        assert ask(tagged, text=[b"a"]) == {"output": [b"none", b"a"]}


def test_values_are_checked_by_pydantic():
    with pytest.raises(ValueError, match=r"^input `limit`: Input should be greater than or equal"):
        ask(split, text=[b"a"], limit=[-1])


def test_function_gets_one_object_for_a_batch():
    def add(pair: Pair) -> float:
        return pair.a + pair.b

    result = ask(add, ModelConfig(max_batch_size=4), a=[[1.0], [2.0]])

    assert result == {"output": [[3.0], [4.0]]}


BATCHES = ModelConfig(max_batch_size=8)


def lengths(body: Text) -> int:
    return np.array([len(text) for text in body.text])


@pytest.mark.parametrize(
    "limits, problem",
    [
        ([[-1]], "^input `limit`: Input should be greater than or equal to 0$"),
        ([[1], [2], [-3]], "^row 2: input `limit`: Input should be greater than or equal to 0$"),
    ],
)
def test_each_row_of_a_batch_is_checked(limits, problem):
    texts = [[b"a"]] * len(limits)

    assert ask(lengths, BATCHES, text=texts, limit=np.abs(limits))["output"] == [[1]] * len(limits)
    with pytest.raises(InputValueError, match=problem):
        ask(lengths, BATCHES, text=texts, limit=limits)


def test_checks_of_several_fields_hold_for_each_row():
    def width(body: Range) -> float:
        return body.high.max(axis=1) - body.low

    high = [[1.0, 2.0]] * 2
    assert ask(width, BATCHES, low=[[1.0], [0.0]], high=high)["output"] == [[1.0], [2.0]]
    with pytest.raises(InputValueError, match=r"^row 1: input .*low is above high"):
        ask(width, BATCHES, low=[[1.0], [5.0]], high=high)


def test_aliases_are_refused():
    def first(pair: Aliased) -> float: ...

    with pytest.raises(SignatureError, match="is Aliased, whose field `a` has an alias"):
        read_signature(first)
