# SPDX-License-Identifier: Apache-2.0
"""Models whose instances take turns by the rate limiter."""

from __future__ import annotations

import random

import pytest

from pytriton.base.errors import InvalidArgumentError, UnavailableError
from pytriton.base.model_spec import BatcherSpec, SequenceSpec
from pytriton.serving.engine.model import Model, VersionState
from pytriton.serving.engine.rate_limiter import (
    InstanceLimits,
    InstanceTurns,
    ResourceLimiter,
    ResourceNeed,
)
from tests.fakes import (
    FakeInstance,
    FakeLoop,
    FakeSupervisor,
    RecordingSink,
    inference,
    model_spec,
)

ONE = InstanceLimits(resources=(ResourceNeed("R", 1, is_global=True),))
TWO = InstanceLimits(resources=(ResourceNeed("R", 2, is_global=True),))
DEVICE = InstanceLimits(resources=(ResourceNeed("R", 1),))
NONE = InstanceLimits()
START, END = 1, 2


class Server:
    """Models that share the resources of one rate limiter."""

    def __init__(self, clock):
        self.clock = clock
        self.loop = FakeLoop(clock)
        self.turns = InstanceTurns(ResourceLimiter(), self.loop)
        self.models: list[Model] = []
        self.sinks: list[RecordingSink] = []

    def add(self, *limits, concurrency=1, supervisor=None, **spec):
        """Add a model with an instance for each of the limits."""
        model = Model(
            model_spec(**spec),
            self.loop,
            supervisor=supervisor,
            turns=self.turns.join(limits),
        )
        for index, each in enumerate(limits):
            model.add_instance(FakeInstance(f"m_{index}", model, concurrency), each)
        model.become(VersionState.READY)
        self.models.append(model)
        self.loop.run()
        return model

    def submit(self, model, count=1, **fields):
        submitted = []
        for _ in range(count):
            sink = RecordingSink()
            each = inference(sink, received_ns=self.clock.now_ns, owner=model, **fields)
            self.sinks.append(sink)
            submitted.append(each)
            model.submit(each, self.clock.now_ns)
        self.loop.run()
        return submitted

    def running(self):
        """How many batches each instance of each model runs."""
        return [[len(each.running) for each in model.instances] for model in self.models]

    def finish(self, model, index=0):
        model.instances[index].finish()
        self.loop.run()

    @property
    def used(self):
        return {name: used for (name, _), (used, _) in self.turns.limiter.pools.items()}


@pytest.fixture
def server(clock):
    return Server(clock)


def test_models_that_share_a_resource_never_run_at_the_same_time(server):
    first, second = server.add(ONE), server.add(ONE)
    server.submit(first, 2)
    server.submit(second, 2)

    assert server.running() == [[1], [0]]

    server.finish(first)

    assert server.running() == [[0], [1]]

    server.finish(second)

    assert server.running() == [[0], [0]]
    assert server.used == {"R": 0}


def test_instances_of_a_model_share_a_resource(server):
    model = server.add(ONE, ONE, max_batch_size=1)
    server.submit(model, 3)

    assert sorted(server.running()[0]) == [0, 1]


def test_requests_gather_while_their_instance_waits(server):
    first, second = server.add(ONE), server.add(ONE, batcher=BatcherSpec())
    server.submit(first)
    server.submit(second)
    server.submit(second)
    server.finish(first)

    assert second.instances[0].sizes == [2]


def test_model_without_needs_does_not_wait(server):
    first, second, free = server.add(ONE), server.add(ONE), server.add(NONE)
    for model in (first, second, free):
        server.submit(model)

    assert server.running() == [[1], [0], [1]]


def test_batch_delay_starts_a_batch_when_it_is_over(server):
    model = server.add(ONE, batcher=BatcherSpec(max_queue_delay_us=1000))
    server.submit(model)

    assert server.running() == [[0]]

    server.loop.advance(0.002)

    assert server.running() == [[1]]


