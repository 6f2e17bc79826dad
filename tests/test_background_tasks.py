# SPDX-License-Identifier: Apache-2.0
"""Tasks that nobody else holds."""

from __future__ import annotations

import asyncio
import gc

from pytriton.base.background_tasks import BackgroundTasks, wait_through


def test_task_is_kept_until_it_has_ended():
    async def scenario():
        tasks = BackgroundTasks(asyncio.get_running_loop())
        gate = asyncio.Event()
        ended = []

        async def work():
            await gate.wait()
            ended.append(True)

        tasks.start(work())
        gc.collect()
        assert (len(tasks), ended) == (1, [])
        gate.set()
        await tasks.wait()
        await tasks.wait()

        assert (len(tasks), ended) == (0, [True])

    asyncio.run(scenario())


def test_tasks_can_be_given_up():
    async def scenario():
        tasks = BackgroundTasks(asyncio.get_running_loop())
        first = tasks.start(asyncio.Event().wait())
        assert list(tasks) == [first]
        tasks.cancel()
        await tasks.wait()

        assert first.cancelled()
        assert len(tasks) == 0

    asyncio.run(scenario())


def test_end_of_tasks_can_be_waited_for_in_spite_of_cancellations():
    async def scenario():
        gate = asyncio.Event()
        task = asyncio.ensure_future(gate.wait())
        waiting = asyncio.ensure_future(wait_through([task]))
        for _ in range(3):
            await asyncio.sleep(0)
            waiting.cancel()
        await asyncio.sleep(0)
        assert not waiting.done()
        gate.set()
        await waiting

        assert task.done()

    asyncio.run(scenario())
