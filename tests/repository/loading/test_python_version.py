# SPDX-License-Identifier: Apache-2.0
"""A loaded version whose instances end: they are replaced, given up, or stopped with it."""

from __future__ import annotations

import asyncio
import functools
import inspect

import pytest
from msgspec import structs

from pytriton.base.errors import ErrorCode, InternalError, UnavailableError
from pytriton.runtime.executor.worker import (
    ForkingProcessEndedError,
    InstanceUnavailableError,
    Placement,
    Recovery,
    ResourceLackError,
)
from pytriton.serving.engine.model import Model, VersionState
from pytriton.serving.repository.loading import python_version
from pytriton.serving.repository.loading.plans import LoadTimeoutError
from pytriton.serving.repository.loading.python_version import PythonVersion, Restart, RestartPolicy
from tests.e2e.waiting import DEADLINE_S
from tests.fakes import RecordingSink, inference, model_spec
from tests.repository.loading.fake_workers import FakeWorker, plan, turn

NOW_NS = 1


class Rig:
    """A ready version, and its workers, each of which starts when `gate` is open."""

    def __init__(self, loop, crash_limit=5):
        self.loop = loop
        self.workers = []
        self.gate = asyncio.Event()
        self.start_errors = []  # raised by starts, the last one first
        self.recovery = Recovery()
        self.version = PythonVersion(
            lambda supervisor: Model(model_spec(1), loop, supervisor=supervisor),
            self._start,
            loop,
            policy=RestartPolicy(crash_limit),
            recovery=self.recovery,
        )
        self.model = self.version.model

    async def _start(self, plan):
        worker = FakeWorker(plan.name, self.loop)
        self.workers.append(worker)
        await self.gate.wait()
        if self.start_errors:
            raise self.start_errors.pop()
        return worker

    async def begin(self):
        """Put the first instance in service."""
        self.gate.set()
        await self.version.add(plan(0))
        self.model.become(VersionState.READY)
        self.gate.clear()

    def submit(self):
        sink = RecordingSink()
        self.model.submit(inference(sink, owner=self.model), NOW_NS)
        return sink


def without_rig(test):
    whole = inspect.signature(test)
    return whole.replace(parameters=list(whole.parameters.values())[1:])


def on_loop(test):
    """Runs a test's coroutine with a rig."""

    @functools.wraps(test)
    def run(**arguments):
        async def main():
            rig = Rig(asyncio.get_running_loop())
            await asyncio.wait_for(test(rig, **arguments), DEADLINE_S)

        asyncio.run(main())

    del run.__wrapped__  # pytest would see the argument
    run.__signature__ = without_rig(test)
    return run


@on_loop
async def test_request_waits_for_the_replacement_of_an_instance(rig, caplog):
    await rig.begin()
    rig.workers[0].die()
    sink = rig.submit()
    await turn()
    assert rig.model.missing_instances == 1

    rig.gate.set()
    with caplog.at_level("INFO", "pytriton"):
        await turn()
    rig.workers[1].finish()

    assert "Stub process 'm_0_0' serves again, on node 'node-a' (process 7)" in caplog.text
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
    rig.workers[0].crash()
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
    rig.workers[0].crash()
    await turn()
    assert rig.model.state is VersionState.UNAVAILABLE

    rig.gate.set()
    await late
    assert rig.workers[1].is_stopped
    stopping = asyncio.ensure_future(rig.version.drain_and_stop(0.0))
    await turn()
    assert not stopping.done()
    rig.workers[1].ended.set_result(None)

    await stopping
    assert rig.model.instances == []


@pytest.mark.parametrize(
    "error",
    [InstanceUnavailableError("no node has a free GPU"), LoadTimeoutError("not within 3 s")],
)
@on_loop
async def test_start_without_a_free_place_is_repeated_and_is_no_crash(rig, error):
    rig = Rig(rig.loop, crash_limit=2)
    rig.gate.set()
    await rig.version.add(structs.replace(plan(0), placement=Placement()))
    rig.model.become(VersionState.READY)
    rig.start_errors = [error]
    rig.gate.set()
    is_ready = asyncio.Event()
    rig.model.on_changed = lambda: is_ready.set() if rig.model.is_ready else None

    rig.workers[0].die()
    await is_ready.wait()

    assert len(rig.workers) == 3


