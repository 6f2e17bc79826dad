# SPDX-License-Identifier: Apache-2.0
"""How requests of a model end, and the model: deadlines, cancellation, refusals, deaths, a stop."""

from __future__ import annotations

import pytest

from pytriton.base.errors import (
    UNEXPECTED,
    CancelledError,
    InternalError,
    InvalidArgumentError,
    UnavailableError,
)
from pytriton.base.model_spec import BatcherSpec, QueuePolicySpec, QueueTimeoutAction
from pytriton.runtime.executor.inference import Outcome
from pytriton.serving.engine.model import TRANSITIONS, VersionState
from pytriton.serving.engine.stats import FailureReason
from tests.fakes import FakeSupervisor, RecordingSink

MS = 1000  # microseconds


def timeouts(timeout_us, action=QueueTimeoutAction.REJECT, **settings):
    policy = QueuePolicySpec(default_timeout_us=timeout_us, timeout_action=action)
    return BatcherSpec(default_queue_policy=policy, **settings)


def test_deadline_fires_while_every_instance_is_busy(scene):
    one = scene(batcher=timeouts(5 * MS))
    one.submit()
    one.submit()

    one.loop.advance(0.004)
    assert one.sink(1).errors == []
    one.loop.advance(0.002)

    (error,) = one.sink(1).errors
    assert isinstance(error, UnavailableError)
    assert error.message == "Request timeout expired"
    assert one.model.statistics.failures[FailureReason.REJECTED] == 1
    one.instance.finish()
    one.check_all_answered()


def test_earlier_deadline_of_a_later_request_moves_the_timer(scene):
    policy = QueuePolicySpec(default_timeout_us=50 * MS, allow_timeout_override=True)
    one = scene(batcher=BatcherSpec(default_queue_policy=policy))
    one.submit(2)
    one.submit(timeout_us=50 * MS)
    one.submit(timeout_us=10 * MS)

    one.loop.advance(0.011)

    assert len(one.sink(3).errors) == 1
    assert one.sink(2).errors == []


def test_delayed_request_still_runs_after_its_deadline(scene):
    one = scene(batcher=timeouts(5 * MS, QueueTimeoutAction.DELAY))
    one.submit()
    one.submit()
    one.loop.advance(0.01)

    one.instance.finish()
    one.instance.finish()

    one.check_all_answered()
    assert one.model.statistics.success_count == 2


def test_full_queue_refuses_without_a_trace(scene):
    policy = QueuePolicySpec(max_queue_size=1)
    one = scene(batcher=BatcherSpec(default_queue_policy=policy, preserve_ordering=True))
    one.submit()
    one.submit()

    with pytest.raises(UnavailableError, match="Exceeds maximum queue size"):
        one.submit()

    assert one.sinks.pop().final_count == 0
    one.instance.finish()
    one.instance.finish()
    one.check_all_answered()


def test_cancelled_request_that_waits_goes_at_once(scene):
    one = scene()
    one.submit()
    one.submit()
    one.model.cancel(one.inferences[1])
    one.model.cancel(one.inferences[1])

    assert isinstance(one.sink(1).errors[0], CancelledError)
    one.instance.finish()
    assert one.instance.sizes == [1]
    assert one.model.statistics.failures[FailureReason.CANCELED] == 1
    one.check_all_answered()


def test_instance_is_told_of_a_cancelled_request_that_runs(scene):
    one = scene()
    one.submit(2)

    one.model.cancel(one.inferences[1])
    one.model.cancel(one.inferences[1])

    assert one.instance.cancelled == [one.inferences[1]]
    one.instance.fail()
    assert one.model.statistics.failures[FailureReason.CANCELED] == 1
    assert one.model.statistics.failures[FailureReason.BACKEND] == 1
    one.check_all_answered()


ORDERED = BatcherSpec(preserve_ordering=True)


def test_ordered_answers_do_not_wait_for_what_was_rejected_or_cancelled(scene):
    two = scene(instances=2, max_batch_size=1, batcher=timeouts(5 * MS, preserve_ordering=True))
    two.submit(5)
    two.model.cancel(two.inferences[2])
    two.instances[1].finish()  # request 1, then it gets request 3
    two.loop.advance(0.006)  # request 4 is rejected
    two.instances[1].finish()
    assert two.log == [2, 4]

    two.instances[0].finish()

    assert two.log == [2, 4, 0, 1, 3]
    two.check_all_answered()


def test_ordered_answers_come_after_the_death_of_an_instance(scene):
    two = scene(instances=2, max_batch_size=1, batcher=ORDERED)
    two.submit(3)
    two.instances[1].finish()
    two.instances[0].die()
    two.instances[1].finish()

    assert two.log == [0, 1, 2]
    assert [bool(two.sink(number).errors) for number in range(3)] == [True, False, False]
    two.check_all_answered()


