# SPDX-License-Identifier: Apache-2.0
"""An instance made of several processes: a toy of tensor parallelism over sockets of its own."""

from __future__ import annotations

import asyncio
import gc
import pathlib

import numpy as np
import pytest

from pytriton.base.dtypes import FP32
from pytriton.base.errors import InternalError, UnavailableError
from pytriton.base.log_switches import LogFeed, LogSwitches
from pytriton.base.messages import InferTensor
from pytriton.runtime.executor.remote.remote_launcher import RankGroup
from pytriton.runtime.executor.remote.starter import ProcessPlace
from pytriton.runtime.executor.worker import Placement
from pytriton.runtime.transport.arena import MemoryTrimmer
from pytriton.runtime.transport.link import stream_pair
from pytriton.runtime.transport.stream_channel import StreamChannel
from tests.e2e.waiting import DEADLINE_S
from tests.executor import test_workers
from tests.executor.remote.remote_rig import run
from tests.executor.test_workers import is_over
from tests.executor.worker_rig import FakeServices, until
from tests.fakes import RecordingSink, inference

MODEL = pathlib.Path(__file__).parents[1] / "model_files" / "tensor_parallel" / "1" / "model.py"
WEIGHTS = np.arange(24, dtype=np.float32).reshape(2, 12)


@pytest.fixture(autouse=True)
def model(monkeypatch):
    make = test_workers.make_initialize
    monkeypatch.setattr(
        test_workers, "make_initialize", lambda name, **given: make(name, MODEL, **given)
    )


def launch(owner, folder, size, **arguments):
    return owner.launch(placement=Placement(group_size=size), folder=str(folder), **arguments)


async def multiply(instance, x):
    sink = RecordingSink()
    tensor = InferTensor("x", FP32, (1, 2), np.array([x], np.float32).tobytes())
    instance.execute([inference(sink, inputs={"x": tensor})], 0)
    await until(lambda: sink.final_count)
    return sink


@pytest.mark.parametrize("way", ["tcp:", "unix:"])
def test_group_computes_together_and_every_rank_finalizes(way, tmp_path):
    async def scenario(owner):
        instance = await launch(owner, tmp_path, 3)
        for x in ([1, 0], [2, 5]):
            sink = await multiply(instance, x)
            (output,) = sink.responses[0].outputs

            assert np.frombuffer(output.data, np.float32).tolist() == (x @ WEIGHTS).tolist()
        await until(lambda: len(owner.services.lines) == 2)
        instance.stop()
        await instance.ended

        assert sorted(path.name for path in tmp_path.glob("finalized-*")) == [
            f"finalized-{rank}" for rank in range(3)
        ]

    run(scenario, way)


def test_change_of_the_log_reaches_every_rank(tmp_path):
    async def scenario(owner):
        instance = await launch(owner, tmp_path, 3)
        log, lines = LogFeed(), owner.services.lines
        instance.follow(log)
        await until(lambda: len(lines) == 2)
        log.change(LogSwitches(verbose=1))

        told = set()
        while len(told) < 2:  # each reads the change beside its work
            await multiply(instance, [1, 0])
            told = {line for line in lines if "multiplies" in line}
        assert told == {"rank 1 multiplies", "rank 2 multiplies"}

    run(scenario)


def test_end_of_any_rank_is_the_end_of_all(tmp_path):
    async def scenario(owner):
        instance = await launch(owner, tmp_path, 2)
        pids = [int((tmp_path / f"pid-{rank}").read_text()) for rank in range(2)]
        assert instance.pid == pids[0]
        sink = await multiply(instance, [-1, 0])

        (error,) = sink.errors
        assert isinstance(error, UnavailableError)
        assert owner.deaths[0][0] == "m_0_0"
        await instance.ended
        await until(lambda: all(is_over(pid) for pid in pids))

    run(scenario)


def test_rank_that_cannot_load_the_model_ends_the_start(tmp_path):
    async def scenario(owner):
        unheard = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: unheard.append(context["message"]))
        with pytest.raises(InternalError) as raised:
            await launch(owner, tmp_path, 2, fails_on="1")

        assert raised.value.message.startswith("On node 'node-a': rank 1 of m_0_0: ")
        assert "ValueError: no weights for this rank" in raised.value.message
        (process,) = owner.starter.processes
        await asyncio.wait_for(process.exited, DEADLINE_S)
        await until(lambda: all(is_over(child.pid) for child in process.children))
        del raised
        gc.collect()
        assert not unheard

    run(scenario)


def test_loss_of_a_rank_that_loads_is_an_error_and_cancels_nobody():
    async def case():
        loop = asyncio.get_running_loop()
        pairs = [stream_pair() for _ in range(16)]
        places = [ProcessPlace("node-a", "a", pid) for pid in range(16)]
        channels = [StreamChannel(ours) for ours, _ in pairs]
        memory = MemoryTrimmer(loop)
        group = RankGroup("m_0_0", channels, places, memory, loop, FakeServices(), print)
        first = loop.create_future()
        gathering = asyncio.ensure_future(group.gather(first))
        await asyncio.sleep(0)
        group.close()
        first.set_exception(UnavailableError("rank 3 was lost"))

        with pytest.raises(UnavailableError, match="rank 3 was lost"):
            await gathering
        for _, theirs in pairs:
            theirs.close()

    asyncio.run(case())
