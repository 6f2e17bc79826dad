# SPDX-License-Identifier: Apache-2.0
"""Instances that retire: they get nothing new, answer what they have, and are not replaced."""

from __future__ import annotations

import random

import pytest

from pytriton.base.errors import CancelledError, UnavailableError
from pytriton.base.model_spec import BatcherSpec, QueuePolicySpec, SequenceSpec
from pytriton.runtime.executor.inference import Outcome
from tests.fakes import FakeInstance, FakeSupervisor, response


@pytest.fixture
def supervisor():
    return FakeSupervisor(replaces=True)


def test_idle_instance_is_stopped_and_not_replaced(scene, supervisor):
    one = scene(instances=2, supervisor=supervisor)
    changes = []
    one.model.on_changed = lambda: changes.append(one.model.is_ready)

    one.model.retire(one.instances[1])
    one.loop.run()

    assert one.model.instances == one.instances[:1]
    assert supervisor.retired == one.instances[1:]
    assert (one.model.missing_instances, one.model.statistics.lost_instances) == (0, 0)
    assert False not in changes
    one.submit(1)
    one.instances[0].finish()
    one.check_all_answered()


def test_busy_instance_is_stopped_when_its_requests_are_answered(scene, supervisor):
    one = scene(instances=2, max_batch_size=1, supervisor=supervisor)
    one.submit(3)
    retiring, other = one.instances

    one.model.retire(retiring)
    one.loop.run()
    assert retiring in one.model.instances
    retiring.finish()
    one.loop.run()
    other.finish()
    other.finish()

    assert (retiring.sizes, other.sizes) == ([1], [1, 1])
    assert one.model.instances == [other]
    one.check_all_answered()


def test_instance_answers_its_streams_to_their_end(scene, supervisor):
    one = scene(instances=2, decoupled=True, concurrency=4, supervisor=supervisor)
    one.submit(1)
    (retiring,) = [each for each in one.instances if each.running]
    (batch,) = retiring.running
    one.model.retire(retiring)
    one.loop.run()

    one.submit(1)  # it has a free slot, but the other one gets this
    retiring.report(batch, [Outcome(0, response(), is_final=False)])
    one.loop.run()
    assert retiring in one.model.instances
    retiring.finish(batch)
    one.loop.run()

    assert len(retiring.batches) == 1
    assert retiring not in one.model.instances
    assert len(one.sink(0).responses) == 2


def test_instance_that_dies_while_it_retires_is_lost_and_its_supervisor_decides(scene, supervisor):
    one = scene(instances=2, supervisor=supervisor)
    one.submit(1)
    (retiring,) = [each for each in one.instances if each.running]
    one.model.retire(retiring)

    retiring.die()
    one.loop.run()

    assert len(one.sink(0).errors) == 1
    assert one.model.statistics.lost_instances == 1
    assert one.model.missing_instances == 1
    assert not supervisor.retired


def test_retiring_twice_or_after_the_end_does_nothing(scene, supervisor):
    one = scene(instances=2, supervisor=supervisor)
    one.model.retire(one.instances[0])
    one.model.retire(one.instances[0])
    one.loop.run()

    one.model.retire(one.instances[0])
    one.loop.run()

    assert one.model.instances == one.instances[1:]
    assert supervisor.retired == one.instances[:1]


def test_model_is_ready_when_the_connection_of_a_retired_instance_ends_before_its_process(
    scene, supervisor, monkeypatch
):
    one = scene(instances=2, supervisor=supervisor)
    retired = one.instances[1]
    monkeypatch.setattr(retired, "stop", retired.lose)
    readiness = []
    one.model.on_changed = lambda: readiness.append(one.model.is_ready)

    one.model.retire(retired)
    one.loop.run()
    retired.die()

    assert one.model.instances == one.instances[:1]
    assert one.model.is_ready
    assert False not in readiness
    assert one.model.statistics.lost_instances == 0


def test_model_is_ready_after_an_instance_was_lost_and_then_retired(scene, supervisor):
    one = scene(instances=2, supervisor=supervisor)
    lost = one.instances[1]
    lost.lose()
    one.model.retire(lost)
    assert not one.model.is_ready

    one.loop.run()

    assert one.model.instances == one.instances[:1]
    assert one.model.is_ready


def test_passive_instance_retires(scene, supervisor):
    one = scene(supervisor=supervisor)
    passive = FakeInstance("m_0_7", one.model)
    one.model.add_instance(passive, is_passive=True)

    one.model.retire(passive)
    one.loop.run()

    assert one.model.instances == one.instances
    assert one.model.is_ready


def test_stop_ends_an_instance_that_retires(scene, supervisor):
    one = scene(instances=2, supervisor=supervisor)
    one.submit(1)
    (retiring,) = [each for each in one.instances if each.running]
    one.model.retire(retiring)

    one.model.stop()
    one.loop.run()

    assert one.model.instances == []
    one.check_all_answered()


