# SPDX-License-Identifier: Apache-2.0
"""How a model forms batches and gives them to its instances, on a loop with fake time."""

from __future__ import annotations

import pytest

from pytriton.base.errors import InternalError
from pytriton.base.model_spec import BatcherSpec
from pytriton.runtime.executor.inference import Outcome
from tests.fakes import FakeInstance, RecordingSink, response


def test_requests_that_come_while_the_instance_is_busy_form_the_next_batch(scene):
    one = scene(max_batch_size=4)
    one.submit()
    for _ in range(6):
        one.submit()
    assert one.instance.sizes == [1]

    one.instance.finish()
    one.instance.finish()

    assert one.instance.sizes == [1, 4, 2]
    one.instance.finish()
    one.check_all_answered()


def test_instance_that_takes_nothing_any_more_gets_no_batch(scene):
    two = scene(instances=2)
    lost, other = two.instances
    lost.lose()

    two.submit()

    assert (lost.sizes, other.sizes) == ([], [1])
    lost.die()
    other.finish()
    two.check_all_answered()


def test_whoever_asks_hears_when_a_request_was_placed(scene):
    one = scene(batches=False)
    one.submit()
    placed, cancelled = one.submit(2)
    heard = []
    one.model.call_when_dispatched(placed, lambda: heard.append(placed.instance))
    one.model.call_when_dispatched(cancelled, lambda: heard.append(None))

    cancelled.cancel()
    one.loop.run()
    assert heard == []
    one.instance.finish()
    one.loop.run()

    assert heard == [one.instance]
    one.instance.finish()
    one.check_all_answered()


def test_instance_has_its_next_batch_before_answers_are_delivered(scene):
    one = scene()
    seen = []

    class Sink(RecordingSink):
        def on_response(self, response, *, final):
            seen.append(one.instance.sizes)
            super().on_response(response, final=final)

    (first,) = one.submit()
    first.sink = Sink()
    one.submit()

    one.instance.finish()

    assert seen == [[1, 1]]


def test_batches_go_to_the_instance_that_was_idle_longest(scene):
    two = scene(instances=2, batches=False)
    two.submit(2)
    two.instances[1].finish()
    two.instances[0].finish()

    two.submit()

    assert [len(instance.running) for instance in two.instances] == [0, 1]


@pytest.mark.parametrize("work_us", [1, 50, 5_000])
def test_instances_take_turns_however_quick_they_are(scene, work_us):
    three = scene(instances=3, batches=False)
    taken = []
    for _ in range(9):  # one client after another
        three.submit()
        (instance,) = [each for each in three.instances if each.running]
        taken.append(three.instances.index(instance))
        batch = instance.running.pop()
        batch.open_positions.clear()
        times_ns = (batch.started_ns, batch.started_ns + work_us * 1000)
        three.model.on_outcomes(instance, batch, [Outcome(0, response())], times_ns)
        three.loop.run()

    assert taken == [0, 1, 2] * 3
    three.check_all_answered()


def test_instance_of_several_slots_gets_as_many_batches(scene):
    one = scene(batches=False, concurrency=3)
    one.submit(5)
    assert one.instance.sizes == [1, 1, 1]

    one.instance.finish(one.instance.running[1])

    assert one.instance.sizes == [1, 1, 1, 1]


def test_added_instance_takes_what_waits(scene):
    one = scene(batches=False)
    one.submit(2)
    second = FakeInstance("m_0_1", one.model)

    one.model.add_instance(second)
    one.loop.run()

    assert second.sizes == [1]


def test_delayed_batch_leaves_when_its_time_comes(scene):
    one = scene(batcher=BatcherSpec(max_queue_delay_us=5_000))
    one.submit()
    one.loop.advance(0.003)
    one.submit()
    assert one.instance.sizes == []

    one.loop.advance(0.002)

    assert one.instance.sizes == [2]


def test_timer_that_comes_early_waits_for_the_rest(scene):
    one = scene(batcher=BatcherSpec(max_queue_delay_us=5_000))
    later = one.loop.call_later
    one.loop.call_later = lambda delay_s, *call: later(delay_s * 0.9, *call)
    one.submit()

    one.loop.advance(0.0049)
    assert one.instance.sizes == []
    one.loop.advance(0.0002)

    assert one.instance.sizes == [1]


def test_statistics_of_a_batch_count_rows_and_times(scene):
    one = scene(max_batch_size=8)
    one.submit()
    one.loop.advance(0.010)
    one.submit(2, rows=3)
    one.loop.advance(0.020)

    one.instance.finish()
    one.loop.advance(0.005)
    batch = one.instance.running[0]
    one.instance.report(batch, [Outcome(0, response()), Outcome(1, None, InternalError("no"))])

    durations = one.model.statistics.inference_durations()
    ms = 1_000_000
    assert one.model.statistics.inference_count == 1 + 3
    assert one.model.statistics.execution_count == 2
    assert (durations.success.count, durations.success.ns) == (2, (30 + 25) * ms)
    assert (durations.fail.count, durations.fail.ns) == (1, 25 * ms)
    assert (durations.queue.count, durations.queue.ns) == (2, 20 * ms)
    assert [each.batch_size for each in one.model.statistics.batch_durations()] == [1, 6]
    one.check_all_answered()


@pytest.mark.parametrize(
    "work_us, sizes",
    [
        pytest.param(2, [20, 40], id="too little to bother"),
        pytest.param(12, [20, 16], id="as long as our own"),
        pytest.param(5000, [20, 40], id="better in one batch"),
    ],
)
def test_idle_instance_starts_within_a_round_where_work_is_short(scene, work_us, sizes):
    one = scene(max_batch_size=64)
    one.submit(20)
    batch = one.instance.running[0]
    one.clock.now_ns += 20 * work_us * 1000
    batch.open_positions.clear()
    one.instance.running.clear()
    outcomes = [Outcome(position, response()) for position in range(20)]
    one.model.on_outcomes(one.instance, batch, outcomes, (batch.started_ns, one.clock.now_ns))

    one.submit(40)

    assert one.instance.sizes == sizes
    while one.instance.running:
        one.instance.finish()
        one.loop.run()
    one.check_all_answered()


def test_instance_that_ended_before_it_was_added_gets_no_batch(scene):
    one = scene(batches=False)
    ended = FakeInstance("m_0_1", one.model)
    ended.is_lost = True
    one.model.add_instance(ended)

    one.submit(2)

    assert (ended.sizes, one.instance.sizes) == ([], [1])
    assert one.sink(1).errors == []


def test_model_has_few_enough_attributes_to_be_fast(scene):
    # From 30 on, Python keeps them in a dictionary of the object's own: 0.5 us more per request.
    assert len(vars(scene().model)) < 29
