# SPDX-License-Identifier: Apache-2.0
"""What instances of decoupled models promise beyond what all do, over both kinds of channel."""

from __future__ import annotations

import asyncio
import itertools
import threading

import numpy as np
import pytest

from pytriton.exceptions import PyTritonUnrecoverableError
from pytriton.runtime.functions.backends import STEPS_PER_TURN
from pytriton.runtime.transport.credit import RESPONSE_WINDOW, RESPONSE_WINDOW_BYTES
from tests.contract.benches import DEADLINE_S, DECOUPLED, Bench, floats

ENDLESS = 100_000


@pytest.fixture(params=DECOUPLED)
def kind(request):
    return request.param


def as_kind(kind, steps):
    """A callable of a kind from a generator function, which the async one gives turns to others."""
    if kind == "generator":
        return steps

    async def infer(requests):
        inner = steps(requests)
        try:
            for step in inner:
                await asyncio.sleep(0)
                yield step
        finally:
            inner.close()

    return infer


@pytest.fixture
def serve(channel, kind, served):
    """Serves a generator function as a decoupled model of each kind."""

    def serve(steps, **config) -> Bench:
        function = as_kind(kind, steps)
        return served.add(
            Bench(served.loop, function, floats("x"), floats("y"), decoupled=True, **config)
        )

    return serve


def number(value, size=1):
    return {"x": np.full((1, size), value, np.float32)}


def answers(requests, value, size=1):
    return [{"y": np.full((1, size), value, np.float32)} for _ in requests]


def count_up(requests):
    """As many responses as the first request says."""
    for value in range(int(requests[0]["x"][0, 0])):
        yield answers(requests, value)


def values(call):
    return [response["y"][0, 0] for response in call.responses]


@pytest.mark.parametrize("count", [0, 1, 5, 1000])
def test_stream_brings_any_number_of_responses_in_order(serve, count):
    (call,) = serve(count_up).infer(number(count))

    assert values(call) == list(range(count))


@pytest.mark.parametrize("size", [16, 6000, 100_000])
def test_response_is_what_the_array_held_when_it_was_yielded(serve, size):
    def steps(requests):
        array = np.zeros((1, size), np.float32)
        for value in range(100):
            array[:] = value
            yield [{"y": array} for _ in requests]
        array[:] = -1

    (call,) = serve(steps).infer(number(0))

    assert [np.unique(response["y"]).tolist() for response in call.responses] == [
        [value] for value in range(100)
    ]


def test_every_request_of_a_batch_gets_every_response(serve):
    def steps(requests):
        for value in range(3):
            yield [{"y": request["x"] + value} for request in requests]

    calls = serve(steps, max_batch_size=4).infer(number(10), number(20), number(30))

    assert [values(call) for call in calls] == [[10, 11, 12], [20, 21, 22], [30, 31, 32]]


def test_error_half_way_comes_after_what_was_sent(serve, caplog):
    def steps(requests):
        yield answers(requests, 1)
        yield answers(requests, 2)
        raise ValueError("no more")

    calls = serve(steps, max_batch_size=2).infer(number(0), number(0))

    for call in calls:
        assert values(call) == [1, 2]
        assert "ValueError: no more" in call.error


def test_wrong_response_ends_the_stream_and_closes_its_generator(serve, caplog):
    closed = threading.Event()

    def steps(requests):
        try:
            yield answers(requests, 1)
            yield "nonsense"
        finally:
            closed.set()

    bench = serve(steps)
    (call,) = bench.infer(number(0))

    assert values(call) == [1]
    assert "list of response dicts" in call.error
    assert bench.until(closed.is_set)


