# SPDX-License-Identifier: Apache-2.0
"""Tasks that nobody else holds."""

from __future__ import annotations

import asyncio
import gc

from pytriton.background_tasks import BackgroundTasks


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
