# SPDX-License-Identifier: Apache-2.0
"""Defaults, classes and results that are unusual, without a server."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator
from typing import Annotated, Literal, TypedDict

import numpy as np
import pytest

from pytriton.base.announcement import Addresses, Announced, announcement
from pytriton.model_config import ModelConfig
from pytriton.models.binding import BindArguments, bound_model
from pytriton.runtime.functions.bound_model import BoundModel
from pytriton.runtime.signatures.served import served_model
from pytriton.runtime.signatures.signature import SignatureError

BATCHED = ModelConfig(max_batch_size=4)
ADDRESSES = Addresses("http://127.0.0.1:8000", "grpc://127.0.0.1:8001")


def answered(function, *requests, config=None):
    (infer,) = served_model(function, config=config).infer_funcs
    return [
        {name: array.tolist() for name, array in each.items()} for each in infer(list(requests))
    ]


@dataclasses.dataclass
class Point:
    x: float
    y: float = 2.0


@dataclasses.dataclass
class Words:
    items: list[str] = dataclasses.field(default_factory=list)


class Scale(TypedDict, total=False):
    factor: float


@dataclasses.dataclass
class Doubled:
    given: int
    double: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.double = 2 * self.given


def test_default_that_a_class_makes_is_new_for_each_request():
    def count(words: Words) -> int:
        words.items.append("more")
        return len(words.items)

    (infer,) = served_model(count).infer_funcs
    infer([{}])

    assert infer([{}])[0]["output"].tolist() == [1]


def test_default_of_a_parameter_with_fields_is_used():
    def total(point: Point = Point(7.0, 8.0)) -> float:  # noqa: B008  as users write it
        return point.x + point.y

    assert [tensor.optional for tensor in served_model(total).inputs] == [True, True]
    assert answered(total, {}) == [{"output": [15.0]}]
    assert answered(total, {"x": np.array([1.0])}) == [{"output": [9.0]}]


def test_default_of_a_dictionary_with_fields_is_used():
    def factor(scale: Scale = {"factor": 3.0}) -> float:  # noqa: B006  as users write it
        return scale["factor"]

    assert answered(factor, {}) == [{"output": [3.0]}]


def test_parameter_with_fields_may_be_none():
    def total(point: Point | None = None) -> float:
        return -1.0 if point is None else point.x + point.y

    assert answered(total, {}) == [{"output": [-1.0]}]
    assert answered(total, {"x": np.array([1.0])}) == [{"output": [3.0]}]
    with pytest.raises(ValueError, match="expected the inputs x, too, as there are y"):
        answered(total, {"y": np.array([1.0])})


def test_fields_that_a_class_sets_itself_are_outputs():
    def double(given: int) -> Doubled:
        return Doubled(given)

    assert answered(double, {"given": np.array([4])}) == [{"given": [4], "double": [8]}]


def test_result_with_fields_cannot_be_none():
    def maybe(x: float) -> Point | None: ...

    with pytest.raises(SignatureError, match="the result may be None"):
        served_model(maybe)


@dataclasses.dataclass
class Line:
    start: Point


def nested(line: Line) -> float: ...


def listed(points: list[Point]) -> float: ...


@pytest.mark.parametrize("function", [nested, listed])
def test_class_inside_of_another_type_is_refused_with_advice(function):
    with pytest.raises(SignatureError, match=r"Point, a class with fields inside .* each of its"):
        served_model(function)


def unknown_member(x: np.flaot32) -> float: ...


def no_expression(x: "float of") -> float: ...  # noqa: F722


@pytest.mark.parametrize(
    "function, problem",
    [(unknown_member, "AttributeError: .*flaot32"), (no_expression, "SyntaxError: ")],
)
def test_annotation_that_cannot_be_evaluated_is_told_with_its_place(function, problem):
    with pytest.raises(SignatureError, match=f"{function.__name__} .*cannot be read.*{problem}"):
        served_model(function)


def test_coroutine_that_returns_a_stream_is_refused():
    async def stream(x: float) -> Iterator[float]: ...

    with pytest.raises(SignatureError, match="it returns a stream after an await"):
        served_model(stream)


def test_empty_list_of_lists_is_a_result():
    def numbers(n: int) -> list[list[float]]:
        return []

    def words(n: int) -> list[list[str]]:
        return []

    (infer,) = served_model(numbers).infer_funcs
    assert infer([{"n": np.array([1])}])[0]["output"].shape == (0, 0)
    (infer,) = served_model(words).infer_funcs
    assert infer([{"n": np.array([1])}])[0]["output"].shape == (0, 0)


def test_batch_has_the_default_of_an_array_of_texts():
    def same(
        n: int,
        words: Annotated[np.ndarray, np.str_, (-1,)] = np.array(["é", "b"]),  # noqa: B008
    ) -> Annotated[np.ndarray, np.str_, (-1,)]:
        return words

    request = {"n": np.array([[1], [2]])}
    assert answered(same, request, config=BATCHED) == [{"output": [["é".encode(), b"b"]] * 2}]


def test_batch_of_choices_may_be_a_tuple():
    def same(mode: Literal["a", "b"]) -> Literal["a", "b"]:
        return tuple(mode)

    request = {"mode": np.array([[b"a"], [b"b"]], np.object_)}
    assert answered(same, request, config=BATCHED) == [{"output": [[b"a"], [b"b"]]}]


def bytes_default(parts: list[bytes] = [b"a"], n: int = 1) -> int: ...  # noqa: B006


def infinite_default(limit: float = float("inf"), n: int = 1) -> float: ...


def model_of(function) -> BoundModel:
    return bound_model(BindArguments(function))


@pytest.mark.parametrize("function", [bytes_default, infinite_default])
def test_example_leaves_out_defaults_that_json_has_not(function):
    model = model_of(function)

    text = "\n".join(announcement(ADDRESSES, [Announced(model.config, model.examples)]))

    assert "generate -d '{\"n\": 1}'" in text


@pytest.mark.parametrize("text", ["-", "@name", "[x", '"'])
def test_example_quotes_texts_that_the_command_would_take_for_something_else(text):
    def join(separator: str = text) -> str: ...

    model = model_of(join)

    lines = announcement(ADDRESSES, [Announced(model.config, model.examples)])

    (line,) = [line for line in lines if "pytriton infer" in line]
    assert 'separator="' in line


def test_example_names_a_server_at_another_address_with_the_usual_port():
    def one(x: float) -> float: ...

    model = model_of(one)
    addresses = Addresses("http://10.0.0.1:8000", "")

    text = "\n".join(announcement(addresses, [Announced(model.config, model.examples)]))

    assert "pytriton infer one --url http://10.0.0.1:8000 x=1" in text


class Speed(enum.Enum):
    FAST = "fast"
    GOOD = "good"


def test_example_of_choices_is_their_default_or_the_first_of_them():
    def scale(
        first: Literal["l1", "l2"],
        mode: Literal["l1", "l2"] = "l2",
        speed: Speed = Speed.GOOD,
        level: Literal[1, 2] | None = None,
    ) -> float: ...

    assert model_of(scale).examples == {"first": "l1", "mode": "l2", "speed": "good", "level": 1}
