# SPDX-License-Identifier: Apache-2.0
"""Work in threads: its results, and what happens if the system has no thread."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref

import pytest

from pytriton.base.errors import UnavailableError
from pytriton.serving.server.api.background import Background


@pytest.fixture
def run():
    """Runs a test with a `Background` of one thread in an event loop."""

    def run(work):
        async def with_background():
            background = Background(asyncio.get_running_loop(), "test", workers=1)
            try:
                return await work(background)
            finally:
                background.close()

        return asyncio.run(with_background())

    return run


def test_results_and_errors_of_functions_reach_the_caller(run):
    async def work(background):
        with pytest.raises(ZeroDivisionError):
            await background.run(lambda: 1 // 0)
        return await background.run(max, 1, 2)

    assert run(work) == 2


def test_function_for_which_there_is_no_thread_never_runs(run, monkeypatch):
    done = []

    def fail(thread):
        raise RuntimeError("can't start new thread")

    async def work(background):
        with monkeypatch.context() as system:
            system.setattr(threading.Thread, "start", fail)
            with pytest.raises(UnavailableError, match=r"has no thread .*: can't start new thread"):
                await background.run(done.append, 1)
        await background.run(done.append, 2)

    run(work)

    assert done == [2]


def test_function_for_which_there_is_no_thread_is_let_go(run, monkeypatch):
    class Tensor:
        def read(self):
            raise AssertionError("it never runs")

    def fail(thread):
        raise RuntimeError("can't start new thread")

    async def work(background):
        monkeypatch.setattr(threading.Thread, "start", fail)
        tensor = Tensor()
        kept = weakref.ref(tensor)
        with pytest.raises(UnavailableError):
            await background.run(tensor.read)
        del tensor
        gc.collect()
        return kept() is None

    assert run(work)


def test_function_whose_caller_was_cancelled_while_it_waited_never_runs(run):
    done = []
    gate = threading.Event()

    async def work(background):
        first = asyncio.create_task(background.run(gate.wait))
        second = asyncio.create_task(background.run(done.append, 1))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([second])
        gate.set()
        await first
        await background.run(done.append, 2)
        return second.cancelled()

    assert run(work)
    assert done == [2]


def test_caller_of_a_function_that_waits_is_cancelled_at_the_end(run):
    gate = threading.Event()

    async def work(background):
        first = asyncio.create_task(background.run(gate.wait))
        second = asyncio.create_task(background.run(max, 1, 2))
        await asyncio.sleep(0)
        background.close()
        await asyncio.wait([second])
        gate.set()
        await first
        return second.cancelled()

    assert run(work)
