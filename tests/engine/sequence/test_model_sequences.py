# SPDX-License-Identifier: Apache-2.0
"""What both strategies have in common, seen from a model with fake instances."""

from __future__ import annotations

import pytest

from pytriton.base import dtypes
from pytriton.base.errors import CancelledError, InvalidArgumentError, UnavailableError
from pytriton.base.model_spec import ControlSpec, SequenceControlKind, SequenceSpec
from pytriton.runtime.executor.inference import Outcome
from tests.fakes import FakeInstance, FakeSupervisor

START, END = 1, 2
MISSING_START = (
    "inference request for sequence {} to model 'm' must specify the START flag on the first "
    "request of the sequence"
)
NO_ID = "inference request to model 'm' must specify a non-zero or non-empty correlation ID"
MANY_ROWS = (
    "inference request to model 'm' must specify batch-size 1 due to requirements of sequence "
    "batcher"
)


@pytest.fixture(params=["direct", "oldest"])
def sequences(request, scene):
    """Makes a scene of a sequence model; `slots` is the number of sequences per instance."""

    def make(slots=4, sequence=None, **settings):
        candidates = slots if request.param == "oldest" else None
        spec = SequenceSpec(**{"max_candidates": candidates, **(sequence or {})})
        settings = {"max_batch_size": slots, "batches": False, **settings}
        return scene(sequence=spec, **settings)

    return make


def ask(scene, correlation_id, flags=0, **fields):
    """Submit a request, whether it is refused or not; returns its sink."""
    try:
        scene.submit(correlation_id=correlation_id, flags=flags, **fields)
    except (InvalidArgumentError, UnavailableError) as error:
        scene.sinks[-1].on_refused(error)
        scene.inferences.pop()
    return scene.sinks[-1]


def running_ids(instance):
    """The ids of the sequences of each running batch, 0 for a null request."""
    return [[each.request.fields.correlation_id for each in b.inferences] for b in instance.running]


def finish_all(scene):
    while busy := [each for each in scene.model.instances if each.running]:
        busy[0].finish()
        scene.loop.run()


@pytest.mark.parametrize("correlation_id", [7, "seven"])
def test_requests_of_a_sequence_run_one_after_the_other(sequences, correlation_id):
    one = sequences(concurrency=4)
    for flags in (START, 0, END):
        ask(one, correlation_id, flags)
    running = []
    while one.instance.running:
        (batch,) = one.instance.running
        running.append([each.request.fields.flags for each in batch.inferences])
        one.instance.finish()

    assert running == [[START], [0], [END]]
    one.check_all_answered()


@pytest.mark.parametrize(
    "correlation_id, flags, rows, message",
    [
        (7, 0, 1, MISSING_START.format(7)),
        ("abc", END, 1, MISSING_START.format("abc")),
        (0, START, 1, NO_ID),
        ("", START, 1, NO_ID),
        (7, START, 2, MANY_ROWS),
    ],
)
def test_request_outside_a_sequence_is_refused(sequences, correlation_id, flags, rows, message):
    one = sequences()
    sink = ask(one, correlation_id, flags, rows=rows)

    assert [error.message for error in sink.refusals] == [message]
    assert one.model.statistics.pending_count == 0


def test_start_in_a_running_sequence_begins_it_again(sequences, caplog):
    one = sequences(slots=1)
    ask(one, 7, START)
    ask(one, 7, START)
    ask(one, 7)
    finish_all(one)

    assert one.model.statistics.success_count == 3
    assert "sequence 7 for model 'm' has a conflict." in caplog.text


def test_sequences_beyond_the_slots_wait_in_order(sequences):
    one = sequences(slots=1)
    for correlation_id in (1, 2, 3):
        ask(one, correlation_id, START)
    ask(one, 3, END)
    ask(one, 1, END)
    ask(one, 2, END)
    order = []
    while one.instance.running:
        order += running_ids(one.instance)
        one.instance.finish()

    assert order == [[1], [1], [2], [2], [3], [3]]
    one.check_all_answered()


def test_idle_sequence_ends_and_frees_its_slot(sequences):
    one = sequences(slots=1, sequence={"idle_us": 1_000_000})
    ask(one, 1, START)
    one.instance.finish()
    waiting = ask(one, 2, START)
    one.loop.advance(0.9)
    assert not one.instance.running
    one.loop.advance(0.2)

    assert running_ids(one.instance) == [[2]]
    assert ask(one, 1).refusals[0].message == MISSING_START.format(1)
    one.instance.finish()
    assert waiting.final_count == 1


def test_backlog_ends_a_sequence_whose_timeout_is_over(sequences):
    one = sequences(slots=1)
    ask(one, 1, START)
    first = ask(one, 2, START, timeout_us=500_000)
    second = ask(one, 2)
    one.loop.advance(0.6)

    expected = ["timeout of the corresponding sequence has been expired"]
    assert [error.message for error in first.errors] == expected
    assert [error.message for error in second.errors] == expected
    assert isinstance(first.errors[0], UnavailableError)
    assert ask(one, 2).refusals[0].message == MISSING_START.format(2)
    finish_all(one)
    assert one.model.statistics.pending_count == 0


