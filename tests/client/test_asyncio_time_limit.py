# SPDX-License-Identifier: Apache-2.0
"""Time limits of asyncio tasks, and cancellations that come at the same time."""

from __future__ import annotations

import asyncio
import sys

import pytest

from pytriton.client.asyncio_connections import AsyncioTimeLimit
from pytriton.testing import FakeClock
from tests.e2e.waiting import DEADLINE_S


async def wait(future, limit_s=DEADLINE_S):
    with AsyncioTimeLimit(limit_s):
        return await future


def test_what_is_there_in_time_is_returned():
    async def test():
        future = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(wait(future))
        await asyncio.sleep(0)
        future.set_result("answer")
        return await task

    assert FakeClock().run(test()) == "answer"


def test_wait_ends_when_the_time_is_up_and_the_task_goes_on():
    clock = FakeClock(start_s=0)

    async def test():
        with pytest.raises(asyncio.TimeoutError):
            await wait(asyncio.get_running_loop().create_future(), 5)
        assert clock() == 5
        await asyncio.sleep(60)  # neither cancelled now nor later

    clock.run(test())


def test_cancellation_in_the_moment_in_which_the_answer_comes_is_not_lost():
    async def test():
        future = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(wait(future))
        await asyncio.sleep(0)
        future.set_result("answer")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    FakeClock().run(test())


def test_shorter_limit_around_a_longer_one_is_kept():
    async def test():
        with AsyncioTimeLimit(5):
            await wait(asyncio.get_running_loop().create_future())

    with pytest.raises(asyncio.TimeoutError):
        FakeClock().run(test())


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 does not tell who cancels")
def test_task_that_is_cancelled_when_its_time_is_up_is_cancelled():
    async def test():
        task = asyncio.create_task(wait(asyncio.get_running_loop().create_future(), 0.0))
        await asyncio.sleep(0)  # the limit begins
        asyncio.get_running_loop().call_soon(task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await task

    FakeClock().run(test())
