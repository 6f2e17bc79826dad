# SPDX-License-Identifier: Apache-2.0
"""Bound models leave service and come back, without the processes that bound them."""

from __future__ import annotations

import pytest

from pytriton.base.errors import (
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)
from pytriton.serving.engine.client import IndexEntry
from pytriton.serving.engine.engine import Engine
from pytriton.serving.engine.model import Model, VersionState
from pytriton.serving.server.binding.bound_control import BoundControl
from pytriton.testing import FakeEventLoop
from tests.fakes import FakeInstance, RecordingSink, model_spec, request

UNKNOWN = "Request for unknown model: 'm'"


class Scene:
    """An engine whose models were bound."""

    def __init__(self) -> None:
        self.loop = FakeEventLoop()
        self.engine = Engine()
        self.control = BoundControl(self.engine, self.loop)

    def bind(self, name="m", version=1) -> FakeInstance:
        model = Model(model_spec(name=name, version=version), self.loop, is_bound=True)
        instance = FakeInstance(f"{name}_0_0", model)
        model.add_instance(instance)
        self.engine.add(model)
        self.engine.set_ready(model)
        self.loop.run()
        return instance

    def load(self, name="m", config=None, files=None) -> None:
        self.loop.run_until_complete(self.control.load(name, config, files or {}))
        self.loop.run()

    def unload(self, name="m") -> None:
        self.loop.run_until_complete(self.control.unload(name))
        self.loop.run()

    def infer(self, name="m") -> RecordingSink:
        sink = RecordingSink()
        self.engine.infer(request(model_name=name), sink)
        self.loop.run()
        return sink

    def states(self) -> list[tuple[str, str, str, str]]:
        return [
            (entry.name, entry.version, entry.state, entry.reason) for entry in self.control.index()
        ]


@pytest.fixture
def scene():
    made = Scene()
    yield made
    made.loop.run()
    made.loop.close()


def test_index_lists_bound_models_and_no_others(scene):
    scene.bind("b", 2)
    scene.bind("b", 1)
    scene.bind("a")
    foreign = Model(model_spec(name="foreign"), scene.loop)
    scene.engine.add(foreign)

    assert scene.control.index() == [
        IndexEntry("a", "1", "READY"),
        IndexEntry("b", "1", "READY"),
        IndexEntry("b", "2", "READY"),
    ]
    assert scene.control.has("a")
    assert not scene.control.has("foreign")


def test_unloaded_model_refuses_requests_and_the_server_stays_ready(scene):
    scene.bind()
    scene.unload()

    assert scene.states() == [("m", "1", "UNAVAILABLE", "unloaded")]
    assert scene.control.index(ready=True) == []
    assert not scene.engine.is_model_ready("m")
    assert scene.engine.is_ready()
    assert scene.control.is_ready()
    with pytest.raises(NotFoundError, match=f"{UNKNOWN} has no available versions"):
        scene.engine.lookup("m")
    with pytest.raises(UnavailableError, match=f"{UNKNOWN} version 1 is not at ready state"):
        scene.engine.lookup("m", "1")


def test_unloaded_model_finishes_what_it_has(scene):
    instance = scene.bind()
    running, queued = scene.infer(), scene.infer()
    scene.unload()
    assert scene.states() == [("m", "1", "UNLOADING", "")]
    assert scene.engine.is_ready()

    instance.finish()
    scene.loop.run()
    instance.finish()
    scene.loop.run()

    assert (len(running.responses), len(queued.responses)) == (1, 1)
    assert scene.states() == [("m", "1", "UNAVAILABLE", "unloaded")]


def test_loaded_model_serves_again(scene):
    instance = scene.bind()
    scene.unload()
    scene.load()
    sink = scene.infer()
    instance.finish()

    assert scene.states() == [("m", "1", "READY", "")]
    assert scene.engine.is_model_ready("m")
    assert len(sink.responses) == 1


def test_model_comes_back_before_it_has_finished(scene):
    instance = scene.bind()
    first = scene.infer()
    scene.unload()
    scene.load()
    second = scene.infer()
    assert scene.states() == [("m", "1", "READY", "")]

    instance.finish()
    scene.loop.run()
    instance.finish()
    scene.loop.run()

    assert (len(first.responses), len(second.responses)) == (1, 1)
    assert scene.states() == [("m", "1", "READY", "")]


def test_unloading_and_loading_twice_changes_nothing_more(scene):
    scene.bind()
    for _ in range(2):
        scene.load()
    assert scene.states() == [("m", "1", "READY", "")]
    for _ in range(2):
        scene.unload()

    assert scene.states() == [("m", "1", "UNAVAILABLE", "unloaded")]


def test_all_versions_go_and_come_together(scene):
    for version in (1, 2):
        scene.bind("m", version)
    scene.bind("other")
    scene.unload()
    assert [state for _, _, state, _ in scene.states()] == ["UNAVAILABLE"] * 2 + ["READY"]

    scene.load()

    assert [state for _, _, state, _ in scene.states()] == ["READY"] * 3


def test_model_bound_again_is_served(scene):
    scene.bind()
    scene.unload()
    scene.bind()

    assert scene.states() == [("m", "1", "READY", "")]


def test_unknown_model_is_unloaded_already_and_cannot_be_loaded(scene):
    scene.unload("nobody")
    with pytest.raises(InternalError) as refused:
        scene.load("nobody")

    assert refused.value.message == (
        "failed to load 'nobody', failed to poll from model repository"
    )


@pytest.mark.parametrize(
    "config,files,named",
    [("{}", {}, "config"), (None, {"1/m": b""}, "file:1/m"), ("", {"a": b""}, "config, file:a")],
)
def test_configuration_and_code_of_a_bound_model_are_not_replaced(scene, config, files, named):
    scene.bind()
    scene.unload()
    with pytest.raises(InvalidArgumentError) as refused:
        scene.load("m", config, files)

    assert refused.value.message == (
        "expected no load parameters for model 'm', whose configuration and code come from the "
        f"process that bound it, got {named}"
    )
    assert scene.states() == [("m", "1", "UNAVAILABLE", "unloaded")]


def test_model_without_instances_cannot_be_loaded(scene):
    scene.bind().die("its process ended")
    with pytest.raises(InvalidArgumentError) as refused:
        scene.load()

    assert refused.value.message == (
        "load failed for model 'm': version 1 is at UNAVAILABLE state: "
        "instance m_0_0 is gone, its process ended;\n"
    )
    assert not scene.control.is_ready()


def test_unloaded_model_whose_instances_ended_cannot_be_loaded(scene):
    instance = scene.bind()
    scene.unload()
    instance.die()
    assert scene.control.is_ready()
    with pytest.raises(InvalidArgumentError, match="state: all its instances are gone;"):
        scene.load()

    assert not scene.control.is_ready()
    with pytest.raises(InvalidArgumentError, match="state: all its instances are gone;"):
        scene.load()


def test_model_that_ends_while_it_is_unloaded_is_forgotten(scene):
    scene.bind()
    scene.infer()
    scene.unload()
    model = next(scene.engine.models())
    model.stop()
    scene.engine.remove(model)
    scene.loop.run()

    assert model.state is VersionState.UNAVAILABLE
    assert scene.states() == []
