# SPDX-License-Identifier: Apache-2.0
"""Twice as many messages of a worker cause about twice the work: nothing is searched for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import msgspec
import pytest

from pytriton.runtime.transport import frames
from pytriton.runtime.transport.refs import TensorRef
from pytriton.serving.repository.services import custom_metrics
from tests.fuzz.fuzzing import assert_doubles
from tests.fuzz.worker_story import INT32, whole
from tests.fuzz.worker_world import World

INPUT = TensorRef("IN", INT32, (2,), 0, 8)
GAUGE = {"description": "", "kind": "GAUGE"}
ECHO = {"name": "echo", "version": ""}


def service(action: str, number: int = 0, **arguments: Any) -> Any:
    return frames.ServiceCall(number, action, arguments)


# What a worker may say many times, by how often it has said it.
FLOODS: dict[str, Callable[[int], Any]] = {
    "calls": lambda at: frames.InferCallFrame(at, "echo", -1, [INPUT]),
    "calls of nobody": lambda at: frames.InferCallFrame(at, "nobody", -1, []),
    "cancelled calls": frames.CancelCall,
    "services": lambda at: service("describe_model", at, **ECHO),
    "services that take time": lambda at: service("is_model_ready", at, **ECHO),
    "families": lambda at: service("new_family", family=at, name=f"f{at}", **GAUGE),
    "one family": lambda at: service("new_family", family=at, name="f", **GAUGE),
    "families that go": lambda at: (
        service("new_family", family=9, name="f", **GAUGE)
        if at % 2
        else service("delete_family", family=9)
    ),
    "metrics": lambda at: service(
        "new_metric", family=0, metric=at, labels={"a": str(at)}, buckets=None
    ),
    "lines": lambda at: frames.WorkerLogLine("VERBOSE", "text", "model.py", at),
    "memory": lambda _: frames.MemoryFrame(),
    "credit": lambda _: frames.CallCredit(1, 1),
    "notes": lambda at: frames.DeviceNotes([at], [at], {"sandbox": 1}, {}),
    "reports": lambda at: frames.ReadyReport(at, True),
}


@pytest.fixture
def worlds():
    made: list[World] = []
    yield made
    for world in made:
        world.close()
        world.loop.close()


def flood(name: str, count: int, worlds: list[World]) -> Callable[[], None]:
    """A world whose worker has much to say, and the call that lets it."""
    world = World("model")
    worlds.append(world)
    world.worker.is_hostile = True
    for number in range(300):  # what it has already, so that looking at all would cost much
        say(world, service("new_family", family=-number, name=f"g{number}", **GAUGE))
        say(world, service("new_metric", family=-number, metric=-number, labels={}, buckets=None))
    world.loop.run()
    assert len(world.metrics) == 300
    for at in range(count):
        say(world, FLOODS[name](at + 1))
    return world.loop.run


def say(world: World, frame: Any) -> None:
    world.worker.say(whole(msgspec.msgpack.encode(frame), bytes(16)), [])


@pytest.mark.parametrize("name", FLOODS)
def test_messages_cost_the_same_however_many_there_are(name, worlds):
    with mock.patch.object(custom_metrics, "MAX_FAMILIES", 2000):
        assert_doubles(lambda count: flood(name, count, worlds), (50, 100, 200), slack=3000)
