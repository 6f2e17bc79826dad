# SPDX-License-Identifier: Apache-2.0
"""Models of pydantic as parameters and results."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import pytest
from pydantic import BaseModel, ConfigDict, Field

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


def test_batches_are_not_checked_as_they_have_other_types():
    def add(pair: Pair) -> float:
        return pair.a + pair.b

    result = ask(add, ModelConfig(max_batch_size=4), a=[[1.0], [2.0]])

    assert result == {"output": [[3.0], [4.0]]}


def test_aliases_are_refused():
    def first(pair: Aliased) -> float: ...

    with pytest.raises(SignatureError, match="is Aliased, whose field `a` has an alias"):
        read_signature(first)
