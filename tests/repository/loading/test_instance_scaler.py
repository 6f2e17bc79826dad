# SPDX-License-Identifier: Apache-2.0
"""A version whose number of instances follows its load: starts, retirements, losses."""

from __future__ import annotations

import asyncio
import functools

from pytriton.runtime.executor.worker import InstanceUnavailableError, Recovery
from pytriton.serving.engine.model import Model, VersionState
from pytriton.serving.repository.loading.instance_scaler import FIRST_RETRY_S, ScalingSettings
from pytriton.serving.repository.loading.python_version import PythonVersion
from pytriton.testing import FakeClock
from tests.e2e.waiting import DEADLINE_S
from tests.fakes import RecordingSink, inference, model_spec
from tests.repository.loading.fake_workers import FakeWorker, plan, turn

SETTINGS = ScalingSettings(minimum=1, maximum=4, up_after_s=2.0, down_after_s=120.0)


class EndingWorker(FakeWorker):
    """Its process ends as soon as it is stopped."""

    def stop(self):
        super().stop()
        self.ended.set_result(None)


class Rig:
    """A ready version with one instance; others start when `gate` is open."""

    def __init__(self, loop, settings=SETTINGS):
        self.loop = loop
        self.clock = FakeClock()
        self.workers = []
        self.gate = asyncio.Event()
        self.start_error = None
        self.cancelled = []  # names of starts
        self.recovery = Recovery()
        self.version = PythonVersion(
            lambda supervisor: Model(model_spec(2), loop, supervisor=supervisor),
            self._start,
            loop,
            clock=self.clock,
            recovery=self.recovery,
            scaling=settings,
            make_plan=plan,
        )
        self.model = self.version.model
        self.scaler = self.version._scaler
        self.sinks = []

    async def _start(self, plan):
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(plan.name)
            raise
        if self.start_error is not None:
            raise self.start_error
        worker = EndingWorker(plan.name, self.loop)
        self.workers.append(worker)
        return worker

    async def begin(self):
        self.gate.set()
        await self.version.add(plan(0))
        self.model.become(VersionState.READY)

    def submit(self, count):
        for _ in range(count):
            sink = RecordingSink()
            self.sinks.append(sink)
            self.model.submit(inference(sink, owner=self.model), 1)

    async def adapt(self, *seconds):
        """Look at the load now, and after each of these times."""
        for elapsed_s in (0, *seconds):
            self.clock.advance(elapsed_s)
            self.scaler.adapt()
            await turn()

    async def answer_all(self):
        while busy := [each for each in self.model.instances if each.running]:
            busy[0].finish()
            await turn()

    @property
    def names(self):
        return [instance.name for instance in self.model.instances]

    @property
    def counts(self):
        statistics = self.model.statistics
        return statistics.scale_ups, statistics.scale_downs


def on_loop(test):
    """Runs a test's coroutine with a rig."""

    @functools.wraps(test)
    def run():
        async def main():
            rig = Rig(asyncio.get_running_loop())
            await asyncio.wait_for(rig.begin(), DEADLINE_S)
            await asyncio.wait_for(test(rig), DEADLINE_S)
            rig.gate.set()
            await asyncio.wait_for(rig.version.drain_and_stop(0.0), DEADLINE_S)
            assert [sink.final_count for sink in rig.sinks] == [1] * len(rig.sinks)
            assert rig.model.instances == []

        asyncio.run(main())

    del run.__wrapped__  # pytest would see the argument
    return run


@on_loop
async def test_load_starts_instances_and_quiet_ends_the_newest_ones(rig):
    rig.submit(5)  # with batches of two: three instances
    await rig.adapt(1.9)
    assert rig.names == ["m_0_0"]
    await rig.adapt(0.1)
    assert rig.names == ["m_0_0", "m_0_1", "m_0_2"]
    assert rig.model.is_ready

    await rig.answer_all()
    await rig.adapt(119.9)
    assert len(rig.names) == 3
    await rig.adapt(0.2)

    assert rig.names == ["m_0_0"]
    assert rig.counts == (2, 2)
    assert rig.model.is_ready
    assert rig.model.statistics.lost_instances == 0


@on_loop
async def test_idle_instance_retires_before_a_busy_one_and_its_number_is_free(rig):
    rig.submit(5)
    await rig.adapt(2)
    await rig.answer_all()
    rig.submit(1)
    await turn()
    busy = [each for each in rig.workers if each.running]
    idle = "m_0_1" if busy == [rig.workers[2]] else "m_0_2"
    rig.scaler._policy.wanted = 2  # as after the quiet time

    await rig.adapt()
    assert idle not in rig.names
    assert busy[0].name in rig.names
    await rig.answer_all()
    rig.submit(5)
    await rig.adapt(0, 2)

    assert sorted(rig.names) == ["m_0_0", "m_0_1", "m_0_2"]


