# SPDX-License-Identifier: Apache-2.0
"""Time in tests: the clock itself, and asyncio on it."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
import types

import pytest

from pytriton.testing import FakeClock, FakeEventLoop

HOUR_S = 3600


@pytest.fixture
def loop():
    loop = FakeEventLoop(FakeClock(start_s=0))
    yield loop
    loop.close()


# The clock


def test_time_stands_still_until_a_test_moves_it():
    clock = FakeClock(start_s=5)
    before = clock(), clock()
    clock.advance(0.25)

    assert before == (5.0, 5.0)
    assert clock() == 5.25


def test_clock_reads_as_the_module_time_does():
    clock = FakeClock(start_s=1.5)

    assert clock.monotonic() == clock.time() == clock.perf_counter() == 1.5
    assert clock.monotonic_ns() == clock.time_ns() == clock.perf_counter_ns() == 1_500_000_000


def test_clock_stands_for_the_module_of_other_code(monkeypatch):
    model = types.ModuleType("model")
    model.time = time
    clock = FakeClock(start_s=0)
    monkeypatch.setattr(model, "time", clock)
    model.time.sleep(HOUR_S)

    assert model.time.monotonic() == HOUR_S


def test_sums_of_seconds_are_exact():
    clock = FakeClock(start_s=0)
    for _ in range(1000):
        clock.advance(0.1)

    assert clock() == 100.0


def test_shortest_wait_comes_to_its_end():
    clock = FakeClock()
    before = clock.time_ns()
    clock.advance(1e-12)

    assert clock.time_ns() == before + 1


def test_time_never_goes_back():
    clock = FakeClock(start_s=5)
    clock.advance(-1)
    clock.advance_to(0)

    assert clock() == 5.0


def test_timers_are_called_at_their_times_and_in_their_order():
    clock = FakeClock(start_s=0)
    calls = []
    for name, delay_s in (("late", 3), ("first", 1), ("second", 1), ("too late", 5)):
        clock.call_later(delay_s, lambda name=name: calls.append((name, clock())))
    clock.call_at(2, lambda: calls.append(("at", clock())))
    clock.advance(4)

    assert calls == [("first", 1), ("second", 1), ("at", 2), ("late", 3)]
    assert clock() == 4
    assert clock.timer_count == 1


def test_timer_that_a_timer_sets_is_called_in_the_same_advance():
    clock = FakeClock(start_s=0)
    calls = []

    def tick() -> None:
        calls.append(clock())
        clock.call_later(1, tick)

    clock.call_later(1, tick)
    clock.advance(3)

    assert calls == [1, 2, 3]


def test_cancelled_timer_is_not_called():
    clock = FakeClock()
    calls = []
    timer = clock.call_later(1, calls.append, "called")
    timer.cancel()
    timer.cancel()
    clock.advance(2)

    assert timer.cancelled()
    assert calls == []


def test_time_of_a_timer_is_known():
    clock = FakeClock(start_s=10)

    assert clock.call_later(2.5, print).when() == 12.5
    assert clock.next_ns == 12_500_000_000


def test_blocked_time_makes_timers_late():
    clock = FakeClock(start_s=0)
    calls = []
    clock.call_later(1, lambda: calls.append(clock()))
    clock.sleep(5)
    before = list(calls)
    due = clock.call_due(), clock.call_due()

    assert before == []
    assert due == (True, False)
    assert calls == [5]


def test_clock_jumps_to_the_next_timer():
    clock = FakeClock(start_s=0)
    calls = []
    clock.call_later(1, calls.append, "cancelled").cancel()
    clock.call_later(HOUR_S, calls.append, "called")
    jumped = clock.jump(), clock.jump()

    assert jumped == (True, False)
    assert calls == ["called"]
    assert clock() == HOUR_S


# Asyncio


def test_coroutine_that_waits_for_hours_takes_no_time():
    clock = FakeClock(start_s=0)

    async def main() -> list[float]:
        async def wake(delay_s: float) -> float:
            await asyncio.sleep(delay_s)
            return asyncio.get_running_loop().time()

        return await asyncio.gather(wake(3 * HOUR_S), wake(HOUR_S), wake(0))

    assert clock.run(main()) == [3 * HOUR_S, HOUR_S, 0]
    assert clock() == 3 * HOUR_S


def test_timeout_ends_a_wait_exactly_in_time():
    clock = FakeClock(start_s=0)

    async def main() -> None:
        await asyncio.wait_for(asyncio.Event().wait(), 30)

    with pytest.raises(asyncio.TimeoutError):
        clock.run(main())

    assert clock() == 30


def test_timers_of_the_clock_wake_coroutines():
    clock = FakeClock(start_s=0)

    async def main() -> float:
        woken = asyncio.Event()
        clock.call_later(7, woken.set)
        await asyncio.wait_for(woken.wait(), 30)
        return clock()

    assert clock.run(main()) == 7


def test_input_comes_before_time_passes():
    clock = FakeClock(start_s=0)

    async def main() -> bytes:
        first, second = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=first)
        with second:
            second.send(b"here")
            data = await asyncio.wait_for(reader.read(4), 30)
        writer.close()
        await writer.wait_closed()
        return data

    assert clock.run(main()) == b"here"
    assert clock() == 0


def test_time_stands_still_while_a_thread_works():
    clock = FakeClock(start_s=0)
    gate = threading.Event()

    async def main() -> bool:
        threading.Timer(0.05, gate.set).start()
        return await asyncio.wait_for(asyncio.to_thread(gate.wait), HOUR_S)

    assert clock.run(main()) is True
    assert clock() == 0


def test_run_ends_the_tasks_that_are_left():
    clock = FakeClock(start_s=0)
    events = []

    async def stay() -> None:
        try:
            await asyncio.sleep(HOUR_S)
        finally:
            await asyncio.sleep(1)
            events.append(clock())

    async def main() -> None:
        task = asyncio.ensure_future(stay())
        await asyncio.sleep(2)
        assert not task.done()

    clock.run(main())

    assert events == [3]


def test_exception_of_a_coroutine_is_raised():
    async def main() -> None:
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        FakeClock().run(main())


# A loop that a test runs in steps


def test_loop_runs_what_is_ready_without_time(loop):
    events = []

    async def main() -> None:
        for number in range(20):
            await asyncio.sleep(0)
            events.append(number)
        await asyncio.sleep(1)
        events.append("later")

    task = loop.create_task(main())
    loop.run()

    assert events == list(range(20))
    assert loop.time() == 0
    assert not task.done()


def test_loop_advances_with_everything_at_its_time(loop):
    times = []

    async def main() -> None:
        while True:
            await asyncio.sleep(1)
            times.append(loop.time())

    loop.create_task(main())
    loop.clock.call_later(2.5, lambda: times.append(loop.time()))
    loop.advance(3.5)

    assert times == [1, 2, 2.5, 3]
    assert loop.time() == 3.5


def test_loop_does_not_wait_for_threads_in_steps(loop):
    gate = threading.Event()
    future = loop.run_in_executor(None, gate.wait)
    loop.run()
    loop.advance(1)
    is_done = future.done()
    gate.set()

    assert not is_done
    assert loop.run_until_complete(future) is True
    assert loop.time() == 1


def test_closed_loop_leaves_no_task(loop):
    task = loop.create_task(asyncio.Event().wait())
    loop.close()
    loop.close()

    assert task.cancelled()
