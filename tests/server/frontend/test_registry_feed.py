# SPDX-License-Identifier: Apache-2.0
"""What front ends hear of models, and when a change counts as known to all."""

from __future__ import annotations

import pytest

from pytriton.base.sent_specs import decode_spec
from pytriton.serving.engine.engine import Engine
from pytriton.serving.engine.model import Model
from pytriton.serving.server.frontend.registry_feed import RegistryFeed
from pytriton.testing import FakeEventLoop
from tests.fakes import model_spec


class Reader:
    """A front end that keeps what it was sent."""

    def __init__(self, feed):
        self.known_models = set()
        self.taken_epoch = 0
        self.frames = []
        self._feed = feed

    def send_registry(self, frame):
        self.frames.append(frame)

    def take(self):
        self.taken_epoch = self.frames[-1].epoch
        self._feed.on_taken()

    @property
    def last(self):
        return self.frames[-1]


class Scene:
    def __init__(self):
        self.loop = FakeEventLoop()
        self.engine = Engine()
        self.rates = {"": 1000}
        self.feed = RegistryFeed(
            self.engine, self.engine.is_ready, self.loop, lambda: dict(self.rates)
        )

    def add(self, name="m", version=1):
        model = Model(model_spec(name=name, version=version), self.loop)
        self.engine.add(model)
        return model

    def reader(self):
        reader = Reader(self.feed)
        self.feed.add(reader)
        return reader


@pytest.fixture
def scene():
    made = Scene()
    yield made
    made.loop.close()


def test_new_front_end_gets_all_models_at_once(scene):
    scene.engine.set_ready(scene.add("a"))
    scene.add("b", 3)
    reader = scene.reader()

    assert [(each.state, each.is_ready) for each in reader.last.models] == [
        ("READY", True),
        ("LOADING", False),
    ]
    described = [decode_spec(each.spec) for each in reader.last.new_models]
    assert [(spec.name, spec.version) for spec in described] == [("a", 1), ("b", 3)]
    assert reader.known_models == {each.number for each in reader.last.models}


def test_changes_of_one_iteration_are_sent_once(scene):
    reader = scene.reader()
    scene.engine.set_ready(scene.add("a"))
    scene.engine.set_ready(scene.add("b"))
    scene.loop.run()
    scene.loop.run()

    assert len(reader.frames) == 2
    assert len(reader.last.new_models) == 2


def test_model_is_described_to_each_front_end_once(scene):
    first = scene.reader()
    model = scene.add()
    scene.loop.run()
    second = scene.reader()
    scene.engine.set_ready(model)
    scene.loop.run()

    assert [len(frame.new_models) for frame in first.frames] == [0, 1, 0]
    assert [len(frame.new_models) for frame in second.frames] == [1, 0]
    assert first.last.models == second.last.models


def test_number_of_a_model_is_never_used_again(scene):
    reader = scene.reader()
    numbers = []
    for _ in range(3):
        model = scene.add()
        scene.loop.run()
        numbers += [each.number for each in reader.last.new_models]
        scene.engine.remove(model)
        scene.loop.run()
        assert reader.last.models == []
        assert reader.known_models == set()

    assert len(set(numbers)) == 3
    assert scene.feed.models == {}


def test_change_can_be_sent_before_the_end_of_the_iteration_and_only_once(scene):
    reader = scene.reader()
    scene.add()
    scene.feed.push()
    scene.feed.push()
    scene.loop.run()

    assert len(reader.frames) == 2
    assert [frame.epoch for frame in reader.frames] == [1, 2]


def test_exit_is_told(scene):
    reader = scene.reader()
    assert (reader.last.is_exiting, reader.last.is_serving) == (False, True)
    scene.engine.begin_exit()
    scene.loop.run()
    assert (reader.last.is_exiting, reader.last.is_serving) == (False, False)
    scene.engine.refuse()
    scene.loop.run()

    assert (reader.last.is_exiting, reader.last.is_serving) == (True, False)


def settling(scene):
    task = scene.loop.create_task(scene.engine.settled())
    scene.loop.run()
    return task


def test_change_is_settled_at_once_without_front_ends(scene):
    scene.add()

    assert settling(scene).done()


def test_change_is_settled_when_all_front_ends_have_taken_it(scene):
    readers = [scene.reader(), scene.reader()]
    scene.add()
    task = settling(scene)
    states = [task.done()]
    for reader in readers:
        reader.take()
        scene.loop.run()
        states.append(task.done())

    assert states == [False, False, True]


def test_change_does_not_wait_for_a_front_end_that_has_ended(scene):
    reader = scene.reader()
    scene.add()
    task = settling(scene)
    assert not task.done()
    scene.feed.remove(reader)
    scene.loop.run()

    assert task.done()


def test_earlier_change_is_settled_by_a_later_registry(scene):
    reader = scene.reader()
    scene.add("a")
    first = settling(scene)
    scene.add("b")
    second = settling(scene)
    reader.taken_epoch = reader.frames[-2].epoch
    scene.feed.on_taken()
    scene.loop.run()
    assert (first.done(), second.done()) == (True, False)
    reader.take()
    scene.loop.run()

    assert second.done()


def test_caller_that_gives_up_does_not_disturb_the_others(scene):
    reader = scene.reader()
    scene.add()
    given_up, other = settling(scene), settling(scene)
    given_up.cancel()
    scene.loop.run()
    reader.take()
    scene.loop.run()

    assert given_up.cancelled()
    assert other.done()


def test_front_ends_know_the_rates_of_traces(scene):
    reader = scene.reader()
    assert reader.last.trace_rates == {"": 1000}

    scene.rates["m"] = 5
    scene.engine.on_changed()
    scene.loop.run()
    assert reader.last.trace_rates == {"": 1000, "m": 5}