@on_loop
async def test_name_is_free_when_the_process_has_ended(rig):
    rig.submit(3)
    await rig.adapt(2)
    await rig.answer_all()
    leaving = rig.workers[1]
    leaving.stop = leaving.die  # its process takes long to end
    await rig.adapt(121)
    rig.submit(3)
    await rig.adapt(2)
    assert rig.names == ["m_0_0", "m_0_2"]
    leaving.ended.set_result(None)
    await rig.answer_all()
    await rig.adapt(121)
    rig.submit(3)
    await rig.adapt(2)

    assert rig.names == ["m_0_0", "m_0_1"]


@on_loop
async def test_pending_starts_are_left_waiting_and_given_up_when_they_are_not_wanted(rig):
    rig.gate.clear()
    rig.submit(7)
    await rig.adapt(2)
    await rig.adapt(60)
    assert rig.scaler.load().starting == 3
    assert rig.cancelled == []

    await rig.answer_all()
    await rig.adapt(60, 60.1)

    assert rig.scaler.load().starting == 0
    assert rig.cancelled == ["m_0_3", "m_0_2", "m_0_1"]
    assert rig.counts == (0, 0)
    assert rig.version.names == {"m_0_0"}


@on_loop
async def test_start_that_fails_is_tried_again_later_and_harms_nobody(rig):
    rig.start_error = InstanceUnavailableError("no node has a free GPU")
    rig.submit(3)
    await rig.adapt(2)
    await rig.adapt(FIRST_RETRY_S - 0.1)
    assert rig.scaler.load().starting == 0
    assert rig.version.names == {"m_0_0"}
    assert rig.model.is_ready

    rig.start_error = None
    await rig.adapt(0.1)

    assert rig.names == ["m_0_0", "m_0_1"]
    await rig.answer_all()


@on_loop
async def test_start_that_failed_is_tried_at_once_when_the_cluster_has_recovered(rig):
    rig.start_error = InstanceUnavailableError("no node has a free GPU")
    rig.submit(3)
    await rig.adapt(2)
    rig.start_error = None
    await rig.adapt(0.1)
    before = rig.names
    rig.recovery.announce()
    await rig.adapt()

    assert before == ["m_0_0"]
    assert rig.names == ["m_0_0", "m_0_1"]
    await rig.answer_all()


@on_loop
async def test_lost_instance_is_replaced_only_if_it_is_still_wanted(rig):
    rig.submit(3)
    await rig.adapt(2)
    assert len(rig.names) == 2
    await rig.answer_all()
    rig.workers[1].crash()
    await turn()
    assert rig.names == ["m_0_0", "m_0_1"]  # the quiet time is not over

    rig.scaler._policy.wanted = 1
    rig.workers[-1].crash()
    await turn()

    assert rig.names == ["m_0_0"]
    assert rig.model.is_ready
    assert rig.model.statistics.lost_instances == 2
    rig.workers[0].crash()
    await turn()
    assert len(rig.names) + rig.model.missing_instances == 1  # the last one is always wanted


@on_loop
async def test_replacement_that_waits_for_a_place_is_given_up_when_it_is_not_wanted(rig):
    rig.submit(3)
    await rig.adapt(2)
    await rig.answer_all()
    rig.gate.clear()
    rig.workers[1].crash()
    await turn()
    assert rig.model.missing_instances == 1
    assert not rig.model.is_ready

    await rig.adapt(121)

    assert rig.model.missing_instances == 0
    assert rig.model.is_ready
    assert rig.cancelled == ["m_0_1"]
    assert rig.version.names == {"m_0_0"}


@on_loop
async def test_replacement_that_serves_already_is_not_given_up(rig):
    rig.version._restart_timeout_s = DEADLINE_S  # the wait for a start with a limit ends later
    rig.submit(3)
    await rig.adapt(2)
    await rig.answer_all()
    rig.gate.clear()
    rig.workers[1].crash()
    await turn()
    given_up = []
    add_instance = rig.model.add_instance

    def add_and_scale_down(*arguments, **options):
        add_instance(*arguments, **options)
        rig.loop.call_soon(lambda: given_up.append(rig.version.cancel_replacement()))

    rig.model.add_instance = add_and_scale_down
    rig.gate.set()
    await turn()

    assert given_up == [False]
    assert rig.model.missing_instances == 0
    assert rig.model.is_ready
    assert rig.version.names == {"m_0_0", "m_0_1"}


@on_loop
async def test_stop_gives_up_pending_starts(rig):
    rig.gate.clear()
    rig.submit(7)
    await rig.adapt(2)

    await rig.version.drain_and_stop(0.0)

    assert sorted(rig.cancelled) == ["m_0_1", "m_0_2", "m_0_3"]
    assert len(rig.workers) == 1


@on_loop
async def test_version_without_scaling_has_no_timer(rig):
    timers = []
    loop = rig.loop
    plain = PythonVersion(
        lambda supervisor: Model(model_spec(2), loop, supervisor=supervisor), rig._start, loop
    )
    original, loop.call_later = loop.call_later, lambda *args: timers.append(args)
    try:
        await plain.add(plan(0))
    finally:
        loop.call_later = original

    assert timers == []
    await plain.drain_and_stop(0.0)