@pytest.mark.parametrize(
    "error",
    [
        ResourceLackError("the server has no file descriptors left"),
        UnavailableError("the model says that a device is busy"),
        ForkingProcessEndedError("the process that forks workers ended 2 times"),
    ],
)
@on_loop
async def test_failed_start_that_is_not_the_models_fault_never_gives_it_up(rig, error, monkeypatch):
    monkeypatch.setattr(python_version, "LACK_DELAY_S", 0.0)
    monkeypatch.setattr(python_version, "FIRST_DELAY_S", 0.0)
    rig = Rig(rig.loop, crash_limit=2)
    await rig.begin()
    rig.start_errors = [error] * 20
    rig.gate.set()
    is_ready = asyncio.Event()
    rig.model.on_changed = lambda: is_ready.set() if rig.model.is_ready else None
    rig.workers[0].die()
    sink = rig.submit()
    await is_ready.wait()
    await turn()
    rig.workers[-1].finish()

    assert len(rig.workers) == 22
    assert (sink.final_count, sink.errors) == (1, [])


@on_loop
async def test_requests_do_not_wait_for_ever_for_a_start_that_lacks_resources(rig, monkeypatch):
    monkeypatch.setattr(python_version, "FAILED_START_WAIT_S", 0.0)
    rig.version._policy = LatePolicy()
    await rig.begin()
    rig.start_errors = [ResourceLackError("the server has no processes left")]
    rig.workers[0].is_to_blame = False
    rig.workers[0].die()
    waiting = rig.submit()
    await turn()
    rig.recovery.announce()
    rig.gate.set()
    while not waiting.errors:
        await turn()
    with pytest.raises(UnavailableError) as late:
        rig.submit()
    rig.workers[0].ended.set_result(None)
    await rig.version.drain_and_stop(0.0)

    for error in (*waiting.errors, late.value):
        assert error.code is ErrorCode.UNAVAILABLE
        assert "instance m_0_0 is gone, the server has no processes left" in error.message


class LatePolicy(RestartPolicy):
    """Restarts nothing within the time of a test."""

    def on_loss(self, now_s):
        return Restart(3600.0)

    def on_exit(self, now_s, cause):
        return Restart(3600.0)


@pytest.mark.parametrize("is_to_blame, starts", [(False, 2), (True, 1)], ids=["lost", "crashed"])
@on_loop
async def test_lost_instance_is_started_at_once_when_its_cluster_has_recovered(
    rig, is_to_blame, starts
):
    rig.version._policy = LatePolicy()
    await rig.begin()
    rig.gate.set()
    rig.workers[0].is_to_blame = is_to_blame
    rig.workers[0].crash()
    await turn()
    before = len(rig.workers)
    rig.recovery.announce()
    await turn()
    after = len(rig.workers)
    is_ready = rig.model.is_ready
    for worker in rig.workers[1:]:
        worker.ended.set_result(None)
    await rig.version.drain_and_stop(0.0)

    assert (before, after) == (1, starts)
    assert is_ready == (starts == 2)


@on_loop
async def test_start_that_fails_again_after_a_recovery_waits_as_before(rig):
    rig.version._policy = LatePolicy()
    await rig.begin()
    rig.gate.set()
    rig.start_errors = [InstanceUnavailableError("no node has a free GPU")]
    rig.workers[0].is_to_blame = False
    rig.workers[0].crash()
    await turn()
    rig.recovery.announce()
    await turn()
    attempts = len(rig.workers) - 1
    await rig.version.drain_and_stop(0.0)

    assert attempts == 1
    assert "0 pauses" in repr(rig.recovery)


@on_loop
async def test_start_that_fails_as_before_is_logged_once(rig, caplog):
    error = InstanceUnavailableError("the Ray cluster cannot be reached")
    rig.version._policy = LatePolicy()
    await rig.begin()
    rig.gate.set()
    rig.start_errors = [error] * 3
    with caplog.at_level("WARNING", "pytriton"):
        rig.workers[0].is_to_blame = False
        rig.workers[0].die()
        rig.workers[0].ended.set_result(None)
        await turn()
        for _ in range(4):
            rig.recovery.announce()
            await turn()
        failures = caplog.text.count("is not healthy: the Ray cluster cannot be reached")
        rig.workers[-1].is_to_blame = False
        rig.workers[-1].die()
    rig.workers[-1].ended.set_result(None)
    await rig.version.drain_and_stop(0.0)

    assert failures == 1
    assert len(rig.workers) == 5
    assert caplog.text.count("is not healthy: ") == 3


@pytest.mark.parametrize("turns", range(5))
@on_loop
async def test_replacement_that_fails_while_the_version_is_stopped_is_not_tried_again(rig, turns):
    rig.version._restart_timeout_s = DEADLINE_S
    await rig.begin()
    rig.workers[0].crash()
    await turn()
    rig.start_errors = [InternalError("no")]
    rig.gate.set()
    for _ in range(turns):  # somewhere between, the start fails and its caller hears of it
        await asyncio.sleep(0)
    await rig.version.drain_and_stop(0.0)
    await turn()

    assert len(rig.version._restarts) == 0
    assert len(rig.workers) == 2
