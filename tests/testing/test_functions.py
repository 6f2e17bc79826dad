# SPDX-License-Identifier: Apache-2.0
"""Bound functions of every kind in a harness, compared with what a server promises."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from pytriton.base.errors import InvalidArgumentError
from pytriton.decorators import batch, first_value, sample, triton_context
from pytriton.exceptions import PyTritonValidationError
from pytriton.model_config import (
    ControlKind,
    DynamicBatcher,
    ModelConfig,
    SequenceBatcher,
    SequenceControl,
    SequenceState,
    Tensor,
)
from pytriton.testing import FunctionHarness, Request, RuleError

INPUTS = [Tensor(name="a", dtype=np.float32, shape=(-1,))]
OUTPUTS = [Tensor(name="b", dtype=np.float32, shape=(-1,))]
DECOUPLED = ModelConfig(decoupled=True)


def same(requests):
    return [{"b": request["a"]} for request in requests]


async def same_later(requests):
    await asyncio.sleep(0)
    return same(requests)


class Same:
    def __call__(self, requests):
        return same(requests)

    @batch
    def method(self, a):
        return [a]


@sample
def same_sample(a):
    return {"b": a}


def yielding(requests):
    yield same(requests)


@pytest.mark.parametrize(
    "function",
    [
        same,
        same_later,
        Same(),
        Same().method,
        same_sample,
        yielding,
        lambda requests: [{"b": each["a"]} for each in requests],
    ],
)
def test_every_kind_of_callable_answers(function):
    with FunctionHarness(function, INPUTS, OUTPUTS) as model:
        assert model.execute({"a": [[1, 2]]})["b"].tolist() == [[1, 2]]


def counting(requests):
    for number in range(3):
        yield [{"b": request["a"] * np.float32(number)} for request in requests]


async def counting_later(requests):
    for each in counting(requests):
        await asyncio.sleep(0)
        yield each


@pytest.mark.parametrize("function", [counting, counting_later])
def test_streams_of_generators(function):
    with FunctionHarness(function, INPUTS, OUTPUTS, config=DECOUPLED) as model:
        responses = model.stream({"a": [[1]]})

        assert [response["b"].item() for response in responses] == [0, 1, 2]
        assert len(model.stream({"a": [[1]]}, cancel_after=2)) == 2
        assert model.stream({"a": [[1]]}, cancel_after=0) == []
        with pytest.raises(RuleError, match=r"is decoupled .* use `stream`"):
            model.execute({"a": [[1]]})


def test_generator_is_closed_when_its_client_goes():
    ends = []

    def endless(requests):
        try:
            while True:
                yield same(requests)
        finally:
            ends.append("closed")

    with FunctionHarness(endless, INPUTS, OUTPUTS, config=DECOUPLED) as model:
        model.stream({"a": [[1]]}, cancel_after=1)

        assert ends == ["closed"]


def test_requests_are_joined_as_in_a_server():
    shapes = []

    @batch
    def noting(a):
        shapes.append(a.shape)
        return [a]

    requests = [Request({"a": [[1]]}) for _ in range(5)] + [Request({"a": [[1, 2]]})]
    with FunctionHarness(noting, INPUTS, OUTPUTS, config=ModelConfig(max_batch_size=4)) as model:
        answers = model.execute_batch(requests)

        assert [len(each) for each in answers] == [1] * 6
        assert answers[-1][0]["b"].tolist() == [[1, 2]]
        assert shapes == [(4, 1), (1, 1), (1, 2)]
    shapes.clear()
    with FunctionHarness(noting, INPUTS, OUTPUTS, config=ModelConfig(batcher=None)) as model:
        model.execute_batch(requests)

        assert len(shapes) == 6


def test_instances_take_turns():
    calls = []

    def instance(name):
        def infer(requests):
            calls.append(name)
            return same(requests)

        return infer

    with FunctionHarness([instance("x"), instance("y")], INPUTS, OUTPUTS) as model:
        for _ in range(3):
            model.execute({"a": [[1]]})

    assert calls == ["x", "y", "x"]


def test_parameters_context_and_outputs_reach_the_function():
    def scaled(requests):
        (request,) = requests
        assert request.requested_output_names == ["b"]
        return [{"b": request["a"] * np.float32(request.parameters["factor"])}]

    @batch
    @first_value("a")
    @triton_context
    def named(a, triton_context):
        return {"b": np.full((1, 1), len(triton_context.model_config.model_name), np.float32)}

    with FunctionHarness(scaled, INPUTS, OUTPUTS) as model:
        answer = model.execute({"a": [[2]]}, parameters={"factor": 3}, outputs=["b"])

        assert answer["b"].tolist() == [[6]]
    with FunctionHarness(named, INPUTS, OUTPUTS, name="four") as model:
        assert model.execute({"a": [[2]]})["b"].item() == 4
        assert model.config["name"] == "four"


def greet(name: str, times: int = 1) -> str:
    return f"Hello {name}! " * times


def test_one_value_stands_for_a_batch_of_one():
    with FunctionHarness(same, INPUTS, OUTPUTS) as model:
        assert model.execute({"a": 3})["b"].tolist() == [[3]]


def test_annotated_function_takes_plain_values():
    with FunctionHarness(greet) as model:
        assert model.execute({"name": "Ada"})["output"].item() == b"Hello Ada! "
        assert model.execute({"name": "Ada", "times": 2})["output"].item() == b"Hello Ada! " * 2
        assert model.config["name"] == "greet"


@pytest.mark.parametrize(
    "inputs, message",
    [
        ({"x": [[1]]}, r"unexpected inference input 'x' for model 'same'. Its input\(s\) are"),
        ({}, "expected 1 inputs but got 0 inputs for model 'same'"),
        ({"a": np.ones((1, 1), np.int8)}, "inference input 'a' data-type is 'INT8'"),
        ({"a": np.ones((9, 1), np.float32)}, "batch-size must be <= 4"),
    ],
)
def test_request_that_does_not_fit_gets_the_error_of_the_server(inputs, message):
    with (
        FunctionHarness(same, INPUTS, OUTPUTS) as model,
        pytest.raises(InvalidArgumentError, match=message),
    ):
        model.execute(inputs)


@pytest.mark.parametrize(
    "result, message",
    [
        (None, "is a return statement missing"),
        ([], r"\(0\) does not match number of requests \(1\)"),
        ([{"b": "text"}], "b"),
    ],
)
def test_wrong_outputs_get_the_error_of_the_server(result, message):
    with (
        FunctionHarness(lambda _: result, INPUTS, OUTPUTS) as model,
        pytest.raises(ValueError, match=message),
    ):
        model.execute({"a": [[1]]})


def test_strict_model_refuses_another_shape():
    def wide(requests):
        return [{"b": np.ones((1, 3), np.float32)} for _ in requests]

    narrow = [Tensor(name="b", dtype=np.float32, shape=(1,))]
    with (
        FunctionHarness(wide, INPUTS, narrow, strict=True) as model,
        pytest.raises(ValueError, match="b"),
    ):
        model.execute({"a": [[1]]})


def test_exceptions_reach_the_test_unchanged():
    def broken(requests):
        raise ZeroDivisionError("mine")

    with (
        FunctionHarness(broken, INPUTS, OUTPUTS) as model,
        pytest.raises(ZeroDivisionError, match="mine"),
    ):
        model.execute({"a": [[1]]})


def test_wrong_arguments_are_refused_as_by_bind():
    with pytest.raises(PyTritonValidationError, match="infer_func has to be a callable"):
        FunctionHarness(3, INPUTS, OUTPUTS)
    with pytest.raises(PyTritonValidationError):
        FunctionHarness(lambda: None)
    harness = FunctionHarness(same, INPUTS, OUTPUTS)
    with pytest.raises(RuntimeError, match="in a `with` statement"):
        harness.execute({"a": [[1]]})


def test_sequences_keep_their_states():
    @batch
    def add(a, start, total):
        total = np.where(start, 0, total) + a
        return {"b": total, "total_out": total}

    sequence = SequenceBatcher(
        controls=[SequenceControl(ControlKind.START, "start", dtype=np.int32)],
        states=[SequenceState("total", "total_out", dtype=np.float32, shape=(1,))],
    )
    one = [Tensor(name="a", dtype=np.float32, shape=(1,))]
    out = [Tensor(name="b", dtype=np.float32, shape=(1,))]
    with FunctionHarness(add, one, out, config=ModelConfig(sequence=sequence)) as model:
        sent = [(1, 1, 5), (2, 1, 7), (1, 0, 1), (2, 2, 1), (1, 2, 1)]
        answers = [
            model.execute({"a": [[value]]}, correlation_id=number, flags=flags)
            for number, flags, value in sent
        ]

    assert [answer["b"].item() for answer in answers] == [5, 7, 6, 8, 7]
    assert list(answers[0].outputs) == ["b"]


def test_batcher_with_a_delay_makes_no_difference():
    config = ModelConfig(batcher=DynamicBatcher(max_queue_delay_microseconds=10_000_000))
    with FunctionHarness(same, INPUTS, OUTPUTS, config=config) as model:
        assert len(model.execute_batch([Request({"a": [[1]]})])) == 1
