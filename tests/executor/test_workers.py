# SPDX-License-Identifier: Apache-2.0
"""Real workers that run, crash, hang and end: who hears of it, and that nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
import sys

import numpy as np
import psutil
import pytest

from pytriton.base.dtypes import FP32, INT32
from pytriton.base.errors import ErrorCode, InternalError
from pytriton.base.log_switches import LogFeed, LogSwitches
from pytriton.base.messages import InferResponse, InferTensor
from pytriton.runtime.executor.inference import ModelLabels, burst_outcomes
from pytriton.runtime.executor.launcher import START_SETTING, WorkerLauncher, WorkerSpec
from pytriton.runtime.executor.python_instance import PythonInstance, complete_config
from pytriton.runtime.transport.arena import MemoryTrimmer
from pytriton.runtime.transport.frames import Initialize
from pytriton.runtime.transport.memory import PORTABLE_SETTING
from tests.executor.worker_rig import DEADLINE_S, FakeServices, run_leaving_nothing, until
from tests.fakes import RecordingSink, inference
from tests.resource_limits import no_descriptors

MODEL = pathlib.Path(__file__).parent / "model_files" / "1" / "model.py"
CAUSES = {
    "kill": "Killed by SIGKILL (9).",
    "crash": "Killed by SIGSEGV (11).",
    "leave": "Exited with code 3.",
}


class OtherModel(FakeServices):
    """Answers calls with ten times their input, and counts callers."""

    def infer(self, call, inputs, sink):
        running = super().infer(call, inputs, sink)
        number = 10 * int(np.frombuffer(inputs["x"].data, np.int32)[0])
        output = InferTensor("y", INT32, (1,), np.array([number], np.int32).tobytes())
        sink.on_response(InferResponse("other", "1", "", [output]), final=True)
        return running


class Owner:
    """Starts instances on the running loop, and hears of them."""

    costs = None  # of batches: nobody asks for them here

    def __init__(self, launcher):
        self.launcher = launcher
        self.loop = asyncio.get_running_loop()
        self.memory = MemoryTrimmer(self.loop)
        self.services = OtherModel()
        self.instances = []
        self.deaths = []
        self.unavailable = []

    async def launch(self, name="m_0_0", *, spec=None, grace_s=30.0, **arguments):
        labels = ModelLabels("m", "1", ["x"], batching=True, is_model_file=True)
        instance = await PythonInstance.launch(
            self.launcher,
            spec or WorkerSpec(name, f"{name} of a test"),
            make_initialize(name, **arguments),
            labels,
            self.memory,
            self.loop,
            self,
            self.services,
            grace_s=grace_s,
        )
        self.instances.append(instance)
        instance.start()
        return instance

    def shown(self, error, batch):
        return error

    def on_outcomes(self, instance, batch, outcomes, times_ns):
        for outcome in outcomes:
            sink = batch.inferences[outcome.position].sink
            if outcome.error is not None:
                sink.on_error(outcome.error)
            else:
                sink.on_response(outcome.response, final=outcome.is_final)

    def on_burst(self, instance, batch, position, burst, times_ns):
        self.on_outcomes(instance, batch, burst_outcomes(position, burst), times_ns)

    def on_unavailable(self, instance):
        assert not instance.free_slots
        self.unavailable.append(instance.name)

    def on_died(self, instance, reason):
        self.deaths.append((instance.name, reason))

    def execute(self, instance, **parameters):
        tensor = InferTensor("x", FP32, (1, 2), np.array([[1, 2]], np.float32).tobytes())
        sink = RecordingSink()
        instance.execute([inference(sink, inputs={"x": tensor}, parameters=parameters)], 0)
        return sink

    async def infer(self, instance, **parameters):
        sink = self.execute(instance, **parameters)
        await until(lambda: sink.final_count)
        return sink

    async def output(self, instance, **parameters):
        (answer,) = (await self.infer(instance, **parameters)).responses
        return bytes(answer.outputs[0].data)


def make_initialize(name="m_0_0", path=MODEL, **arguments):
    arguments = {
        "model_config": json.dumps({"name": "m", "input": [], "output": []}),
        "model_instance_name": name,
        "model_name": "m",
        "model_version": "1",
        "model_repository": str(path.parent.parent),
        "model_instance_kind": "CPU",
        "model_instance_device_id": "0",
        **arguments,
    }
    return Initialize(str(path), "1", arguments, ["y"], is_batching=True)


def run(scenario):
    """Run a scenario, end what it has not ended, and see that nothing is left."""

    async def main():
        launcher = WorkerLauncher(asyncio.get_running_loop())
        owner = Owner(launcher)
        try:
            await asyncio.wait_for(scenario(owner), DEADLINE_S)
        finally:
            await launcher.close()
            for instance in owner.instances:
                await instance.ended

    run_leaving_nothing(main)


@pytest.fixture(params=["zygote", "spawn"])
def way(request, monkeypatch):
    monkeypatch.setenv(START_SETTING, "spawn" if request.param == "spawn" else "")


def is_over(pid):
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


def test_model_answers(way):
    async def scenario(owner):
        instance = await owner.launch()

        assert await owner.output(instance) == np.array([1, 2], np.float32).tobytes()
        assert psutil.Process(instance.pid).is_running()

    run(scenario)


@pytest.mark.skipif(sys.platform != "linux", reason="needs prlimit")
@pytest.mark.parametrize("portable", ["0", "1"], ids=["native", "portable"])
def test_worker_without_descriptors_fails_its_batch_and_lives(portable, monkeypatch):
    monkeypatch.setenv(PORTABLE_SETTING, portable)
    data = np.arange(50_000, dtype=np.float32).tobytes()

    async def infer_large(instance):
        sink = RecordingSink()
        tensor = InferTensor("x", FP32, (1, 50_000), data)
        instance.execute([inference(sink, inputs={"x": tensor})], 0)
        await until(lambda: sink.final_count)
        return sink

    async def scenario(owner):
        instance = await owner.launch()
        await owner.output(instance)
        with no_descriptors(instance.pid):
            for _ in range(2):
                (error,) = (await infer_large(instance)).errors

                assert error.code is ErrorCode.UNAVAILABLE
                assert error.message.endswith("no file descriptors left (limit 0)")
        (answer,) = (await infer_large(instance)).responses
        assert bytes(answer.outputs[0].data) == data
        assert owner.deaths == []

    run(scenario)


@pytest.mark.parametrize("action", CAUSES)
def test_crash_in_execute_fails_its_requests_with_the_cause_and_nobody_elses(way, action):
    async def scenario(owner):
        victim, other = await asyncio.gather(owner.launch("m_0_0"), owner.launch("m_0_1"))
        await owner.output(victim)
        sink = await owner.infer(victim, action=action)
        (error,) = sink.errors

        assert error.message == f"Stub process 'm_0_0' is not healthy. {CAUSES[action]}"
        await victim.ended
        assert [name for name, _ in owner.deaths] == ["m_0_0"]
        assert not await victim.check_ready()
        assert is_over(victim.pid)
        assert not psutil.pid_exists(victim.pid)
        assert await owner.output(other)
        again = await owner.launch("m_0_0")
        assert await owner.output(again)

    run(scenario)


def test_worker_has_the_settings_of_the_log_of_when_it_was_started(way):
    async def scenario(owner):
        log, quiet = LogFeed(), LogSwitches(info=False)
        initialize, launcher = make_initialize(), owner.launcher

        class SlowLauncher:
            async def launch(self, spec):
                worker = await launcher.launch(spec)
                log.change(quiet)
                return worker

        instance = await PythonInstance.launch(
            SlowLauncher(),
            WorkerSpec("m_0_0", "test"),
            initialize,
            ModelLabels("m", "1", ["x"], batching=True),
            owner.memory,
            owner.loop,
            owner,
            owner.services,
            log=log,
        )
        owner.instances.append(instance)

        assert initialize.log == quiet

    run(scenario)


def test_instances_initialize_at_the_same_time(way, tmp_path):
    async def scenario(owner):
        await asyncio.gather(
            *(owner.launch(f"m_0_{number}", folder=str(tmp_path), count="3") for number in range(3))
        )

        assert len({instance.pid for instance in owner.instances}) == 3

    run(scenario)


def test_processes_that_a_model_forks_call_through_the_door(way):
    async def scenario(owner):
        instance = await owner.launch()
        output = await owner.output(instance, calls=9)

        assert np.frombuffer(output, np.float32).tolist() == [10.0 * each for each in range(9)]
        await until(lambda: not instance._fork_listener.callers)

    run(scenario)


def test_model_runs_in_another_python():
    async def scenario(owner):
        # Without its own packages: it gets ours, which fit.
        base = pathlib.Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
        instance = await owner.launch(spec=WorkerSpec("m_0_0", "test", {}, str(base)))

        assert psutil.Process(instance.pid).exe() == str(base.resolve())
        assert await owner.output(instance)

    run(scenario)


def complete(owner, **variables):
    spec = WorkerSpec("m_0_0", "test", variables)
    return complete_config(owner.launcher, spec, make_initialize(), owner.loop, owner.services)


def test_model_completes_its_configuration_in_a_process_of_its_own(way):
    async def scenario(owner):
        completed = json.loads(await complete(owner))

        assert completed["max_batch_size"] == 7

    run(scenario)


def test_failure_to_complete_a_configuration_is_raised(way):
    async def scenario(owner):
        with pytest.raises(InternalError, match="ValueError: as it was told"):
            await complete(owner, TEST_ACTION="raise")
        with pytest.raises(InternalError, match=r"not healthy. Killed by SIGSEGV \(11\)."):
            await complete(owner, TEST_ACTION="crash")

    run(scenario)
