# SPDX-License-Identifier: Apache-2.0
"""What is special to one kind of callable: overlapping coroutines, iterators, single results."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from pytriton.runtime.functions.async_backends import AsyncGeneratorBackend, CoroutineBackend
from pytriton.runtime.functions.backends import FunctionBackend, GeneratorBackend
from pytriton.runtime.functions.bound_model import backend_for
from tests.contract.benches import Bench, floats
from tests.e2e.waiting import eventually

ONE = {"x": np.ones((1, 1), np.float32)}


@pytest.fixture
def serve(served):
    def serve(infer_func, **config) -> Bench:
        return served.add(Bench(served.loop, infer_func, floats("x"), floats("y"), **config))

    return serve


def echo(requests):
    return [{"y": request["x"]} for request in requests]


async def echo_async(requests):
    return echo(requests)


def echo_generator(requests):
    yield echo(requests)


async def echo_async_generator(requests):
    yield echo(requests)


class Model:
    """Callables of every kind as methods and as an object."""

    def __init__(self, function):
        self._function = function

    def __call__(self, requests):
        return self._function(requests)

    def infer(self, requests):
        return echo(requests)

    async def infer_async(self, requests):
        return echo(requests)


class AsyncModel:
    async def __call__(self, requests):
        return echo(requests)


class AsyncStreamModel:
    async def __call__(self, requests):
        yield echo(requests)


@pytest.mark.parametrize(
    "infer_func, kind, stream_kind",
    [
        (echo, FunctionBackend, GeneratorBackend),
        (echo_generator, FunctionBackend, GeneratorBackend),
        (Model(echo), FunctionBackend, GeneratorBackend),
        (Model(echo).infer, FunctionBackend, GeneratorBackend),
        (echo_async, CoroutineBackend, AsyncGeneratorBackend),
        (Model(echo).infer_async, CoroutineBackend, AsyncGeneratorBackend),
        (AsyncModel(), CoroutineBackend, AsyncGeneratorBackend),
    ],
)
def test_callable_gets_the_backend_that_it_needs(infer_func, kind, stream_kind):
    assert backend_for(infer_func, is_decoupled=False) is kind
    assert backend_for(infer_func, is_decoupled=True) is stream_kind


@pytest.mark.parametrize(
    "infer_func",
    [echo, echo_async, echo_generator, echo_async_generator, Model(echo), AsyncModel(),
     AsyncStreamModel(), Model(echo_generator), lambda requests: iter([echo(requests)])],
)  # fmt: skip
def test_decoupled_model_may_be_any_kind_of_callable(serve, infer_func):
    (call,) = serve(infer_func, decoupled=True).infer(ONE)

    assert call.outputs["y"] == 1


@pytest.mark.parametrize("count, got", [(0, "none"), (2, "more than one")])
def test_coupled_generator_has_to_answer_once(serve, caplog, count, got):
    def infer(requests):
        for _ in range(count):
            yield echo(requests)

    (call,) = serve(infer).infer(ONE)

    assert f"exactly one response, as the model is not decoupled; got {got}" in call.error


def test_batches_of_a_coroutine_function_overlap(serve):
    async def meet(requests):
        nonlocal waiting
        waiting += 1
        met.set() if waiting == 3 else await met.wait()
        return echo(requests)

    waiting, met = 0, asyncio.Event()
    bench = serve(meet)
    calls = [call for _ in range(3) for call in bench.execute(ONE)]
    assert bench.until(lambda: all(call.is_over for call in calls))

    assert [call.outputs["y"] for call in calls] == [1, 1, 1]


def test_answers_wait_in_order_for_a_server_that_is_busy(serve):
    async def spread(requests):
        return [{"y": np.repeat(request["x"], 7000, axis=1)} for request in requests]

    bench = serve(spread)
    calls = [bench.execute({"x": np.full((1, 1), n, np.float32)})[0] for n in range(100)]
    assert eventually(lambda: bench.far_channel.link.has_unsent)
    assert bench.until(lambda: all(call.is_over for call in calls))

    for number, call in enumerate(calls):
        assert np.array_equal(call.outputs["y"], np.full((1, 7000), number, np.float32))


def test_batches_of_a_plain_function_do_not_overlap(serve):
    bench = serve(echo)
    assert bench.instance.free_slots == 1
    bench.execute(ONE)

    assert bench.instance.free_slots == 0


def test_stop_cancels_coroutines(serve):
    cancelled = threading.Event()

    async def wait(requests):
        started.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    started = threading.Event()
    bench = serve(wait)
    (call,) = bench.execute(ONE)
    assert bench.until(started.is_set)
    bench.instance.stop()

    assert "the model was unloaded" in call.error
    assert bench.until(cancelled.is_set)


def test_cancelled_async_generator_hears_of_it_where_it_waits(serve):
    seen = []

    async def wait(requests):
        yield echo(requests)
        try:
            seen.append("waits")
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            seen.append("is cancelled")
            raise

    bench = serve(wait, decoupled=True)
    (call,) = bench.execute(ONE)
    assert bench.until(lambda: call.responses and seen == ["waits"])
    bench.instance.cancel(call.inference)

    assert bench.until(lambda: call.is_over and seen == ["waits", "is cancelled"])
    assert call.error == ""
