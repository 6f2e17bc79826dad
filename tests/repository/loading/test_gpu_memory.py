# SPDX-License-Identifier: Apache-2.0
"""Which loads are refused because GPUs have no room."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from pytriton.base.errors import InvalidArgumentError, UnavailableError
from pytriton.serving.engine.config import config_from_text
from pytriton.serving.repository.loading.python_loader import GpuMemory, needed_memory
from tests.e2e.waiting import DEADLINE_S

MIB = 1 << 20


def config(groups, amount="100", name="m"):
    parameter = f'parameters {{ key: "GPU_MEMORY_MIB" value {{ string_value: "{amount}" }} }}'
    text = f'name: "{name}" {parameter} instance_group [ {groups} ]'
    return config_from_text(text, "config.pbtxt")


ONE = "{ kind: KIND_GPU count: 1 gpus: [ 0 ] }"


class Reader:
    def __init__(self, **free_mib):
        self.free = {int(name[1:]): size for name, size in free_mib.items()}

    def free_bytes(self):
        return {gpu: size * MIB for gpu, size in self.free.items()}


def test_instances_are_summed_by_device():
    groups = (
        "{ kind: KIND_GPU count: 2 gpus: [ 0, 1 ] }, { kind: KIND_GPU count: 1 gpus: [ 1 ] }, "
        "{ kind: KIND_CPU count: 4 }"
    )

    assert needed_memory(config(groups)) == {0: 200 * MIB, 1: 300 * MIB}
    assert needed_memory(config_from_text('name: "m"', "config.pbtxt")) == {}


@pytest.mark.parametrize("amount", ["", "0", "-5", "1.5", "many"])
def test_amount_that_is_no_number_is_refused(amount):
    with pytest.raises(InvalidArgumentError, match=f"of model 'm', got '{amount}'"):
        needed_memory(config(ONE, amount))


async def load(memory, *models):
    async with contextlib.AsyncExitStack() as stack:
        for each in models:
            await stack.enter_async_context(memory.reserve(each))


def test_load_is_refused_where_a_device_has_too_little():
    memory = GpuMemory(lambda: Reader(g0=500, g1=99))
    both = config("{ kind: KIND_GPU count: 1 gpus: [ 0, 1 ] }")
    with pytest.raises(UnavailableError) as refused:
        asyncio.run(load(memory, both))

    assert refused.value.message == (
        "1 instance of model 'm' on GPU 1 would need 100 MiB of its memory (GPU_MEMORY_MIB: 100), "
        "but 99 MiB are free"
    )


@pytest.mark.parametrize("find", [lambda: None, lambda: Reader(g1=0)])
def test_nothing_is_refused_for_a_device_that_nobody_knows(find):
    asyncio.run(load(GpuMemory(find), config(ONE)))


def test_nothing_is_refused_if_the_driver_fails(caplog):
    class Broken(Reader):
        def free_bytes(self):
            raise OSError("fell off the bus")

    asyncio.run(load(GpuMemory(Broken), config(ONE)))

    assert "nothing is refused: OSError('fell off the bus')" in caplog.text


def test_models_that_are_loaded_at_the_same_time_fit_together():
    reader = Reader(g0=250)
    memory = GpuMemory(lambda: reader)

    async def run():
        async with memory.reserve(config(ONE)):
            async with memory.reserve(config(ONE)):
                reader.free[0] = 150  # one of them has taken its memory
                with pytest.raises(UnavailableError) as refused:
                    await load(memory, config(ONE))
            reader.free[0] = 50
            with pytest.raises(UnavailableError, match="but 50 MiB are free"):
                await load(memory, config(ONE))
        reader.free[0] = 250  # both are unloaded
        await load(memory, config(ONE), config(ONE))
        return refused.value.message

    assert asyncio.run(run()).endswith(
        "but 150 MiB are free, and 200 MiB are kept for models that are being loaded"
    )


def test_memory_that_was_freed_during_a_long_load_is_for_others():
    reader = Reader(g0=300)
    memory = GpuMemory(lambda: reader)

    async def run():
        async with memory.reserve(config(ONE)):
            for _ in range(3):  # another model is loaded and unloaded
                async with memory.reserve(config(ONE, "150")):
                    reader.free[0] = 150
                reader.free[0] = 300
            with pytest.raises(UnavailableError, match="300 MiB are free, and 100 MiB are kept"):
                await load(memory, config(ONE, "201"))

    asyncio.run(run())


def test_load_that_ends_while_the_driver_is_asked_has_its_memory():
    class SlowReader(Reader):
        def free_bytes(self):
            found = super().free_bytes()
            asked.set()
            assert answer.wait(DEADLINE_S)
            return found

    asked, answer = threading.Event(), threading.Event()
    answer.set()
    reader = SlowReader(g0=150)
    memory = GpuMemory(lambda: reader)

    async def run():
        async with memory.reserve(config(ONE)):
            asked.clear()
            answer.clear()
            second = asyncio.create_task(load(memory, config(ONE)))
            await asyncio.to_thread(asked.wait, DEADLINE_S)
            reader.free[0] = 50
            asyncio.get_running_loop().call_later(0.01, answer.set)
        with pytest.raises(UnavailableError, match="150 MiB are free, and 100 MiB are kept"):
            await second

    asyncio.run(run())


def test_load_that_fails_leaves_its_memory_to_others():
    memory = GpuMemory(lambda: Reader(g0=250))

    async def run():
        async with memory.reserve(config(ONE)):
            with pytest.raises(OSError, match="no such file"):
                async with memory.reserve(config(ONE)):
                    raise OSError("no such file")
            await load(memory, config(ONE))

    asyncio.run(run())
