# SPDX-License-Identifier: Apache-2.0
"""What is awaited with a time limit: its result, its error, its end in time, and cancellations."""

from __future__ import annotations

import asyncio

import pytest

from pytriton.base import background_tasks
from pytriton.base.background_tasks import within
from pytriton.testing import FakeClock


@pytest.fixture(params=["within", "_within"])
def limited(request):
    """Both ways, as the second one is for older versions of Python."""
    return getattr(background_tasks, request.param)


async def give(value):
    await asyncio.sleep(0)
    if isinstance(value, Exception):
        raise value
    return value


def test_result_and_error_are_passed_on(limited):
    assert FakeClock().run(limited(60, give(3))) == 3
    with pytest.raises(KeyError):
        FakeClock().run(limited(60, give(KeyError())))


def test_what_takes_too_long_is_cancelled(limited):
    ended = []

    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def scenario():
        with pytest.raises(asyncio.TimeoutError):
            await limited(0.001, work())
        await asyncio.sleep(0)

    FakeClock().run(scenario())

    assert ended == [True]


def test_result_in_spite_of_the_end_of_the_time_is_kept(limited):
    async def work():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "late"

    async def scenario():
        answer = await limited(0.001, work())
        await asyncio.sleep(0)
        return answer

    assert FakeClock().run(scenario()) == "late"


@pytest.mark.parametrize("turns", range(5))
def test_cancellation_is_not_lost_whenever_it_comes(limited, turns):
    async def scenario():
        async def call():
            await limited(60, give(None))
            await asyncio.Event().wait()

        calling = asyncio.ensure_future(call())
        for _ in range(turns):
            await asyncio.sleep(0)
        calling.cancel()
        await asyncio.wait([calling], timeout=1)

        assert calling.cancelled()

    FakeClock().run(scenario())


def test_cancellation_after_the_time_is_not_lost():
    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            calling.cancel()
            await asyncio.sleep(0)

    async def scenario():
        nonlocal calling
        calling = asyncio.ensure_future(within(0.001, work()))
        await asyncio.wait([calling])

        assert calling.cancelled()

    calling = None
    FakeClock().run(scenario())
