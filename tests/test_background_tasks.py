# SPDX-License-Identifier: Apache-2.0
"""Tasks that nobody else holds, and work that has a thread if there is one."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from pytriton.base.background_tasks import BackgroundTasks, run_beside, wait_through


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


@pytest.mark.parametrize("has_threads", [True, False])
def test_work_runs_here_if_there_is_no_thread(monkeypatch, has_threads):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    threads = []

    async def scenario():
        with monkeypatch.context() as patches:  # the end of the loop itself needs a thread
            if not has_threads:
                patches.setattr(threading.Thread, "start", refuse)
            await run_beside(lambda: threads.append(threading.current_thread()))

    asyncio.run(scenario())

    assert len(threads) == 1
    assert (threads[0] is threading.main_thread()) is not has_threads


def test_error_of_work_beside_is_raised():
    with pytest.raises(RuntimeError, match="of the work"):
        asyncio.run(run_beside(_fail))


def _fail() -> None:
    raise RuntimeError("of the work")
