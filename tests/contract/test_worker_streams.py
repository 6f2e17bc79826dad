# SPDX-License-Identifier: Apache-2.0
"""Streams of a decoupled model.py: their order, their pace, their end, and who else is served."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from pytriton.runtime.backend import flow_control
from pytriton.runtime.transport.credit import RESPONSE_WINDOW
from pytriton.runtime.transport.memory import PORTABLE_SETTING
from tests.contract.benches import floats
from tests.contract.worker_bench import STREAMS, WorkerBench
from tests.e2e.waiting import DEADLINE_S

ENDLESS = 1_000_000
# Kinds whose sender waits for a client without credit: nobody else waits for that sender.
WAITING = ("stream of a model.py", "threads of a model.py")


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


def test_client_that_takes_nothing_gets_nothing_more_until_it_takes_again(serve, kind):
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
    if kind in WAITING:
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


def test_slow_client_delays_no_other_of_its_batch(serve):
    bench = serve(count_up)
    slow, quick = bench.execute(number(500), number(400))
    slow.takes = False
    assert bench.until(lambda: quick.is_over)
    assert bench.until(lambda: len(slow.responses) == RESPONSE_WINDOW)
    assert not slow.is_over
    slow.takes = True
    bench.instance.grant(slow.inference, RESPONSE_WINDOW)
    assert bench.until(lambda: slow.is_over)

    assert values(quick) == list(range(400))
    assert values(slow) == list(range(500))


def test_slow_client_delays_no_request_that_comes_later(serve, kind):
    if kind == "stream of a model.py":
        pytest.skip("it takes the next batch when it has answered this one")
    bench = serve(count_up)
    (slow,) = bench.execute(number(500))
    slow.takes = False
    assert bench.until(lambda: len(slow.responses) == RESPONSE_WINDOW)
    for count in (100, 200):
        (quick,) = bench.infer(number(count))
        assert values(quick) == list(range(count))
    assert len(slow.responses) == RESPONSE_WINDOW
    slow.takes = True
    bench.instance.grant(slow.inference, RESPONSE_WINDOW)
    assert bench.until(lambda: slow.is_over and bench.instance.is_idle)

    assert values(slow) == list(range(500))


@pytest.mark.parametrize("size", [1, 10_000])
def test_response_that_waits_is_what_the_array_held_when_it_was_sent(serve, size):
    def steps(request):
        array = np.zeros((1, size), np.float32)
        for value in range(200):
            array[:] = value
            yield array
        array[:] = -1

    bench = serve(steps)
    (call,) = bench.execute(number(0))
    call.takes = False
    assert bench.until(lambda: len(call.responses) == RESPONSE_WINDOW)
    call.takes = True
    bench.instance.grant(call.inference, RESPONSE_WINDOW)
    assert bench.until(lambda: call.is_over)

    assert [np.unique(each["y"]).tolist() for each in call.responses] == [
        [value] for value in range(200)
    ]


@pytest.mark.parametrize("bound", ["MAX_QUEUED_BYTES", "MAX_QUEUED_BYTES_OF_ALL"])
def test_request_for_which_too_much_waits_ends_and_no_other(serve, kind, bound, monkeypatch):
    # Coroutines send all that they have in one turn: what the quick one sends may wait as well.
    most = 600_000 if kind == "coroutines of a model.py" else 200_000
    monkeypatch.setattr(flow_control, bound, most)
    bench = serve(count_up)
    slow, quick = bench.execute(number(ENDLESS), number(1000))
    slow.takes = False
    assert bench.until(lambda: len(slow.responses) == RESPONSE_WINDOW)
    if kind not in WAITING:
        assert bench.until(lambda: slow.is_over)
        assert "its client reads too slowly" in slow.error
    elif kind == "threads of a model.py":
        assert bench.until(lambda: quick.is_over)
        assert not slow.is_over
    bench.instance.cancel(slow.inference)
    assert bench.until(lambda: slow.is_over and quick.is_over and bench.instance.is_idle)

    assert values(quick) == list(range(1000))
    assert values(bench.infer(number(3))[0]) == [0, 1, 2]


def test_model_that_raises_sends_what_waits_first(serve, kind, caplog):
    if kind not in ("stream of a model.py", "coroutines of a model.py"):
        pytest.skip("nobody hears of what a thread raises")

    def steps(request):
        yield from count_up(request)
        if request["x"][0, 0] == 200:
            raise ValueError("no more")

    bench = serve(steps)
    slow, other = bench.execute(number(100), number(200))
    slow.takes = other.takes = False
    assert bench.until(lambda: len(slow.responses) == RESPONSE_WINDOW)
    assert bench.until(lambda: len(other.responses) == RESPONSE_WINDOW)
    for call in (slow, other):
        call.takes = True
        bench.instance.grant(call.inference, RESPONSE_WINDOW)
    assert bench.until(lambda: slow.is_over and other.is_over)

    assert values(slow) == list(range(100))
    assert slow.ended_well
    assert values(other) == list(range(200))
    assert "no more" in other.error


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
    (endless,) = bench.execute(number(ENDLESS if kind in WAITING else 1000))
    endless.takes = False
    assert bench.until(lambda: len(endless.responses) == RESPONSE_WINDOW)
    if kind == "stream of a model.py":
        assert bench.instance.free_slots == 0
    else:
        assert bench.until(lambda: bench.instance.free_slots)
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