def test_backlog_refuses_more_sequences_than_it_may_hold(sequences):
    one = sequences(slots=1, sequence={"max_queue_size": 1})
    ask(one, 1, START)
    ask(one, 2, START)
    sink = ask(one, 3, START, id="r")

    assert [error.message for error in sink.refusals] == [
        "[request id: r] Exceeds maximum queue size"
    ]
    assert not ask(one, 2, END).refusals


def test_cancelled_request_ends_its_sequence_after_those_before_it(sequences):
    one = sequences(slots=1)
    running, before = ask(one, 1, START), ask(one, 1)
    (cancelled,) = one.submit(correlation_id=1)
    behind = ask(one, 1)
    other = ask(one, 2, START)
    cancelled.cancel()

    assert [type(sink.errors[0]) for sink in (one.sink(2), behind)] == [CancelledError] * 2
    assert "an earlier request of it was cancelled" in behind.errors[0].message
    assert not running.final_count
    assert not before.final_count
    assert ask(one, 1).refusals[0].message == MISSING_START.format(1)
    finish_all(one)
    assert running.responses
    assert before.responses
    assert other.responses
    one.instance.die()
    assert one.model.statistics.pending_count == 0


def test_cancelled_running_request_is_left_to_the_instance(sequences):
    one = sequences()
    (running,) = one.submit(correlation_id=1, flags=START)
    running.cancel()
    one.instance.report(one.instance.running[0], [Outcome(0, None, CancelledError(""))])
    sink = ask(one, 1)
    one.instance.finish()

    assert one.instance.cancelled == [running]
    assert sink.responses


def test_dying_instance_ends_its_sequences_once(sequences):
    one = sequences(slots=1, supervisor=FakeSupervisor(replaces=True))
    running, queued = ask(one, 1, START), ask(one, 1)
    waiting = ask(one, 2, START)
    one.instance.die()

    assert [sink.final_count for sink in (running, queued, waiting)] == [1, 1, 0]
    assert [error.message for error in queued.errors] == [
        "sequence 1 of model 'm' has ended because its instance 'm_0_0' is gone"
    ]
    assert isinstance(queued.errors[0], UnavailableError)
    assert ask(one, 1).refusals[0].message == MISSING_START.format(1)
    replacement = FakeInstance("m_0_1", one.model)
    one.model.add_instance(replacement)
    one.loop.run()
    assert running_ids(replacement) == [[2]]


def test_sequence_of_a_lost_instance_has_ended_before_its_death(sequences):
    one = sequences(slots=1, supervisor=FakeSupervisor(replaces=True))
    ask(one, 1, START)
    one.instance.finish()
    one.instance.lose()
    sink = ask(one, 1)
    one.instance.die()

    assert sink.refusals[0].message == MISSING_START.format(1)


def test_failed_request_does_not_end_its_sequence(sequences):
    one = sequences()
    failed = ask(one, 1, START)
    one.instance.fail()
    sink = ask(one, 1)
    one.instance.finish()

    assert failed.errors
    assert sink.responses


def test_batch_that_cannot_be_sent_does_not_block_its_sequence(sequences):
    one = sequences()
    one.instance.refusal = UnavailableError("no room")
    refused = ask(one, 1, START)
    one.instance.refusal = None
    sink = ask(one, 1)
    one.instance.finish()

    assert [error.message for error in refused.errors] == ["no room"]
    assert sink.responses
    one.check_all_answered()


def test_ids_are_generated_and_told(sequences):
    one = sequences(sequence={"generates_ids": True})
    ask(one, 1, START)
    first, second = ask(one, 0), ask(one, 0)
    finish_all(one)

    assert first.responses[0].parameters == {"sequence_id": 2}
    assert second.responses[0].parameters == {"sequence_id": 3}
    assert one.sink(0).responses[0].parameters is None
    assert not ask(one, 3, END).refusals


def test_generated_ids_are_text_if_the_model_wants_text(sequences):
    control = ControlSpec(name="ID", kind=SequenceControlKind.CORRID, dtype=dtypes.BYTES)
    one = sequences(sequence={"generates_ids": True, "controls": (control,)})
    sink = ask(one, "")
    finish_all(one)

    assert sink.responses[0].parameters == {"sequence_id": "1"}


def test_stopped_model_answers_what_waits(sequences):
    one = sequences(slots=1)
    ask(one, 1, START)
    ask(one, 1)
    ask(one, 2, START)
    one.model.stop()
    one.loop.run()

    one.check_all_answered()


def test_model_that_asks_for_another_execution_gets_an_error(sequences):
    one = sequences()
    sink = ask(one, 1, START)
    (batch,) = one.instance.running
    batch.is_rescheduled = True
    one.instance.report(batch, [Outcome(0, is_rescheduled=True)])

    assert "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE" in sink.errors[0].message
    assert not ask(one, 1).refusals


def test_null_requests_beside_one_that_asks_for_another_execution_are_not_queued(sequences):
    one = sequences(slots=2)
    for correlation_id in (1, 2):
        ask(one, correlation_id, START)
    finish_all(one)
    ask(one, 2, END)  # with the direct strategy, a null request is before it
    (batch,) = one.instance.running
    batch.is_rescheduled = True
    positions = range(len(batch.inferences))
    one.instance.report(batch, [Outcome(position, is_rescheduled=True) for position in positions])

    one.check_all_answered()
    assert not one.model.is_busy