def test_streams_take_turns(serve):
    order = []
    is_held, may_go_on = threading.Event(), threading.Event()

    def steps(requests):
        name = int(requests[0]["x"][0, 0])
        if name == 0:  # keeps the thread until both of the others have credit
            is_held.set()
            assert may_go_on.wait(DEADLINE_S)
            return
        for value in itertools.count():
            order.append(name)
            yield answers(requests, value)

    bench = serve(steps)
    calls = [*bench.execute(number(1)), *bench.execute(number(2))]
    for call in calls:
        call.takes = False
    assert bench.until(lambda: all(len(call.responses) == 1 for call in calls))
    order.clear()
    bench.execute(number(0))
    assert bench.until(is_held.is_set)
    for call in calls:
        bench.instance.grant(call.inference, 1)
    may_go_on.set()
    assert bench.until(lambda: len(order) == 2 * RESPONSE_WINDOW)

    turns = [len(list(steps)) for _, steps in itertools.groupby(order[:RESPONSE_WINDOW])]
    assert max(turns) <= STEPS_PER_TURN


@pytest.mark.parametrize("size", [1, 16_384])
def test_generator_never_runs_further_ahead_than_the_window(serve, size):
    produced = 0
    most_ahead = 0
    calls = []

    def steps(requests):
        nonlocal produced, most_ahead
        for value in range(ENDLESS):
            produced += 1
            most_ahead = max(most_ahead, produced - sum(len(call.responses) for call in calls))
            yield answers(requests, value, size)

    bench = serve(steps)
    calls += bench.execute(number(0))
    (call,) = calls
    assert bench.until(lambda: len(call.responses) > 1000)
    call.takes = False
    taken = len(call.responses)
    window = min(RESPONSE_WINDOW, RESPONSE_WINDOW_BYTES // (4 * size))
    assert bench.until(lambda: len(call.responses) >= taken + window - 1)

    # One more may have been acknowledged when the count was taken, and one is being made.
    assert produced <= taken + window + 2
    assert most_ahead <= window + 2
    bench.instance.cancel(call.inference)
    assert bench.until(lambda: call.is_over)


def test_client_that_takes_again_gets_the_rest(serve):
    bench = serve(count_up)
    (call,) = bench.execute(number(300))
    call.takes = False
    assert bench.until(lambda: len(call.responses) == 1)
    bench.instance.grant(call.inference, 1)
    assert bench.until(lambda: len(call.responses) == 1 + RESPONSE_WINDOW)

    call.takes = True
    bench.instance.grant(call.inference, RESPONSE_WINDOW)
    assert bench.until(lambda: call.is_over)

    assert values(call) == list(range(300))


def test_slow_client_holds_up_nobody_else(serve):
    bench = serve(count_up)
    (slow,) = bench.execute(number(ENDLESS))
    slow.takes = False
    assert bench.until(lambda: len(slow.responses) == 1)
    bench.instance.grant(slow.inference, 1)
    assert bench.until(lambda: len(slow.responses) == 1 + RESPONSE_WINDOW)

    (quick,) = bench.infer(number(500))

    assert len(values(quick)) == 500
    assert len(slow.responses) == 1 + RESPONSE_WINDOW


def test_cancelled_stream_ends_its_generator_and_is_answered_once(serve):
    ended = []

    def steps(requests):
        try:
            for value in itertools.count():
                yield answers(requests, value)
        except GeneratorExit:
            ended.append("closed")
            raise
        finally:
            ended.append("finally")

    bench = serve(steps)
    (call,) = bench.execute(number(0))
    assert bench.until(lambda: len(call.responses) > 10)
    bench.instance.cancel(call.inference)
    bench.instance.cancel(call.inference)
    assert bench.until(lambda: call.is_over and len(ended) == 2)

    assert call.error == ""
    assert ended == ["closed", "finally"]
    assert bench.until(lambda: bench.instance.is_idle)


@pytest.mark.parametrize("is_stopped", [False, True], ids=["cancelled", "stopped"])
def test_stream_that_waits_for_credit_is_closed_when_it_ends(serve, is_stopped):
    ended = threading.Event()

    def steps(requests):
        try:
            yield from count_up(requests)
        finally:
            ended.set()

    bench = serve(steps)
    (call,) = bench.execute(number(ENDLESS))
    call.takes = False
    assert bench.until(lambda: len(call.responses) == 1)
    if is_stopped:
        bench.instance.stop()
    else:
        bench.instance.cancel(call.inference)

    assert bench.until(lambda: call.is_over and ended.is_set())
    assert ("the model was unloaded" in call.error) is is_stopped


@pytest.mark.parametrize("takes", [True, False], ids=["at once", "when it holds the batch up"])
def test_one_request_of_a_batch_can_be_cancelled(serve, takes):
    def steps(requests):
        for value in range(200):
            yield answers(requests, value)

    bench = serve(steps, max_batch_size=2)
    stays, goes = bench.execute(number(0), number(0))
    if not takes:
        goes.takes = False
        assert bench.until(lambda: len(goes.responses) == 1)
        assert not stays.is_over
    bench.instance.cancel(goes.inference)
    assert bench.until(lambda: stays.is_over and goes.is_over)

    assert values(stays) == list(range(200))
    assert goes.error == ""


def test_cancelled_request_of_a_batch_hears_while_the_others_wait(serve):
    bench = serve(count_up, max_batch_size=2)
    stays, goes = bench.execute(number(ENDLESS), number(0))
    stays.takes = goes.takes = False
    assert bench.until(lambda: len(stays.responses) == 1)

    bench.instance.cancel(goes.inference)

    assert bench.until(lambda: goes.is_over)
    assert not stays.is_over


def test_stream_that_is_cancelled_at_once_leaves_nothing(serve):
    bench = serve(count_up)
    (host,) = bench.bound._hosts
    for _ in range(50):
        (call,) = bench.execute(number(ENDLESS))
        bench.instance.cancel(call.inference)
        assert bench.until(lambda call=call: call.is_over)

    assert bench.until(lambda: host.batches.open == {})
    assert bench.until(lambda: bench.instance.is_idle)


def test_generator_that_raises_when_closed_harms_no_other(serve, caplog):
    def steps(requests):
        try:
            yield from count_up(requests)
        finally:
            if requests[0]["x"][0, 0] == ENDLESS:
                raise KeyError("from the generator's own finally")

    bench = serve(steps)
    (call,) = bench.execute(number(ENDLESS))
    assert bench.until(lambda: call.responses)
    bench.instance.cancel(call.inference)
    assert bench.until(lambda: call.is_over)
    (other,) = bench.infer(number(3))

    assert values(other) == [0, 1, 2]
    assert bench.until(lambda: "when it was closed: KeyError" in caplog.text)


def test_unrecoverable_error_half_way_asks_for_the_end(serve, caplog):
    def steps(requests):
        yield answers(requests, 1)
        raise PyTritonUnrecoverableError("gone")

    bench = serve(steps)
    (call,) = bench.infer(number(0))

    assert values(call) == [1]
    assert "PyTritonUnrecoverableError: gone" in call.error
    assert bench.until(lambda: bench.stops == 1)


def test_slow_step_does_not_hold_back_what_came_before(serve):
    go_on = threading.Event()

    def steps(requests):
        yield answers(requests, 1)
        yield answers(requests, 2)
        assert go_on.wait(DEADLINE_S)
        yield answers(requests, 3)

    bench = serve(steps)
    (call,) = bench.execute(number(0))
    try:
        assert bench.until(lambda: values(call) == [1, 2])
    finally:
        go_on.set()
    assert bench.until(lambda: call.is_over)

    assert values(call) == [1, 2, 3]


def test_many_streams_at_the_same_time(serve):
    bench = serve(count_up)
    calls = [call for _ in range(100) for call in bench.execute(number(50))]
    assert bench.until(lambda: all(call.is_over for call in calls))

    assert all(values(call) == list(range(50)) for call in calls)