def test_failed_batch_gives_its_resources_back(server):
    first, second = server.add(ONE), server.add(ONE)
    server.submit(first)
    server.submit(second)
    first.instances[0].fail()
    server.loop.run()

    assert server.running() == [[0], [1]]


def test_batch_that_cannot_be_sent_holds_nothing(server):
    first, second = server.add(ONE), server.add(ONE)
    first.instances[0].refusal = UnavailableError("no room")
    server.submit(first)
    server.submit(second)

    assert server.sinks[0].errors
    assert server.running() == [[0], [1]]


def test_dead_instance_gives_its_resources_back(server):
    first, second = server.add(ONE), server.add(ONE)
    server.submit(first)
    server.submit(second)
    first.instances[0].lose()
    first.instances[0].die()
    server.loop.run()

    assert server.running() == [[], [1]]


def test_instance_behind_a_dead_one_starts_if_it_can(server):
    running, large, small = server.add(ONE), server.add(TWO), server.add(ONE)
    server.submit(running)
    server.submit(large)  # it waits for both units, and keeps the free one
    server.submit(small)
    assert server.running() == [[1], [0], [0]]

    large.instances[0].die()
    server.loop.run()

    assert server.running() == [[1], [], [1]]


def test_replacement_has_the_place_of_the_dead_instance(server):
    first = server.add(ONE, supervisor=FakeSupervisor(replaces=True))
    second = server.add(ONE)
    server.submit(second)
    first.instances[0].die()
    server.submit(first)
    first.add_instance(FakeInstance("m_0", first), ONE)
    server.loop.run()

    assert server.running() == [[0], [1]]

    server.finish(second)

    assert server.running() == [[1], [0]]


def test_resources_come_with_an_additional_instance_and_go_with_one_that_retires(server):
    model = server.add(TWO, supervisor=FakeSupervisor(), max_batch_size=1)
    first = model.instances[0]
    model.add_instance(FakeInstance("m_1", model), ONE, is_additional=True)
    server.submit(model, 3)
    assert server.turns.limiter.pools == {("R", None): (2, 2)}

    model.retire(first)
    server.finish(model)
    server.finish(model)

    assert server.turns.limiter.pools == {("R", None): (1, 1)}
    assert len(first.batches) == 1
    assert first not in model.instances


def test_stopped_model_gives_back_its_resources_and_its_share_of_the_pool(server):
    first, second = server.add(TWO), server.add(ONE, ONE, max_batch_size=1)
    server.submit(first)
    server.submit(second, 3)

    assert server.running() == [[1], [0, 0]]

    first.stop()
    server.loop.run()

    assert server.running() == [[], [1, 0]]
    assert server.turns.limiter.pools == {("R", None): (1, 1)}


def test_model_that_can_never_run_leaves_nothing_behind(server):
    server.add(DEVICE)
    with pytest.raises(InvalidArgumentError, match="both global and device-specific"):
        server.turns.join([NONE, ONE])

    assert server.turns.limiter.pools == {("R", 0): (0, 1)}


def test_cancelled_requests_leave_the_turn_to_others(server):
    first, second, third = (server.add(ONE) for _ in range(3))
    server.submit(first)
    (cancelled,) = server.submit(second)
    server.submit(third)
    second.cancel(cancelled)
    server.finish(first)

    assert server.running() == [[0], [0], [1]]


def test_each_slot_of_an_instance_needs_its_resources(server):
    model = server.add(ONE, concurrency=4, decoupled=True, batches=False)
    server.add(TWO)
    server.submit(model, 4)

    assert server.running() == [[2], [0]]
    assert server.used == {"R": 2}


def test_passive_instance_gets_no_requests(server):
    model = server.add(ONE, max_batch_size=1)
    model.add_instance(FakeInstance("passive", model), is_passive=True)
    server.submit(model, 3)

    assert server.running() == [[1, 0]]


def test_one_model_does_not_starve_another(server):
    first, second = (server.add(ONE, max_batch_size=1) for _ in range(2))
    server.submit(first, 10)
    server.submit(second, 10)
    order = []
    for _ in range(20):
        (busy,) = [model for model in server.models if model.instances[0].running]
        order.append(busy)
        server.finish(busy)

    assert order == [first, second] * 10


