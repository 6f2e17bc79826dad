# SPDX-License-Identifier: Apache-2.0
"""Annotated callables as `bind` gets them: called with lists of requests, without a server."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, TypedDict

import numpy as np
import pytest
from numpy.typing import NDArray

from pytriton.decorators import model, whole_batch_callable
from pytriton.decorators.declaration import default_name
from pytriton.exceptions import PyTritonValidationError
from pytriton.model_config import ModelConfig, Tensor
from pytriton.runtime.signatures.served import served_model
from pytriton.runtime.signatures.signature import SignatureError

BATCHED = ModelConfig(max_batch_size=8)


def request(**inputs):
    return {name: np.asarray(value) for name, value in inputs.items()}


def texts(*values):
    return np.array([[value] for value in values], np.object_)


def plain(results):
    return [{name: array.tolist() for name, array in each.items()} for each in results]


def call(function, *requests, config=None, **given):
    (infer,) = served_model(function, config=config, **given).infer_funcs
    return infer(list(requests))


def add(a: float, b: float = 2.0) -> float:
    return a + b


def test_function_gets_one_request_as_it_declares():
    assert plain(call(add, request(a=[1.0], b=[3.0]))) == [{"output": [4.0]}]
    assert not served_model(add).config.batching


def test_default_is_used_for_an_input_that_is_left_out():
    assert plain(call(add, request(a=[1.0]))) == [{"output": [3.0]}]


def test_function_gets_whole_batches_if_it_has_a_size():
    seen = []

    def total(a: float, b: float) -> float:
        seen.append(a.tolist())
        return a + b

    results = call(
        total, request(a=[[1.0], [2.0]], b=[[1.0], [1.0]]), request(a=[[5.0]], b=[[1.0]]),
        config=BATCHED,
    )  # fmt: skip

    assert seen == [[1.0, 2.0, 5.0]]
    assert plain(results) == [{"output": [[2.0], [3.0]]}, {"output": [[6.0]]}]


def test_server_may_pass_whole_batches_without_splitting_them():
    def total(a: float, b: float) -> float:
        return a + b

    (infer,) = served_model(total, config=BATCHED).infer_funcs

    assert whole_batch_callable(infer) is not None


def test_requests_of_a_batch_with_different_inputs_are_called_apart():
    seen = []

    def scaled(a: float, factor: float = 10.0, note: str | None = None) -> float:
        seen.append((a.tolist(), factor.tolist(), note))
        return a * factor

    results = call(
        scaled, request(a=[[1.0]]), request(a=[[2.0]], factor=[[2.0]]), request(a=[[3.0]]),
        request(a=[[4.0]], note=texts(b"n")), config=BATCHED,
    )  # fmt: skip

    assert seen == [([1.0, 3.0], [10.0, 10.0], None), ([2.0], [2.0], None), ([4.0], [10.0], ["n"])]
    assert plain(results) == [{"output": [[each]]} for each in (10.0, 4.0, 30.0, 40.0)]


@dataclasses.dataclass
class Box:
    corners: Annotated[NDArray[np.float32], (2,)]
    label: str = "none"


class Answer(TypedDict):
    label: str
    size: float


def test_fields_of_classes_are_tensors():
    def measure(box: Box) -> Answer:
        return {"label": box.label, "size": float(box.corners.sum())}

    results = call(measure, request(corners=np.array([1, 2], np.float32)))

    assert plain(results) == [{"label": [b"none"], "size": [3.0]}]


def test_coroutine_function_stays_one():
    async def slow(a: float) -> float:
        await asyncio.sleep(0)
        return a + 1

    assert plain(asyncio.run(call(slow, request(a=[1.0])))) == [{"output": [2.0]}]
    batched = call(slow, request(a=[[1.0]]), request(a=[[2.0]]), config=BATCHED)
    assert plain(asyncio.run(batched)) == [{"output": [[2.0]]}, {"output": [[3.0]]}]


def test_generator_is_a_decoupled_model():
    def count(n: int) -> Iterator[int]:
        yield from range(n)

    assert served_model(count).config.decoupled
    assert [plain(each) for each in call(count, request(n=[2]))] == [
        [{"output": [0]}], [{"output": [1]}],
    ]  # fmt: skip


def test_generator_of_batches_yields_rows():
    def count(n: int) -> Iterator[int]:
        yield n + 1

    (results,) = call(count, request(n=[[2]]), request(n=[[3], [4]]), config=BATCHED)

    assert plain(results) == [{"output": [[3]]}, {"output": [[4], [5]]}]


def test_generator_that_nobody_waits_for_is_closed():
    ended = []

    def count(n: int) -> Iterator[int]:
        try:
            yield n
        finally:
            ended.append(n)

    responses = call(count, request(n=[1]))
    next(responses)
    responses.close()

    assert ended == [1]


def test_async_generator_stays_one():
    ended = []

    async def count(n: int) -> AsyncIterator[int]:
        try:
            yield n
            yield n + 1
        finally:
            ended.append(n)

    async def take_one():
        responses = call(count, request(n=[1]))
        first = await anext(responses)
        await responses.aclose()
        return first

    assert plain(asyncio.run(take_one())) == [{"output": [1]}]
    assert ended == [1]


def test_generator_of_batches_cannot_have_optional_inputs():
    def count(n: int = 3) -> Iterator[int]:
        yield n

    with pytest.raises(SignatureError, match=r"cannot have optional inputs, got n: .* max_batch"):
        served_model(count, config=BATCHED)


class Counter:
    def __init__(self, start: int = 0) -> None:
        self.count = start

    def __call__(self, by: int) -> int:
        self.count += by
        return self.count


def test_each_instance_of_a_class_is_an_object():
    first, second = served_model(Counter, instances=2).infer_funcs

    assert plain(first([request(by=[2])])) == [{"output": [2]}]
    assert plain(first([request(by=[2])])) == [{"output": [4]}]
    assert plain(second([request(by=[5])])) == [{"output": [5]}]


def test_objects_are_instances():
    assert len(served_model([Counter(), Counter(5)]).infer_funcs) == 2


def test_class_that_needs_arguments_is_refused():
    class Loader:
        def __init__(self, path: str) -> None: ...

        def __call__(self, a: float) -> float: ...

    with pytest.raises(PyTritonValidationError, match=r"Loader\(path: 'str'\).*or bind an object"):
        served_model(Loader)


def test_instances_with_different_tensors_are_refused():
    with pytest.raises(SignatureError, match=r"the same inputs and outputs, got add .* and .*Coun"):
        served_model([add, Counter()])


def test_given_inputs_are_passed_as_arrays():
    def total(a, b=None) -> float:
        return float(a.sum()) + (0 if b is None else 1)

    model_inputs = [
        Tensor(shape=(2,), dtype=np.float32, name="a"),
        Tensor(shape=(1,), dtype=np.float32, name="b", optional=True),
    ]

    assert plain(call(total, request(a=[1.0, 2.0]), inputs=model_inputs)) == [{"output": [3.0]}]
    assert served_model(total, inputs=model_inputs).inputs == model_inputs


def test_unnamed_inputs_have_the_names_of_parameters():
    def total(a, b) -> float: ...

    served = served_model(total, inputs=[Tensor(shape=(1,), dtype=np.float32)] * 2)

    assert [tensor.name for tensor in served.inputs] == ["a", "b"]


def test_given_input_without_a_parameter_is_refused():
    with pytest.raises(SignatureError, match="a parameter for the input `x`, got the parameters a"):
        served_model(add, inputs=[Tensor(shape=(1,), dtype=np.float32, name="x")])


@pytest.mark.parametrize(
    "result", [{"x": [1.0], "y": [2.0]}, [[1.0], [2.0]], ([1.0], np.array([2.0]))]
)
def test_given_outputs_are_returned_by_name_or_in_order(result):
    def pair(a: float):
        return result

    outputs = [Tensor(shape=(1,), dtype=np.float32, name=name) for name in "xy"]

    assert plain(call(pair, request(a=[1.0]), outputs=outputs)) == [{"x": [1.0], "y": [2.0]}]


@pytest.mark.parametrize(
    "result, problem",
    [
        ("x", "wrong returned for output `output`: expected float, got str 'x'"),
        (None, "wrong returned for output `output`: expected float, got None: is a return missing"),
    ],
)
def test_wrong_result_is_told(result, problem):
    def wrong(a: float) -> float:
        return result

    wrong.__qualname__ = "wrong"

    with pytest.raises(ValueError, match=problem):
        call(wrong, request(a=[1.0]))


def test_wrong_record_is_told():
    def wrong(a: float) -> Answer:
        return {"label": "a"} if a else a

    with pytest.raises(ValueError, match="expected the keys label, size, got label"):
        call(wrong, request(a=[1.0]))
    with pytest.raises(ValueError, match="expected Answer, got float"):
        call(wrong, request(a=[0.0]))


def test_declared_settings_are_used():
    @model(name="Sum", max_batch_size=16, batch_delay_us=500, instances=2)
    def total(a: float) -> float: ...

    served = served_model(total)

    assert default_name(total) == "Sum"
    assert len(served.infer_funcs) == 2
    assert served.config.batching
    assert served.config.max_batch_size == 16
    assert served.config.batcher.max_queue_delay_microseconds == 500


@pytest.mark.parametrize(
    "function, name", [(add, "add"), (Counter, "Counter"), (Counter(), "Counter")]
)
def test_name_is_that_of_the_function_or_class(function, name):
    assert default_name(function) == name


def test_lambda_has_no_name():
    with pytest.raises(PyTritonValidationError, match="Expected a name for <function"):
        default_name(lambda a: a)


@pytest.mark.parametrize("function", [3, [], [add, 3]])
def test_what_cannot_be_called_is_refused(function):
    with pytest.raises(PyTritonValidationError, match="infer_func has to be a callable or a list"):
        served_model(function)
