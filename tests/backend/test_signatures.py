# SPDX-License-Identifier: Apache-2.0
"""Callables whose arguments do not fit the inputs, and those of which that cannot be known."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import wrapt

from pytriton.decorators import (
    batch,
    fill_optionals,
    first_value,
    group_by_keys,
    sample,
    triton_context,
)
from pytriton.exceptions import PyTritonValidationError
from pytriton.model_config import Tensor
from pytriton.runtime.functions.bound_config import signature_problem
from pytriton.runtime.functions.bound_model import BoundModel

A, B, C = (Tensor(name=name, dtype=np.float32, shape=(1,)) for name in "abc")


class Model:
    def requests(self, requests):
        return requests

    def arrays(self, a, b):
        return [a, b]

    @batch
    def __call__(self, a, b):
        return [a, b]

    def nothing(self):
        return []


def renamed(function):
    """A user's own decorator."""

    @functools.wraps(function)
    def call(**inputs):
        return function(*inputs.values())

    return call


@wrapt.decorator
def with_wrapt(wrapped, instance, args, kwargs):
    return wrapped(*args, **kwargs, more=1)


def takes_x_and_y(x, y):
    return [x, y]


FITTING = {
    "requests": lambda requests: requests,
    "any": lambda *args, **kwargs: [],
    "default": lambda requests, more=1: requests,
    "method": Model().requests,
    "object": Model(),
    "batch": batch(lambda a, b: [a, b]),
    "batch of any": batch(lambda **inputs: list(inputs.values())),
    "batch of one and any": batch(lambda a, **others: [a]),
    "default beside inputs": batch(lambda a, b, scale=2: [a, b]),
    "batch of a method": batch(Model().arrays),
    "sample": sample(lambda a, b: [a, b]),
    "stacked": group_by_keys(batch(first_value("a")(lambda a, b: [a, b]))),
    "filled": fill_optionals(b=np.zeros(1, np.float32))(batch(lambda a, b: [a, b])),
    "context": batch(triton_context(lambda a, b, triton_context: [a, b])),
    "user's decorator": batch(renamed(takes_x_and_y)),
    "wrapt inside": batch(with_wrapt(lambda a, b, more: [a, b])),
    "wrapt outside": with_wrapt(batch(lambda a, b: [a, b])),
    "partial": functools.partial(lambda more, requests: requests, 1),
    "builtin": list,
}
MISFITS = {
    "no argument": (lambda: [{}], "takes a list of requests"),
    "arrays without a decorator": (lambda a, b: [a, b], "under the decorator @batch"),
    "method without an argument": (Model().nothing, "takes a list of requests"),
    "misspelt": (batch(lambda a, c: [a, c]), "does not take b and nothing is given for c"),
    "too few": (batch(lambda a: [a]), "it does not take b"),
    "too many": (sample(lambda a, b, c: [a]), "nothing is given for c"),
    "positional": (batch(lambda a, b, /: [a, b]), "does not take a, b and nothing is given for"),
    "method": (batch(Model().requests), "takes a, b by name"),
    "no context": (batch(lambda a, b, triton_context: [a]), "given for triton_context"),
    "context not taken": (batch(triton_context(lambda a, b: [a])), "does not take triton_context"),
}


@pytest.mark.parametrize("infer_func", FITTING.values(), ids=FITTING)
def test_callable_that_may_fit_is_bound(infer_func):
    model = BoundModel("m", infer_func, [A, B], [A])

    assert [each.name for each in model.config.inputs] == ["a", "b"]


@pytest.mark.parametrize("infer_func, problem", MISFITS.values(), ids=MISFITS)
def test_callable_that_cannot_fit_is_refused(infer_func, problem):
    with pytest.raises(PyTritonValidationError, match="infer_func of model m: expected") as raised:
        BoundModel("m", [FITTING["requests"], infer_func], [A, B], [A])

    assert problem in str(raised.value)


def test_optional_input_need_not_be_taken():
    assert signature_problem(batch(lambda a: [a]), ["a", "b"], ["a"]) is None
    assert signature_problem(batch(lambda a, b: [a]), ["a", "b"], ["a"]) is None


def test_model_without_tensors_is_bound_whatever_it_takes():
    model = BoundModel("m", lambda: None, [], [])

    assert (model.config.inputs, model.config.outputs) == ([], [])


def test_model_without_outputs_is_warned_of(caplog):
    BoundModel("m", lambda requests: [{}], [A], [])

    assert caplog.messages == ["Model m declares no outputs: its clients get no data"]


@pytest.mark.parametrize("tensors, came", [(A, "got Tensor"), (None, "got None"), (["a"], "'a'")])
def test_what_is_no_list_of_tensors_is_refused(tensors, came):
    for inputs, outputs in ((tensors, [A]), ([A], tensors)):
        with pytest.raises(PyTritonValidationError, match=f"expected a list of Tensor, .*{came}"):
            BoundModel("m", lambda requests: requests, inputs, outputs)
