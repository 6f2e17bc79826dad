# SPDX-License-Identifier: Apache-2.0
"""Waiting until a model has nothing left to do, on a real loop."""

from __future__ import annotations

import asyncio
import functools
import time

from pytriton.base.errors import UnavailableError
from pytriton.base.model_spec import BatcherSpec, QueuePolicySpec
from pytriton.serving.engine.model import Model, VersionState
from tests.fakes import FakeInstance, RecordingSink, inference, model_spec

FOREVER_S = 60.0
FOREVER_US = 60_000_000
NOW_NS = 1


def on_loop(test=None, **batcher):
    """Runs a test's coroutine with a ready model of one instance."""
    if test is None:
        return functools.partial(on_loop, **batcher)

    async def main():
        model = Model(
            model_spec(4 if batcher else 1, BatcherSpec(**batcher)), asyncio.get_running_loop()
        )
        instance = FakeInstance("m_0_0", model)
        model.add_instance(instance)
        model.become(VersionState.READY)
        await asyncio.wait_for(test(model, instance), FOREVER_S)

    def run():
        asyncio.run(main())

    run.__name__ = test.__name__
    return run


def submit(model, count):
    sinks = [RecordingSink() for _ in range(count)]
    for sink in sinks:
        model.submit(inference(sink), NOW_NS)
    return sinks


async def begin(work):
    """Start to wait for something."""
    task = asyncio.ensure_future(work)
    await turn()
    return task


async def turn():
    """Let the loop do what is due."""
    for _ in range(3):
        await asyncio.sleep(0)


@on_loop
async def test_drain_of_an_idle_model_returns_at_once(model, instance):
    await model.drain(FOREVER_S)

    assert model.state is VersionState.READY


@on_loop
async def test_drain_waits_for_what_runs_and_what_waits(model, instance):
    submit(model, 2)
    draining = await begin(model.drain(FOREVER_S))
    instance.finish()
    await turn()
    assert not draining.done()

    instance.finish()

    await draining


@on_loop
async def test_several_may_wait_for_one_model(model, instance):
    submit(model, 1)
    waiting = [await begin(model.drain()) for _ in range(3)]

    instance.finish()
    await asyncio.gather(*waiting)

    assert not instance.running


@on_loop
async def test_drain_gives_up_when_its_time_is_over(model, instance):
    (running,) = submit(model, 1)

    await model.drain(0.01)

    assert running.final_count == 0


@on_loop(preferred_batch_sizes=(2,), max_queue_delay_us=FOREVER_US)
async def test_drain_ends_when_the_last_request_is_cancelled(model, instance):
    model.submit(waiting := inference(), time.monotonic_ns())
    draining = await begin(model.drain())
    assert instance.running == []

    model.cancel(waiting)

    await draining


@on_loop(
    preferred_batch_sizes=(2,),
    max_queue_delay_us=FOREVER_US,
    default_queue_policy=QueuePolicySpec(default_timeout_us=1000),
)
async def test_drain_ends_when_the_last_request_is_rejected(model, instance):
    model.submit(inference(sink := RecordingSink()), time.monotonic_ns())

    await model.drain()

    assert sink.errors[0].message == "Request timeout expired"


@on_loop
async def test_drain_ends_when_the_last_batch_cannot_be_sent(model, instance):
    submit(model, 2)
    draining = await begin(model.drain())
    instance.refusal = UnavailableError("no room")

    instance.finish()
    await draining

    assert not instance.running
    assert len(instance.batches) == 1  # the second was never taken


@on_loop
async def test_drain_ends_with_the_model(model, instance):
    sinks = submit(model, 2)
    draining = await begin(model.drain())

    model.stop()

    await draining
    assert [sink.final_count for sink in sinks] == [1, 1]
