# SPDX-License-Identifier: Apache-2.0
"""Requests of an idempotent model whose instance is lost: they run again, once, before others."""

from __future__ import annotations

import pytest

from pytriton.base.errors import CancelledError, InternalError, UnavailableError
from pytriton.base.model_spec import BatcherSpec, QueuePolicySpec
from pytriton.runtime.executor.inference import Outcome
from pytriton.serving.engine.stats import FailureReason
from tests.column_rig import ColumnScene
from tests.fakes import FakeSupervisor, response


@pytest.fixture
def lossy(scene):
    """Makes scenes with an idempotent model, whose instances are replaced; see `Scene`."""

    def make(**settings):
        settings.setdefault("supervisor", FakeSupervisor(replaces=True))
        return scene(**{"is_idempotent": True, "max_batch_size": 2, **settings})

    return make


def numbers(one, batch):
    """The sinks of a batch by number, in its order."""
    return [one.inferences.index(each) for each in batch.inferences]


def test_requests_of_a_lost_instance_run_before_those_that_wait(lossy):
    one = lossy(instances=2)
    first, second = one.instances
    one.submit(2)
    one.submit(2)
    one.submit(3)

    first.die()
    one.loop.run()
    for _ in range(4):
        second.finish()
        one.loop.run()

    assert [numbers(one, batch) for batch in second.batches] == [[2, 3], [0, 1], [4, 5], [6]]
    assert not any(sink.errors for sink in one.sinks)
    assert one.model.statistics.requeued_requests == 2
    assert one.model.statistics.execution_count == 4
    one.check_all_answered()


def test_another_free_instance_takes_them_at_once(lossy):
    one = lossy(instances=2)
    one.submit(2)
    (busy,) = [each for each in one.instances if each.running]
    (free,) = [each for each in one.instances if not each.running]

    busy.die()
    assert one.model.statistics.pending_count == 2
    assert one.model.running_count == 0
    one.loop.run()

    assert free.sizes == [2]
    assert (one.model.statistics.pending_count, one.model.running_count) == (0, 2)


def test_request_that_was_put_back_once_fails_the_second_time(lossy):
    one = lossy(instances=2)
    one.submit(1)
    for instance in one.instances[::-1] if one.instances[1].running else one.instances:
        instance.die("killed by SIGKILL (9)")
        one.loop.run()

    assert [error.message for error in one.sink(0).errors] == ["killed by SIGKILL (9)"]
    assert one.model.statistics.failures[FailureReason.BACKEND] == 1
    one.check_all_answered()


def test_other_models_get_the_error_at_once(lossy):
    one = lossy(instances=2, is_idempotent=False)
    one.submit(2)

    next(each for each in one.instances if each.running).die("gone")

    assert [sink.errors[0].message for sink in one.sinks] == ["gone", "gone"]
    one.check_all_answered()


def test_error_of_the_model_itself_is_no_loss(lossy):
    one = lossy()
    one.submit(2)

    one.instance.fail()

    assert [type(sink.errors[0]) for sink in one.sinks] == [InternalError, InternalError]
    one.check_all_answered()


def test_stop_puts_nothing_back(lossy):
    one = lossy(instances=2)
    one.submit(2)

    one.model.stop()

    assert one.model.statistics.requeued_requests == 0
    one.check_all_answered()


def test_cancelled_request_ends_as_cancelled(lossy):
    one = lossy(instances=2)
    one.submit(2)
    one.model.cancel(one.inferences[0])
    lost, other = sorted(one.instances, key=lambda each: not each.running)

    lost.die()
    one.loop.run()
    other.finish()

    assert isinstance(one.sink(0).errors[0], CancelledError)
    assert one.sink(1).responses
    assert one.model.statistics.failures[FailureReason.CANCELED] == 1
    one.check_all_answered()


def test_request_that_waits_again_can_be_cancelled(lossy):
    one = lossy()
    one.submit(1)
    one.instance.die()

    one.model.cancel(one.inferences[0])

    assert isinstance(one.sink(0).errors[0], CancelledError)
    one.check_all_answered()


def test_stream_is_put_back_only_before_its_first_response(lossy):
    one = lossy(instances=2, decoupled=True)
    one.submit(2)
    lost, other = sorted(one.instances, key=lambda each: not each.running)
    lost.report(lost.running[0], [Outcome(0, response(), is_final=False)])

    lost.die("gone")
    one.loop.run()
    other.finish()

    assert (len(one.sink(0).responses), one.sink(0).errors[0].message) == (1, "gone")
    assert (len(one.sink(1).responses), one.sink(1).errors) == (1, [])
    one.check_all_answered()


