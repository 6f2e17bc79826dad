# SPDX-License-Identifier: Apache-2.0
"""The log says that a function seems to lack the decorator @batch; clients get the error alone."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from pytriton.decorators import batch, sample
from pytriton.exceptions import PyTritonValidationError
from pytriton.model_config import ModelConfig, Tensor
from pytriton.runtime.functions.bound_config import batch_hint
from pytriton.runtime.functions.bound_model import BoundModel

HINT = (
    " - did you forget the decorator @batch? "
    "Without it, 'x' is a list of requests, with it an array"
)
REQUESTS = [{"x": np.ones((1, 1), np.float32)}]


def raised_by(function):
    with pytest.raises(Exception) as caught:
        function(REQUESTS)
    return caught.value


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + 1,
        lambda x: 2.0 * x,
        lambda x: x**2,
        lambda x: x.sum(axis=1),
        lambda x: x[:, 0],
        lambda x: np.exp(np.asarray(x)),
    ],
)
def test_function_of_an_input_that_gets_requests_is_hinted_at(function):
    assert batch_hint(function, ["x"], raised_by(function)) == HINT


def test_wrong_answer_of_such_a_function_is_hinted_at():
    assert batch_hint(lambda x: {"y": x}, ["x"], PyTritonValidationError("no list")) == HINT


@pytest.mark.parametrize("function", [lambda data: data + 1, lambda data: data.shape])
def test_list_that_is_taken_for_an_array_is_hinted_at_under_any_name(function):
    hint = batch_hint(function, ["x"], raised_by(function))

    assert "did you forget the decorator @batch? Without it, 'data' is a list" in hint


class Model:
    def infer(self, x):
        return x + 1

    def __call__(self, x):
        return x + 1


@pytest.mark.parametrize("function", [Model().infer, Model()])
def test_methods_and_objects_are_hinted_at(function):
    assert batch_hint(function, ["x"], TypeError("unsupported operand")) == HINT


@pytest.mark.parametrize(
    "function, error",
    [
        (lambda requests: requests + 1, TypeError("can only concatenate list")),
        (lambda data: data, TypeError("unsupported operand")),
        (lambda x: x, ValueError("list")),
        (lambda x, y: x, TypeError("list")),
        (batch(lambda x: x), TypeError("list")),
        (sample(lambda x: x), TypeError("list")),
        (len, TypeError("list")),
    ],
)
def test_other_failures_have_no_hint(function, error):
    assert batch_hint(function, ["x"], error) == ""


def test_hint_is_in_the_log_and_not_in_the_answer(caplog):
    def double(x):
        return 2.0 * x

    tensor = Tensor((-1,), np.float32, "x")
    model = BoundModel("double", double, [tensor], [tensor], 1, ModelConfig())
    with caplog.at_level(logging.ERROR):
        text = model.only_call("double_0_0").error_text(raised_by(double))

    assert text == (
        "Failed to process the request(s) for model 'double_0_0', message: TypeError: "
        "can't multiply sequence by non-int of type 'float'"
    )
    assert caplog.messages[0].endswith(HINT)
