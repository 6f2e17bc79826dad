# SPDX-License-Identifier: Apache-2.0
import asyncio
import logging

import numpy as np
import pytest

from pytriton.decorators import batch
from pytriton.model_config.common import ModelWarmup, WarmupInput
from pytriton.model_config.triton_model_config import TensorSpec
from pytriton.runtime.functions.bound_model import call_to_completion, warm_up
from tests.decorators.binding import bound


def _warmup(name="w", *, count=2, batch_size=3, **source):
    source = source or {"random_data": True}
    return ModelWarmup(
        name, batch_size, {"a": WarmupInput(np.float32, (2,), **source)}, count=count
    )


def test_each_warmup_is_sent_in_order_as_often_as_asked():
    calls = []

    answered = warm_up("m", [_warmup(count=2), _warmup(count=1, batch_size=1)], calls.append)

    assert answered == 3
    assert [request["a"].shape for (request,) in calls] == [(3, 2), (3, 2), (1, 2)]
    assert [request.parameters for (request,) in calls] == [{}, {}, {}]


def test_random_data_are_the_same_in_every_run():
    first, second = [], []

    warm_up("m", [_warmup()], first.append)
    warm_up("m", [_warmup()], second.append)

    for (one,), (other,) in zip(first, second, strict=True):
        assert np.array_equal(one["a"], other["a"])


def test_callable_that_needs_its_context_is_warmed():
    infer = bound(batch(lambda a: [a]), inputs=["a"], outputs=["x"])
    results = []

    warm_up("m", [_warmup(count=1)], lambda requests: results.append(infer(requests)))

    assert results[0][0]["x"].shape == (3, 2)


def test_failure_is_logged_and_the_next_warmup_runs(caplog):
    calls = []

    def call(requests):
        calls.append(requests)
        if len(calls) == 2:
            raise ValueError("not warm yet")

    with caplog.at_level(logging.WARNING):
        answered = warm_up("m", [_warmup("first", count=3), _warmup("second", count=1)], call)

    assert answered == 2
    assert "Warm-up 'first' of model m failed after 1 of 3 requests" in caplog.text
    assert "not warm yet" in caplog.text


def test_data_that_cannot_be_made_are_logged(caplog):
    calls = []

    assert warm_up("m", [_warmup(zero_data=False)], calls.append) == 0
    assert "'input_data_file' must be provided" in caplog.text
    assert calls == []


def test_inputs_that_the_model_lacks_are_logged(caplog):
    assert warm_up("m", [_warmup()], len, [TensorSpec("b", (2,), np.float32)]) == 0
    assert "inputs of the model (b), got a" in caplog.text


def _plain(requests):
    return requests


def _generator(requests):
    yield requests
    yield requests


async def _coroutine(requests):
    await asyncio.sleep(0)
    return requests


async def _async_generator(requests):
    yield requests
    await asyncio.sleep(0)
    yield requests


@pytest.mark.parametrize(
    "infer_func, responses", [(_plain, 1), (_generator, 2), (_coroutine, 1), (_async_generator, 2)]
)
def test_callables_of_all_kinds_run_to_their_end(infer_func, responses):
    requests = []

    results = call_to_completion(infer_func, requests)

    assert len(results) == responses
    assert all(result is requests for result in results)
