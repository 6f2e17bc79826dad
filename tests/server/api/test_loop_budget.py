# SPDX-License-Identifier: Apache-2.0
"""Work of some milliseconds: how much of it one iteration of the event loop does."""

from __future__ import annotations

import asyncio

import pytest

from pytriton.serving.server.api.background import LoopBudget
from pytriton.testing import FakeClock


class WorkClock(FakeClock):
    """A clock that work moves."""

    def work(self, result: int = 0) -> int:
        self.sleep(1)
        return result


@pytest.fixture
def clock():
    return WorkClock(start_s=100.0)


def test_first_work_of_an_iteration_is_done_at_once(clock):
    async def take() -> list[bool]:
        budget = LoopBudget(asyncio.get_running_loop(), clock)
        taken = [budget.is_free(), budget.is_free()]
        clock.work()
        taken.append(budget.is_free())
        await asyncio.sleep(0)
        taken.append(budget.is_free())
        return taken

    assert asyncio.run(take()) == [True, True, False, True]


def test_work_of_many_is_spread_over_iterations_in_order(clock):
    async def spread() -> tuple[list[int], list[int]]:
        budget = LoopBudget(asyncio.get_running_loop(), clock)
        done: list[int] = []

        async def one(number: int) -> None:
            done.append(await budget.run(lambda: clock.work(number)))

        tasks = [asyncio.create_task(one(number)) for number in range(5)]
        longest_s = 0.0
        while not all(task.done() for task in tasks):
            before = clock()
            await asyncio.sleep(0)
            longest_s = max(longest_s, clock() - before)
        assert longest_s == 1
        return done, [task.result() for task in tasks]

    assert asyncio.run(spread())[0] == [0, 1, 2, 3, 4]


def test_nobody_overtakes_waiting_work(clock):
    async def overtake() -> bool:
        budget = LoopBudget(asyncio.get_running_loop(), clock)
        waiting = asyncio.create_task(budget.run(clock.work))
        await asyncio.sleep(0)
        is_free = budget.is_free()
        await waiting
        return is_free

    assert asyncio.run(overtake()) is False


def test_error_of_work_is_raised_to_its_caller_only(clock):
    def fail() -> int:
        raise ValueError("bad")

    async def run() -> list[object]:
        budget = LoopBudget(asyncio.get_running_loop(), clock)
        return await asyncio.gather(budget.run(fail), budget.run(lambda: 2), return_exceptions=True)

    failed, result = asyncio.run(run())

    assert repr(failed) == "ValueError('bad')"
    assert result == 2


def test_cancelled_work_is_not_done(clock):
    async def cancel() -> float:
        budget = LoopBudget(asyncio.get_running_loop(), clock)
        task = asyncio.create_task(budget.run(clock.work))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return clock()

    assert asyncio.run(cancel()) == 100.0
