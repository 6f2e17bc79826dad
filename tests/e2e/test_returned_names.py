# SPDX-License-Identifier: Apache-2.0
"""Outputs that a callable of any form returns under other names than declared, or not at all."""

from __future__ import annotations

import numpy as np
import pytest

from pytriton.client import DecoupledModelClient
from pytriton.client.exceptions import PyTritonClientInferenceServerError
from pytriton.decorators import batch, first_value, sample
from pytriton.model_config import Tensor

A, B = (np.full((2, 1), value, np.float32) for value in (3, 1))
IN = [Tensor(name=name, dtype=np.float32, shape=(1,)) for name in "ab"]
NAMED = [Tensor(name=name, dtype=np.float32, shape=(1,)) for name in ("add", "sub")]
UNNAMED = [Tensor(dtype=np.float32, shape=(1,))] * 2
# Callables that return a sum and a difference under the names that they are given.
FORMS = {}


def form(make):
    FORMS[make.__name__] = make
    return make


@form
def plain(add, sub):
    return lambda requests: [{add: r["a"] + r["b"], sub: r["a"] - r["b"]} for r in requests]


@form
def whole_batch(add, sub):
    return batch(lambda a, b: {add: a + b, sub: a - b})


@form
def batch_under_others(add, sub):
    return batch(first_value("none")(lambda a, b: {add: a + b, sub: a - b}))


@form
def one_sample(add, sub):
    return sample(lambda a, b: {add: a + b, sub: a - b})


@form
def generator(add, sub):
    def infer_func(requests):
        yield plain(add, sub)(requests)

    return infer_func


@form
def coroutine(add, sub):
    async def infer_func(requests):
        return plain(add, sub)(requests)

    return infer_func


@pytest.fixture(params=FORMS)
def make(request):
    return FORMS[request.param]


def is_sample(make):
    return {"batching": make is not one_sample}


def test_outputs_without_names_take_values_in_order(host, make, caplog):
    name = host.bind(make("add", "sub"), IN, UNNAMED, **is_sample(make))
    a, b = (A, B) if make is not one_sample else (A[0], B[0])

    for _ in range(2):
        outputs = host.infer(name, a=a, b=b)

    np.testing.assert_equal(outputs, {"OUTPUT_1": a + b, "OUTPUT_2": a - b})
    assert sum("were taken in order for" in text for text in caplog.messages) == 1


def test_misspelt_output_is_an_error_that_is_logged(host, make, caplog):
    name = host.bind(make("add", "sbu"), IN, NAMED, **is_sample(make))
    a, b = (A, B) if make is not one_sample else (A[0], B[0])

    status, text = host.error(name, a=a, b=b)

    assert status == 500
    assert text.endswith(
        f"ValueError: Not all outputs of model `{name}` were returned: ['sub'] is missing. "
        "Returned: ['add', 'sbu']. Expected: ['add', 'sub']."
    )
    line = next(each for each in caplog.messages if each.startswith(f"model '{name}': ValueError"))
    assert "['sub'] is missing" in line
    assert " at test_returned_names.py:" in line
    assert "Traceback" not in caplog.text


def asynchronous(stream):
    async def infer_func(requests):
        for responses in stream(requests):
            yield responses

    return infer_func


@pytest.mark.parametrize("kind", [lambda stream: stream, asynchronous], ids=["sync", "async"])
def test_stream_may_leave_outputs_out_but_not_misspell_them(host, kind, caplog):
    def stream(requests):
        yield [{"add": request["a"]} for request in requests]
        yield [{"sub": request["a"]} for request in requests]
        yield [{"sbu": request["a"]} for request in requests]

    name = host.bind(kind(stream), IN, NAMED, decoupled=True)

    responses = []
    with (
        DecoupledModelClient(f"grpc://localhost:{host.grpc_port}", name) as client,
        pytest.raises(PyTritonClientInferenceServerError, match=r"\['add', 'sub'\] are missing"),
    ):
        responses.extend(client.infer_batch(A, B))

    assert sum("omits ['sub']" in text for text in caplog.messages) == 1
