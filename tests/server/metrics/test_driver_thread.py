# SPDX-License-Identifier: Apache-2.0
"""Calls of a driver that answers, fails, or hangs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from pytriton.base.background_tasks import call_driver
from tests.e2e.waiting import DEADLINE_S

HANGING = """
import asyncio, time
from pytriton.base.background_tasks import call_driver

async def main():
    task = asyncio.ensure_future(call_driver(lambda: time.sleep(3600)))
    await asyncio.sleep(0)
    task.cancel()

asyncio.new_event_loop().run_until_complete(main())
print("ended")
"""


def test_answer_is_returned_from_another_thread():
    assert asyncio.run(call_driver(lambda: threading.current_thread().name)) == "driver"


def test_error_is_raised():
    def fail():
        raise LookupError("no device")

    with pytest.raises(LookupError, match="no device"):
        asyncio.run(call_driver(fail))


def test_late_answer_reaches_nobody():
    release, answered = threading.Event(), threading.Event()

    def answer():
        release.wait()
        answered.set()

    async def main():
        task = asyncio.ensure_future(call_driver(answer))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        release.set()
        await asyncio.to_thread(answered.wait)
        await asyncio.sleep(0)
        return task.cancelled()

    assert asyncio.run(main()) is True


def test_process_ends_while_a_driver_hangs():
    done = subprocess.run(
        [sys.executable, "-c", HANGING],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")