@pytest.mark.parametrize("candidates", [None, 2], ids=["direct", "oldest"])
def test_sequences_wait_for_the_turn_of_their_instance(server, candidates):
    first = server.add(
        ONE,
        ONE,
        sequence=SequenceSpec(max_candidates=candidates),
        max_batch_size=2,
        batches=False,
    )
    second = server.add(ONE)
    for correlation_id in (1, 2, 3):
        for flags in (START, END):
            server.submit(first, correlation_id=correlation_id, flags=flags)
    server.submit(second)
    placed: dict[int, set] = {}
    for _ in range(12):
        busy = [each for model in server.models for each in model.instances if each.running]
        if not busy:
            break
        (instance,) = busy
        for each in instance.running[0].inferences:
            placed.setdefault(each.request.fields.correlation_id, set()).add(instance)
        instance.finish()
        server.loop.run()

    assert [sink.final_count for sink in server.sinks] == [1] * 7
    assert all(len(instances) == 1 for number, instances in placed.items() if number)
    assert server.used == {"R": 0}


@pytest.mark.parametrize("seed", range(60))
def test_random_events_answer_every_request_once_and_leak_nothing(server, seed):
    dice = random.Random(seed)
    kinds = [NONE, ONE, TWO, InstanceLimits(resources=ONE.resources, priority=3)]
    for _ in range(3):
        limits = [dice.choice(kinds) for _ in range(dice.randint(1, 3))]
        delay_us = dice.choice([0, 1000])
        server.add(
            *limits,
            concurrency=dice.choice([1, 3]),
            max_batch_size=dice.choice([1, 4]),
            batcher=BatcherSpec(max_queue_delay_us=delay_us),
        )
    requests = []
    for _ in range(80):
        what = dice.random()
        model = dice.choice(server.models)
        busy = [each for one in server.models for each in one.instances if each.running]
        if what < 0.4:
            requests += [(model, each) for each in server.submit(model, dice.randint(1, 3))]
        elif what < 0.5 and requests:
            owner, each = dice.choice(requests)
            owner.cancel(each)
        elif what < 0.55 and len(model.instances) > 1:
            dice.choice(model.instances).die()
        elif what < 0.6:
            server.loop.advance(0.002)
        elif busy:
            instance = dice.choice(busy)
            dice.choice([instance.finish, instance.fail])(dice.choice(instance.running))
        server.loop.run()
        check_pools(server)
    server.loop.advance(0.002)
    while busy := [each for one in server.models for each in one.instances if each.running]:
        busy[0].finish()
        server.loop.advance(0.002)
        check_pools(server)

    assert [sink.final_count for sink in server.sinks] == [1] * len(server.sinks)
    assert set(server.used.values()) <= {0}


@pytest.mark.parametrize("seed", range(20))
def test_instances_that_come_and_retire_leak_nothing(server, seed):
    dice = random.Random(seed)
    models = [server.add(ONE, ONE, max_batch_size=2) for _ in range(2)]
    for _ in range(60):
        model = dice.choice(models)
        busy = [each for one in models for each in one.instances if each.running]
        what = dice.random()
        if what < 0.4:
            server.submit(model, dice.randint(1, 3))
        elif what < 0.6:
            leaving = dice.choice(model.instances)
            model.add_instance(FakeInstance("m", model), ONE, is_additional=True)
            model.retire(leaving)
        elif busy:
            dice.choice(busy).finish()
        server.loop.run()
        check_pools(server)
    while busy := [each for one in models for each in one.instances if each.running]:
        busy[0].finish()
        server.loop.run()

    assert [sink.final_count for sink in server.sinks] == [1] * len(server.sinks)
    assert server.used == {"R": 0}


def check_pools(server):
    server.turns.check_integrity()
    for used, count in server.turns.limiter.pools.values():
        assert 0 <= used <= count
