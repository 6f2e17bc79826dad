# SPDX-License-Identifier: Apache-2.0
"""Requests that their model asks to execute once more, and instances that are replaced."""

from __future__ import annotations

from pytriton.base.errors import CancelledError
from pytriton.base.model_spec import BatcherSpec, QueuePolicySpec
from pytriton.runtime.executor.inference import Outcome
from pytriton.serving.engine.model import VersionState
from tests.fakes import FakeInstance, FakeSupervisor


def reschedule(scene, position=0):
    batch = scene.instance.running[0]
    batch.is_rescheduled = True
    scene.instance.report(batch, [Outcome(position, is_rescheduled=True)])
    scene.loop.run()


def test_rescheduled_request_is_executed_again_and_answered_once(scene):
    one = scene(iterative=True)
    (submitted,) = one.submit()
    assert (submitted.request.fields.correlation_id, submitted.request.fields.flags) == (1, 1)

    reschedule(one)
    assert one.instance.sizes == [1, 1]
    assert one.instance.running[0].inferences == [submitted]
    assert (submitted.request.fields.correlation_id, submitted.request.fields.flags) == (1, 0)

    one.instance.finish()
    one.check_all_answered(repeated_executions=1)


def test_each_execution_of_a_rescheduled_request_counts(scene):
    one = scene(iterative=True)
    one.submit()
    for _ in range(4):
        one.loop.advance(0.001)
        reschedule(one)
    one.loop.advance(0.001)
    one.instance.finish()

    statistics = one.model.statistics
    assert statistics.inference_count == statistics.execution_count == 5
    durations = statistics.inference_durations()
    assert durations.success.count == durations.queue.count == durations.compute_infer.count == 5
    assert durations.queue.ns == 0
    assert durations.success.ns == sum(range(1, 6)) * 1_000_000
    one.check_all_answered(repeated_executions=4)


def test_execution_counts_once_if_only_some_of_its_requests_are_rescheduled(scene):
    one = scene(iterative=True, concurrency=1)
    one.submit()
    one.submit(2)
    one.instance.finish()
    batch = one.instance.running[0]
    batch.is_rescheduled = True
    one.instance.report(batch, [Outcome(0, is_rescheduled=True), Outcome(1)])
    one.loop.run()
    one.instance.finish()

    assert one.model.statistics.execution_count == 3
    assert one.model.statistics.inference_count == 4
    one.check_all_answered(repeated_executions=1)


def test_rescheduled_request_is_executed_again_although_another_ended_before_it(scene):
    one = scene(iterative=True, concurrency=1)
    one.submit()
    one.submit(2)
    one.instance.finish()
    batch = one.instance.running[0]
    batch.is_rescheduled = True
    one.instance.report(batch, [Outcome(0), Outcome(1, is_rescheduled=True)])
    one.loop.run()

    assert one.instance.running[0].inferences == batch.inferences[1:]
    one.instance.finish()
    one.check_all_answered(repeated_executions=1)


def test_sequences_of_one_request_have_ids_of_their_own_unless_clients_name_them(scene):
    one = scene(iterative=True, concurrency=3)
    submitted = [*one.submit(), *one.submit(correlation_id=77), *one.submit()]
    assert [each.request.fields.correlation_id for each in submitted] == [1, 77, 2]


def test_rescheduling_is_an_error_where_the_model_has_no_such_sequences(scene):
    one = scene()
    one.submit()

    reschedule(one)
    (error,) = one.sink(0).errors
    assert "while the model is not configured to handle such a flag" in error.message
    one.check_all_answered()


def test_cancelled_request_is_not_executed_again(scene):
    one = scene(iterative=True)
    (submitted,) = one.submit()
    reschedule(one)

    submitted.cancel()
    reschedule(one)

    assert one.instance.cancelled == [submitted]
    assert one.instance.sizes == [1, 1]
    assert isinstance(one.sink(0).errors[0], CancelledError)
    one.check_all_answered(repeated_executions=2)


def test_request_that_finds_its_queue_full_when_it_returns_is_refused(scene):
    policy = QueuePolicySpec(max_queue_size=1)
    one = scene(iterative=True, batcher=BatcherSpec(default_queue_policy=policy))
    one.submit()
    one.submit()

    reschedule(one)

    assert "Exceeds maximum queue size" in one.sink(0).errors[0].message
    one.instance.finish()
    one.check_all_answered(repeated_executions=1)


def test_rescheduled_request_joins_the_next_batch(scene):
    one = scene(iterative=True)
    one.submit()
    one.submit(2)

    reschedule(one)

    assert one.instance.sizes == [1, 3]
    one.instance.finish()
    one.check_all_answered(repeated_executions=1)


def test_model_waits_for_an_instance_that_is_replaced(scene):
    one = scene(supervisor=FakeSupervisor(replaces=True))
    one.instance.die("killed by SIGKILL (9)")
    assert one.model.state is VersionState.READY
    assert not one.model.is_ready

    one.submit()
    replacement = FakeInstance("m_0_0", one.model)
    one.model.add_instance(replacement)
    one.loop.run()
    assert one.model.is_ready
    replacement.finish()
    one.check_all_answered()


def test_model_without_instances_that_gives_up_refuses_what_waits(scene):
    one = scene(supervisor=FakeSupervisor(replaces=True))
    one.instance.die()
    one.submit()

    one.model.give_up("it crashed too often")
    assert (one.model.state, one.model.reason) == (VersionState.UNAVAILABLE, "it crashed too often")
    one.check_all_answered()


def test_batch_that_only_returned_frees_its_instance_and_counts_nothing(scene):
    one = scene()
    one.submit()
    one.submit()
    batch = one.instance.running.pop()
    one.model.on_outcomes(one.instance, batch, [], (0, 0))
    one.loop.run()
    assert one.instance.sizes == [1, 1]
    assert one.model.statistics.execution_count == 0

    one.instance.running.append(batch)
    one.instance.finish(batch)
    one.instance.finish()
    one.check_all_answered()