def test_answered_requests_of_a_lost_batch_are_not_put_back(lossy):
    one = lossy(instances=2)
    one.submit(2)
    lost, other = sorted(one.instances, key=lambda each: not each.running)
    lost.report(lost.running[0], [Outcome(0, response())])

    lost.die()
    one.loop.run()

    assert [numbers(one, batch) for batch in other.batches] == [[1]]
    other.finish()
    one.check_all_answered()


def test_they_come_before_all_of_their_own_priority_only(lossy):
    levels = BatcherSpec(priority_levels=2, default_priority_level=2)
    one = lossy(instances=1, max_batch_size=1, batcher=levels)
    one.submit(1, priority=2)
    one.submit(1, priority=2)
    one.submit(1, priority=1)

    one.instance.die()
    waiting = one.model._scheduler.take_all()

    assert [one.inferences.index(each) for each in waiting] == [2, 0, 1]


def test_full_queue_takes_them_and_their_queue_timeout_begins_anew(lossy):
    policy = QueuePolicySpec(max_queue_size=1, default_timeout_us=2_000_000)
    one = lossy(max_batch_size=1, batcher=BatcherSpec(default_queue_policy=policy))
    one.submit(1)
    one.submit(1)  # the queue is full
    one.loop.advance(1.5)
    one.instance.die()
    one.loop.advance(1)
    assert [len(sink.errors) for sink in one.sinks] == [0, 1]

    one.loop.advance(1)

    assert isinstance(one.sink(0).errors[0], UnavailableError)
    assert one.model.statistics.failures[FailureReason.REJECTED] == 2
    one.check_all_answered()


def test_batch_that_is_held_back_does_not_hold_them(lossy):
    batcher = BatcherSpec(max_queue_delay_us=1_000_000, preferred_batch_sizes=(2,))
    one = lossy(instances=2, max_batch_size=4, batcher=batcher)
    one.submit(1)
    one.loop.advance(1)  # it runs alone
    lost, other = sorted(one.instances, key=lambda each: not each.running)
    one.submit(1)  # and this one is held back

    lost.die()
    one.loop.run()

    assert [numbers(one, batch) for batch in other.batches] == [[0, 1]]


def test_batches_of_instances_that_are_lost_one_after_the_other_keep_their_order(lossy):
    one = lossy(instances=3, max_batch_size=1)
    for _ in range(4):
        one.submit(1)
        one.loop.advance(0.01)
    by_request = sorted(one.instances, key=lambda each: numbers(one, each.running[0]))

    for index in (1, 2, 0):
        by_request[index].die()

    waiting = one.model._scheduler.take_all()
    assert [one.inferences.index(each) for each in waiting] == [0, 1, 2, 3]


@pytest.mark.parametrize("batches", [True, False])
def test_batches_of_one_instance_keep_their_order(lossy, batches):
    one = lossy(decoupled=True, concurrency=3, max_batch_size=1, batches=batches)
    for _ in range(4):
        one.submit(1)
        one.loop.advance(0.01)

    one.instance.die()

    waiting = one.model._scheduler.take_all()
    assert [one.inferences.index(each) for each in waiting] == [0, 1, 2, 3]


def test_answers_keep_the_order_that_a_model_preserves(lossy):
    one = lossy(instances=2, max_batch_size=1, batcher=BatcherSpec(preserve_ordering=True))
    one.submit(1)
    one.submit(1)
    lost, other = sorted(one.instances, key=lambda each: numbers(one, each.running[0]))

    lost.die()
    one.loop.run()
    other.finish()
    assert one.log == []  # the first one is not answered
    other.finish()

    assert one.log == [0, 1]
    one.check_all_answered()


def test_model_that_is_given_up_refuses_them(lossy):
    one = lossy(supervisor=FakeSupervisor())
    one.submit(2)

    one.instance.die()

    assert [type(sink.errors[0]) for sink in one.sinks] == [UnavailableError] * 2
    one.check_all_answered()


@pytest.mark.parametrize("joined", [True, False])
def test_members_of_chunks_run_again_with_the_right_answers(clock, joined):
    one = ColumnScene(clock, instances=2, max_batch_size=4, is_idempotent=True)
    chunk = one.submit_chunk([1, 2, 1, 2, 1], joined=joined)
    for instance in list(one.model.instances):
        if len(one.model.instances) > 1 and instance.running:
            instance.die()
            break
    one.loop.run()
    (other,) = one.model.instances
    while other.running:
        other.double()
        one.loop.run()

    assert one.ends.of(chunk) == one.doubled(chunk)
    assert one.model.statistics.requeued_requests == 3
