# SPDX-License-Identifier: Apache-2.0
"""A loaded version whose instances end: they are replaced, given up, or stopped with it."""

from __future__ import annotations

import asyncio
import functools

from pytriton.engine.model import Model, ModelState
from pytriton.repository.loading.plans import InstancePlan
from pytriton.repository.loading.python_version import PythonVersion
from pytriton.repository.loading.restart_policy import RestartPolicy
from tests.fakes import FakeInstance, RecordingSink, inference, model_spec

DEADLINE_S = 60.0
NOW_NS = 1


class FakeWorker(FakeInstance):
    """An instance with a process, which ends when the test says so."""

    has_ready_check = False
    is_to_blame = True

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


class Rig:
    """A ready version, and its workers, each of which starts when `gate` is open."""

    def __init__(self, loop, crash_limit=5):
        self.loop = loop
        self.workers = []
        self.gate = asyncio.Event()
        self.version = PythonVersion(
            lambda supervisor: Model(model_spec(1), loop, supervisor=supervisor),
            self._start,
            loop,
            policy=RestartPolicy(crash_limit),
        )
        self.model = self.version.model

    async def _start(self, plan):
        worker = FakeWorker(plan.name, self.loop)
        self.workers.append(worker)
        await self.gate.wait()
        return worker

    async def begin(self):
        """Put the first instance in service."""
        self.gate.set()
        await self.version.add(plan(0))
        self.model.become(ModelState.READY)
        self.gate.clear()

    def submit(self):
        sink = RecordingSink()
        self.model.submit(inference(sink, owner=self.model), NOW_NS)
        return sink


def plan(index):
    return InstancePlan(name=f"m_0_{index}", kind="CPU")


def on_loop(test):
    """Runs a test's coroutine with a rig."""

    @functools.wraps(test)
    def run():
        async def main():
            await asyncio.wait_for(test(Rig(asyncio.get_running_loop())), DEADLINE_S)

        asyncio.run(main())

    del run.__wrapped__  # pytest would see the argument
    return run


async def turn():
    """Let the loop do what is due."""
    for _ in range(10):
        await asyncio.sleep(0)


@on_loop
async def test_request_waits_for_the_replacement_of_an_instance(rig):
    await rig.begin()
    rig.workers[0].die()
    sink = rig.submit()
    await turn()
    assert rig.model.missing_instances == 1

    rig.gate.set()
    await turn()
    rig.workers[1].finish()

    assert (sink.final_count, sink.errors) == (1, [])
    assert rig.model.is_ready


@on_loop
async def test_model_is_not_ready_from_the_loss_of_an_instance_until_its_replacement_serves(rig):
    changes = []
    await rig.begin()
    rig.model.on_changed = lambda: changes.append(rig.model.is_ready)

    rig.workers[0].lose()
    assert changes == [False]
    rig.workers[0].die()
    await turn()
    assert set(changes) == {False}
    assert len(rig.workers) == 2  # it is being started
    rig.gate.set()
    await turn()

    assert changes[-1]
    assert changes.count(True) == 1


@on_loop
async def test_stop_answers_what_waits_for_a_replacement(rig):
    await rig.begin()
    rig.workers[0].die()
    rig.workers[0].ended.set_result(None)
    sink = rig.submit()
    await turn()

    await rig.version.drain_and_stop(0.0)

    assert (sink.final_count, len(sink.errors)) == (1, 1)
    assert not rig.model.is_busy


@on_loop
async def test_stop_waits_for_the_process_that_started_after_its_version_was_given_up(rig):
    rig = Rig(rig.loop, crash_limit=1)
    await rig.begin()
    late = asyncio.ensure_future(rig.version.add(plan(1)))
    await turn()
    rig.workers[0].die()
    rig.workers[0].ended.set_result(None)
    await turn()
    assert rig.model.state is ModelState.UNAVAILABLE

    rig.gate.set()
    await late
    assert rig.workers[1].is_stopped
    stopping = asyncio.ensure_future(rig.version.drain_and_stop(0.0))
    await turn()
    assert not stopping.done()
    rig.workers[1].ended.set_result(None)

    await stopping
    assert rig.model.instances == []
