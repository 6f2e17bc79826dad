# SPDX-License-Identifier: Apache-2.0
"""Calls of models that say themselves whether they are ready."""

from __future__ import annotations

import asyncio

import pytest

from pytriton.base.errors import UNEXPECTED, CancelledError, InternalError
from pytriton.base.messages import DeviceWish
from tests.fakes import RecordingSink
from tests.repository.calling import World

REFUSED = "Model add - Error when running inference: "


class LoopWorld(World):
    """A world on the loop that runs."""

    def __init__(self) -> None:
        super().__init__()
        self.caller.loop = asyncio.get_running_loop()


async def settle(world: World) -> None:
    for _ in range(5):
        await asyncio.sleep(0)
    world.loop.run()


@pytest.mark.parametrize("is_ready", [True, False])
def test_called_model_is_asked_first(is_ready):
    async def scenario() -> None:
        world, sink = LoopWorld(), RecordingSink()

        async def check() -> bool:
            await asyncio.sleep(0)
            return is_ready

        model = world.add("add", check=check)
        world.call(None, "add", sink)
        assert sink.final_count == 0
        await settle(world)

        (instance,) = model.instances
        assert len(instance.running) == int(is_ready)
        assert [error.message for error in sink.errors] == [
            REFUSED + "Failed for execute the inference request. Model 'add' is not ready."
        ] * (not is_ready)

    asyncio.run(scenario())


def test_outputs_come_on_the_host_if_a_model_got_a_cache_during_the_check():
    async def scenario() -> None:
        world = LoopWorld()
        models = []

        async def check() -> bool:
            models.append(world.add("add", response_cache=True))
            return True

        world.add("add", check=check)
        world.call(None, "add", RecordingSink(), device_wish=DeviceWish())
        await settle(world)

        (batch,) = models[0].instances[0].running
        assert batch.inferences[0].cache_key is not None
        assert batch.inferences[0].request.device_wish is None

    asyncio.run(scenario())


def test_request_that_does_not_fit_is_refused_after_the_check():
    async def scenario() -> None:
        world, sink = LoopWorld(), RecordingSink()

        async def check() -> bool:
            return True

        world.add("add", check=check)
        world.call(None, "add", sink, outputs=["Z"])
        await settle(world)

        (error,) = sink.errors
        assert error.message == REFUSED + "unexpected inference output 'Z' for model 'add'"

    asyncio.run(scenario())


def test_check_that_fails_is_an_answer_too(caplog):
    async def scenario() -> None:
        world, sink = LoopWorld(), RecordingSink()

        async def check() -> bool:
            raise ValueError("broken")

        world.add("add", check=check)
        world.call(None, "add", sink)
        await settle(world)

        (error,) = sink.errors
        assert isinstance(error, InternalError)
        assert error.message == REFUSED + UNEXPECTED

    asyncio.run(scenario())
    assert "error in the server while it began a call of model add" in caplog.text
    assert "ValueError: broken" in caplog.text


def test_call_that_is_given_up_during_the_check_never_reaches_the_model():
    async def scenario() -> None:
        world, sink = LoopWorld(), RecordingSink()
        asked: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        async def check() -> bool:
            return await asked

        model = world.add("add", check=check)
        call = world.call(None, "add", sink)
        await settle(world)
        call.cancel()
        call.cancel()
        await settle(world)

        assert [type(error) for error in sink.errors] == [CancelledError]
        assert model.statistics.pending_count == 0
        assert model.instances[0].batches == []

    asyncio.run(scenario())


def test_instance_does_not_count_as_waiting_while_the_called_model_is_asked():
    async def scenario() -> None:
        world = LoopWorld()

        async def check() -> bool:
            return True

        add, caller = world.add("add", check=check), world.add("caller")
        instance = world.ask(caller)
        world.call(instance, "add", RecordingSink())
        assert len(world.caller.waits) == 0
        await settle(world)

        assert len(world.caller.waits) == 1

        add.instances[0].finish()

        assert len(world.caller.waits) == 0

    asyncio.run(scenario())