def test_refused_batch_is_answered_and_the_instance_stays(scene):
    one = scene(max_batch_size=2)
    one.instance.refusal = UnavailableError("no room")
    one.submit(2)
    assert [one.sink(number).errors[0].message for number in range(2)] == ["no room"] * 2

    one.instance.refusal = None
    one.submit()
    one.instance.finish()

    assert one.model.statistics.failures[FailureReason.OTHER] == 2
    one.check_all_answered()


def test_batch_that_cannot_be_sent_for_any_reason_is_answered_and_logged(scene, caplog):
    one = scene(batcher=ORDERED)
    one.instance.refusal = OSError("too many open files")
    one.submit()

    assert isinstance(one.sink(0).errors[0], InternalError)
    assert one.sink(0).errors[0].message == UNEXPECTED
    assert "OSError: too many open files" in caplog.text
    one.check_all_answered()


class Unable(RecordingSink):
    """A front end that cannot deliver responses."""

    def __init__(self, failure):
        super().__init__()
        self._failure = failure

    def on_response(self, response, *, final):
        raise self._failure


def replace_sink(scene, number, sink):
    scene.inferences[number].sink = scene.sinks[number] = sink


def test_response_that_cannot_be_delivered_ends_with_an_error(scene, caplog):
    one = scene(max_batch_size=3)
    one.submit(3)
    replace_sink(one, 0, Unable(IndexError("a bug in a codec")))
    replace_sink(one, 1, Unable(InvalidArgumentError("it has no such class")))

    one.instance.finish()

    assert [error.message for error in one.sink(0).errors] == [UNEXPECTED]
    assert [error.message for error in one.sink(1).errors] == ["it has no such class"]
    assert "a bug in a codec" in caplog.text
    assert "no such class" not in caplog.text
    one.check_all_answered()


def test_sink_that_raises_keeps_no_answer_from_the_others(scene, caplog):
    class Broken(Unable):
        def on_error(self, error, *, final=True):
            super().on_error(error, final=final)
            raise RuntimeError("a bug in a front end")

    one = scene(max_batch_size=3)
    one.submit(6)
    for number in (0, 3):
        replace_sink(one, number, Broken(InternalError("it cannot be written")))

    one.instance.finish()
    one.instance.fail()

    assert caplog.text.count("a response could not be delivered") == 2
    one.check_all_answered()


def test_death_of_one_instance_fails_what_it_ran_and_the_others_go_on(scene):
    two = scene(instances=2, batches=False)
    two.submit(3)

    two.instances[0].die()

    assert len(two.sink(0).errors) == 1
    assert two.model.state is VersionState.READY
    for _ in range(2):
        two.instances[1].finish()
    two.check_all_answered()
    assert two.model.statistics.failures[FailureReason.BACKEND] == 1


@pytest.mark.parametrize("batcher", [None, timeouts(5 * MS), ORDERED])
def test_death_of_the_last_instance_answers_all_that_waits(scene, batcher):
    one = scene(max_batch_size=1, batcher=batcher, batches=batcher is not None)
    one.submit(3)

    one.instance.die()
    one.loop.advance(1)

    one.check_all_answered()
    assert one.model.state is VersionState.UNAVAILABLE
    assert one.model.reason == "instance m_0_0 is gone, its process ended"
    assert one.sink(2).errors[0].message == (
        "Request for unknown model: 'm' version 1 is not at ready state"
    )


def test_stop_answers_what_runs_and_what_waits(scene):
    two = scene(instances=2, max_batch_size=1, batcher=timeouts(5 * MS))
    two.submit(4)

    two.model.stop()
    two.model.stop()
    two.loop.advance(1)

    two.check_all_answered()
    assert two.model.gave_up_requests
    assert two.model.instances == []
    assert (two.model.state, two.model.reason) == (VersionState.UNAVAILABLE, "unloaded")


def test_state_changes_only_as_the_table_says(scene):
    model = scene().model
    for state in set(VersionState) - TRANSITIONS[model.state]:
        with pytest.raises(AssertionError):
            model.become(state)

    assert model.state is VersionState.READY


def test_stop_answers_what_waits_for_an_instance_that_would_be_replaced(scene):
    one = scene(batches=False, supervisor=FakeSupervisor(replaces=True))
    one.instance.die()
    one.submit(2)
    assert one.model.missing_instances == 1

    one.model.stop()

    one.check_all_answered()
    assert (one.model.state, one.model.reason) == (VersionState.UNAVAILABLE, "unloaded")


def test_sink_that_fails_with_an_error_hears_of_the_end(scene, caplog):
    one = scene(decoupled=True, batches=False)
    ends = []

    class Sink(RecordingSink):
        def on_error(self, error, *, final=True):
            if not final:
                raise KeyError("oops")
            ends.append(error)

    (sent,) = one.submit()
    sent.sink = Sink()
    batch = one.instance.running[0]

    one.instance.report(batch, [Outcome(0, None, InternalError("bad"), is_final=False)])

    assert len(ends) == 1
    assert one.instance.cancelled == [sent]
    one.instance.fail()
    assert len(ends) == 1
    assert ": 0 queued, 0 running" in repr(one.model)