def test_instance_keeps_its_sequences_until_they_end_and_gets_no_new_ones(scene, supervisor):
    one = scene(instances=2, batches=False, sequence=SequenceSpec(), supervisor=supervisor)
    one.submit(1, correlation_id=1, flags=1)
    (retiring,) = [each for each in one.instances if each.running]
    (other,) = [each for each in one.instances if not each.running]
    one.model.retire(retiring)
    retiring.finish()
    one.loop.run()
    assert retiring in one.model.instances  # its sequence has not ended

    one.submit(1, correlation_id=2, flags=1)
    assert other.sizes == [1]
    one.submit(1, correlation_id=1, flags=2)
    assert retiring.sizes == [1, 1]
    retiring.finish()
    one.loop.run()

    assert one.model.instances == [other]
    other.finish()
    one.model.stop()
    one.check_all_answered()


def test_instance_retires_when_its_last_sequence_was_idle_for_too_long(scene, supervisor):
    spec = SequenceSpec(idle_us=1_000_000)
    one = scene(instances=2, batches=False, sequence=spec, supervisor=supervisor)
    one.submit(1, correlation_id=1, flags=1)
    (retiring,) = [each for each in one.instances if each.running]
    retiring.finish()
    one.model.retire(retiring)
    one.loop.advance(0.9)
    assert retiring in one.model.instances

    one.loop.advance(0.2)

    assert retiring not in one.model.instances


class Life:
    """A model whose instances come and go at random, and who must not get requests any more."""

    def __init__(self, scene, dice):
        self.dice = dice
        self.decoupled = dice.random() < 0.3
        self.scene = scene(
            instances=2,
            concurrency=4 if self.decoupled else 1,
            decoupled=self.decoupled,
            max_batch_size=dice.choice([1, 3]),
            batches=dice.random() < 0.8,
            batcher=BatcherSpec(
                max_queue_delay_us=dice.choice([0, 1000]),
                preserve_ordering=dice.random() < 0.3,
                default_queue_policy=QueuePolicySpec(default_timeout_us=dice.choice([0, 50_000])),
            ),
            supervisor=FakeSupervisor(replaces=True),
            is_idempotent=dice.random() < 0.7,
            no_instance_timeout_s=dice.choice([0.0, 0.01]),
        )
        self.model = self.scene.model
        self.batch_counts = {}  # of retiring instances
        self.refused = 0

    def act(self):
        dice, model = self.dice, self.model
        alive = list(model.instances)
        busy = [(one, batch) for one in alive for batch in one.running]
        what = dice.random()
        if what < 0.3:
            self.submit()
        elif what < 0.36 and self.scene.inferences:
            model.cancel(dice.choice(self.scene.inferences))
        elif what < 0.44:
            self.scene.loop.advance(dice.choice([0.0005, 0.003, 0.02]))
        elif what < 0.5 and len(alive) < 5:
            concurrency = 4 if self.decoupled else 1
            model.add_instance(FakeInstance("m", model, concurrency))
        elif what < 0.56 and alive:
            self.retire(dice.choice(alive))
        elif what < 0.6 and alive:
            dice.choice(alive).die()
        elif what < 0.63 and alive:
            dice.choice(alive).lose()
        elif what < 0.75 and busy and self.decoupled:
            one, batch = dice.choice(busy)
            position = dice.choice(sorted(batch.open_positions))
            is_over = batch.inferences[position].is_cancelled
            error = CancelledError("") if is_over else None
            answer = None if is_over else response()
            one.report(batch, [Outcome(position, answer, error, is_final=is_over)])
        elif busy:
            one, batch = dice.choice(busy)
            one.finish(batch)
        self.scene.loop.run()
        self.check()

    def submit(self):
        try:
            self.scene.submit(self.dice.randint(1, 3))
        except UnavailableError:  # there was no instance for too long
            self.refused += 1
            self.scene.sinks.pop()
            self.scene.inferences.pop()

    def retire(self, instance):
        if len(self.model.instances) > 1:  # its owner keeps one
            self.batch_counts.setdefault(instance, len(instance.batches))
            self.model.retire(instance)

    def check(self):
        self.model.check_integrity()
        for instance, count in self.batch_counts.items():
            assert len(instance.batches) == count, "a retired instance got a batch"
            if not instance.running:
                assert instance not in self.model.instances or instance.is_lost
        running = sum(len(each.open_positions) for one in self.model.instances
                      for each in one.running)  # fmt: skip
        assert self.model.running_count >= running
        assert self.model.statistics.pending_count >= 0

    def finish(self):
        for instance in [each for each in self.model.instances if each.is_lost]:
            instance.die()
        self.model.add_instance(FakeInstance("m", self.model, 4 if self.decoupled else 1))
        self.scene.loop.advance(0.002)
        while busy := [each for each in self.model.instances if each.running]:
            busy[0].finish()
            self.scene.loop.advance(0.002)


@pytest.mark.parametrize("seed", range(60))
def test_every_request_ends_once_and_no_retired_instance_gets_a_batch(scene, seed):
    life = Life(scene, random.Random(seed))
    for _ in range(150):
        life.act()
    life.finish()
    life.model.stop()
    life.scene.loop.advance(1)

    life.scene.check_all_answered()
    for sink in life.scene.sinks:
        assert len(sink.errors) <= 1
