# SPDX-License-Identifier: Apache-2.0
"""Streams of a decoupled model.py: their order, their pace, their end, and who else is served."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from pytriton.runtime.transport.credit import RESPONSE_WINDOW
from pytriton.runtime.transport.memory import PORTABLE_SETTING
from tests.contract.benches import floats
from tests.contract.worker_bench import STREAMS, WorkerBench
from tests.e2e.waiting import DEADLINE_S

ENDLESS = 1_000_000


@pytest.fixture(params=["native", "portable", "tcp"])
def channel(request, monkeypatch):
    """With and without what only Linux has, and as on another machine."""
    monkeypatch.setenv(PORTABLE_SETTING, "1" if request.param == "portable" else "0")
    monkeypatch.setattr(WorkerBench, "is_remote", request.param == "tcp")


@pytest.fixture(params=STREAMS)
def kind(request):
    return request.param


@pytest.fixture
def serve(channel, kind, served):
    def serve(function) -> WorkerBench:
        return served.add(WorkerBench(served.loop, kind, function, floats("x"), floats("y")))

    return serve


def number(value):
    return {"x": np.full((1, 1), value, np.float32)}


def count_up(request):
    for value in range(int(request["x"][0, 0])):
        yield np.full((1, 1), value, np.float32)


def values(call):
    return [response["y"][0, 0] for response in call.responses]


@pytest.mark.parametrize("count", [0, 1, 3 * RESPONSE_WINDOW, 2000])
def test_stream_brings_any_number_of_responses_in_order(serve, count):
    (call,) = serve(count_up).infer(number(count))

    assert values(call) == list(range(count))


def test_client_that_takes_nothing_holds_its_stream_back_until_it_takes_again(serve):
    made = []

    def counted(request):
        for array in count_up(request):
            made.append(array)
            yield array

    bench = serve(counted)
    (call,) = bench.execute(number(500))
    call.takes = False
    assert bench.until(lambda: len(call.responses) == RESPONSE_WINDOW)
    assert not bench.until(lambda: len(call.responses) > RESPONSE_WINDOW, 0.05)
    assert len(made) <= RESPONSE_WINDOW + 1
    call.takes = True
    bench.instance.grant(call.inference, RESPONSE_WINDOW)
    assert bench.until(lambda: call.is_over)

    assert values(call) == list(range(500))


def test_stream_that_waits_for_its_client_can_be_cancelled(serve):
    bench = serve(count_up)
    (call,) = bench.execute(number(ENDLESS))
    call.takes = False
    assert bench.until(lambda: len(call.responses) == RESPONSE_WINDOW)
    bench.instance.cancel(call.inference)
    assert bench.until(lambda: call.is_over)
    (other,) = bench.infer(number(3))

    assert values(other) == [0, 1, 2]
    assert len(call.responses) <= RESPONSE_WINDOW + 1


def test_first_response_does_not_wait_for_others(serve):
    go_on = threading.Event()

    def steps(request):
        yield np.zeros((1, 1), np.float32)
        assert go_on.wait(DEADLINE_S)

    bench = serve(steps)
    (call,) = bench.execute(number(0))
    try:
        assert bench.until(lambda: call.responses)
    finally:
        go_on.set()
    assert bench.until(lambda: call.is_over)


def test_instance_is_free_once_execute_returned(serve, kind):
    bench = serve(count_up)
    (endless,) = bench.execute(number(ENDLESS))
    endless.takes = False
    assert bench.until(lambda: len(endless.responses) == RESPONSE_WINDOW)
    if kind == "stream of a model.py":
        assert bench.instance.free_slots == 0
    else:
        assert bench.until(lambda: bench.instance.free_slots == 1)
        (other,) = bench.infer(number(2))
        assert values(other) == [0, 1]
    assert not endless.is_over
    bench.instance.cancel(endless.inference)

    assert bench.until(lambda: endless.is_over and bench.instance.is_idle)


def test_many_threads_send_at_the_same_time(serve, kind):
    bench = serve(count_up)
    calls = []
    for _ in range(20):
        assert bench.until(lambda: bench.instance.free_slots)
        calls += bench.execute(number(100))
    assert bench.until(lambda: all(call.is_over for call in calls))

    assert all(values(call) == list(range(100)) for call in calls)
