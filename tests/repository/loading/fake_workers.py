# SPDX-License-Identifier: Apache-2.0
"""Instances with processes that end when a test says so."""

from __future__ import annotations

import asyncio

from pytriton.serving.repository.loading.plans import InstancePlan
from tests.fakes import FakeInstance


class FakeWorker(FakeInstance):
    has_ready_check = False
    is_to_blame = True
    node = "node-a"
    pid = 7
    concurrency = 1

    def __init__(self, name, loop):
        super().__init__(name, None)
        self.is_stopped = False
        self.ended = loop.create_future()

    def set_events(self, events):
        self._events = events

    def stop(self):
        self.is_stopped = True
        if self._events is not None:
            super().stop()

    def crash(self):
        self.die()
        self.ended.set_result(None)


def plan(index):
    return InstancePlan(name=f"m_0_{index}", kind="CPU")


async def turn():
    """Let the loop do what is due."""
    for _ in range(10):
        await asyncio.sleep(0)
