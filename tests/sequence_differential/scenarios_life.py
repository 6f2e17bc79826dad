# SPDX-License-Identifier: Apache-2.0
"""How sequences and their requests end early: idle, timeouts, cancellation, failures, unloading."""

from __future__ import annotations

from tests.e2e.waiting import eventually
from tests.recorded_suite import Observation
from tests.sequence_differential.configs import config
from tests.sequence_differential.rig import FAILURES, Rig
from tests.sequence_differential.scenario import Scenarios

scenario = Scenarios()
IDLE_US = 300_000
TIMEOUT_US = 200_000
LATER_TIMEOUT_US = 3_000_000  # for what arrives before it
OLDEST_2 = "oldest { max_candidate_sequences: 2 }\n"
REASONS = ("REJECTED", "CANCELED", "BACKEND", "OTHER")


def failures(rig: Rig) -> dict[str, float]:
    """The counts of failed requests by their reasons."""

    def read() -> dict[str, float]:
        return {reason: rig.metric(FAILURES, f'reason="{reason}"') for reason in REASONS}

    return dict(rig.settled(read))


# Idle sequences


@scenario(config(batch=1, idle_us=IDLE_US))
def an_idle_sequence_makes_room(rig: Rig) -> None:
    rig.call(1, 1, start=True).wait()
    rig.call(2, 1, start=True, end=True).wait()
    rig.call(1, 2).wait()
    rig.call(1, 3, start=True).wait()


@scenario(config("oldest { max_candidate_sequences: 1 }\n", batch=1, idle_us=IDLE_US))
def an_idle_candidate_makes_room(rig: Rig) -> None:
    rig.call(1, 1, start=True).wait()
    rig.call(2, 1, start=True, end=True).wait()
    rig.call(1, 2).wait()
    rig.call(1, 3, start=True).wait()


@scenario(config(batch=1, idle_us=IDLE_US))
def sequences_in_the_backlog_are_not_idle(rig: Rig) -> None:
    rig.hold()
    rig.queue(1, 1, start=True, end=True)
    rig.queue(2, 1, start=True)
    rig.let_pass(3 * IDLE_US)
    rig.queue(2, 2, end=True)
    rig.open_gate()


@scenario(config(batch=1, idle_us=IDLE_US))
def queued_requests_of_an_idle_sequence_run(rig: Rig) -> None:
    rig.close_gate()
    rig.call(1, 1, start=True)
    rig.executions(1)
    rig.queue(1, 2)
    rig.queue(1, 3)
    rig.let_pass(3 * IDLE_US)
    rig.open_gate()


@scenario(config(batch=1, idle_us=IDLE_US))
def a_request_that_takes_longer_than_idle(rig: Rig) -> None:
    rig.close_gate()
    rig.call(1, 1, start=True)
    rig.executions(1)
    rig.let_pass(3 * IDLE_US)
    rig.call(1, 2, name="late")
    rig.let_pass(TIMEOUT_US)
    rig.open_gate()


# Timeouts


@scenario(config(batch=1))
def a_timeout_in_the_backlog(rig: Rig) -> Observation:
    rig.call(1, 1, start=True).wait()
    rig.queue(2, 1, start=True, timeout=LATER_TIMEOUT_US)
    rig.call(2, 2)
    rig.call(2, 3).wait()
    rig.pending(0)
    rig.call(2, 4).wait()
    rig.queue(3, 1, start=True)
    rig.call(1, 2, end=True).wait()
    answers = rig.answers()
    return {"answers": answers, "executions": rig.batches(), "failures": failures(rig)}


@scenario(config(OLDEST_2.replace("2", "1"), batch=1))
def a_timeout_in_the_backlog_of_candidates(rig: Rig) -> Observation:
    rig.call(1, 1, start=True).wait()
    rig.call(2, 1, start=True, timeout=TIMEOUT_US).wait()
    rig.call(2, 4).wait()
    rig.call(1, 2, end=True).wait()
    answers = rig.answers()
    return {"answers": answers, "executions": rig.batches(), "failures": failures(rig)}


@scenario(config(batch=1))
def a_timeout_of_the_second_request_in_the_backlog(rig: Rig) -> None:
    rig.call(1, 1, start=True).wait()
    rig.queue(2, 1, start=True)
    rig.call(2, 2, timeout=TIMEOUT_US).wait()
    rig.call(1, 2, end=True).wait()


@scenario(config(batch=1))
def a_timeout_in_a_slot(rig: Rig) -> None:
    rig.close_gate()
    rig.call(1, 1, start=True)
    rig.executions(1)
    rig.queue(1, 2, timeout=TIMEOUT_US)
    rig.let_pass(3 * TIMEOUT_US)
    rig.open_gate()


# Cancellation


def cancelled(rig: Rig) -> Observation:
    """What came for those that were not cancelled by the client, after all is over."""
    rig.open_gate()
    answers = rig.answers()
    eventually(lambda: rig.metric("nv_inference_pending_request_count") == 0)
    return {"answers": answers, "executions": rig.batches(), "failures": failures(rig)}


@scenario(config(batch=2))
def a_queued_request_is_cancelled(rig: Rig) -> Observation:
    rig.call(1, 1, start=True).wait()
    rig.hold()
    rig.queue(1, 2).cancel()
    rig.cancellation()
    rig.open_gate()
    eventually(lambda: failures(rig)["CANCELED"] == 1)
    rig.call(1, 3, name="later").wait()
    rig.call(1, 4, start=True, name="again").wait()
    return cancelled(rig)


@scenario(config(batch=2))
def those_behind_a_cancelled_request(rig: Rig) -> Observation:
    rig.call(1, 1, start=True).wait()
    rig.hold()
    cancelled_one = rig.queue(1, 2)
    rig.queue(1, 3)
    rig.queue(1, 4, end=True)
    cancelled_one.cancel()
    rig.cancellation()
    return cancelled(rig)


@scenario(config(OLDEST_2))
def a_queued_request_of_a_candidate_is_cancelled(rig: Rig) -> Observation:
    rig.call(1, 1, start=True).wait()
    rig.hold(end=False)
    cancelled_one = rig.queue(1, 2)
    rig.queue(1, 3)
    cancelled_one.cancel()
    rig.cancellation()
    return cancelled(rig)


@scenario(config(batch=1))
def a_sequence_in_the_backlog_is_cancelled(rig: Rig) -> Observation:
    rig.call(1, 1, start=True).wait()
    first = rig.queue(2, 1, start=True)
    rig.queue(2, 2)
    rig.queue(3, 5, start=True, end=True)
    first.cancel()
    rig.cancellation()
    rig.call(1, 2, end=True).wait()
    return cancelled(rig)


@scenario(config(batch=2))
def a_running_request_is_cancelled(rig: Rig) -> Observation:
    rig.close_gate()
    running = rig.call(1, 1, start=True)
    rig.executions(1)
    rig.queue(1, 2)
    running.cancel()
    rig.let_pass(TIMEOUT_US)
    rig.open_gate()
    rig.sent[1].wait()
    rig.call(1, 3, end=True).wait()
    return cancelled(rig)


@scenario(config(batch=2))
def a_stream_of_a_sequence_is_cancelled(rig: Rig) -> Observation:
    rig.stream(1, 1, start=True).wait()
    rig.close_gate()
    rig.stream(1, 2)
    rig.executions(2)
    rig.stream(1, 3)
    rig.pending(1)
    rig.stream(1, 4).cancel()
    rig.cancellation()
    rig.open_gate()
    eventually(lambda: failures(rig)["CANCELED"] >= 1)
    rig.call(1, 5, name="later").wait()
    rig.call(1, 6, start=True, name="again").wait()
    return {"executions": rig.batches(), "later": rig.sent[-2].wait(), "again": rig.sent[-1].wait()}


# Failures


@scenario(config())
def a_request_fails(rig: Rig) -> Observation:
    rig.call(1, 1, start=True).wait()
    rig.call(1, -1).wait()
    rig.call(1, 5).wait()
    rig.call(1, -2).wait()
    rig.call(1, 5, end=True).wait()
    rig.call(1, 5).wait()
    answers = rig.answers()
    return {"answers": answers, "executions": rig.batches(), "failures": failures(rig)}


@scenario(config())
def the_first_request_fails(rig: Rig) -> None:
    rig.call(1, -1, start=True).wait()
    rig.call(1, 5).wait()
    rig.call(2, -2, start=True).wait()
    rig.call(2, 5).wait()


@scenario(config())
def a_whole_batch_fails(rig: Rig) -> None:
    rig.hold(end=False)
    for sequence, value in ((1, 1), (2, -2), (3, 3)):
        rig.queue(sequence, value, start=True)
        rig.queue(sequence, 10, end=True)
    rig.open_gate()


@scenario(config())
def one_of_a_batch_fails(rig: Rig) -> None:
    rig.hold(end=False)
    for sequence, value in ((1, 1), (2, -1), (3, 3)):
        rig.queue(sequence, value, start=True)
        rig.queue(sequence, 10, end=True)
    rig.open_gate()


@scenario(config(batch=1))
def a_failed_end_frees_the_slot(rig: Rig) -> None:
    rig.call(1, 1, start=True).wait()
    rig.queue(2, 1, start=True)
    rig.call(1, -1, end=True).wait()
    rig.sent[1].wait()
    rig.call(2, -2, end=True).wait()
    rig.call(3, 1, start=True).wait()


# Unloading


@scenario(config(batch=1, idle_us=5_000_000))
def the_model_is_unloaded(rig: Rig) -> None:
    rig.call(1, 1, start=True).wait()
    rig.close_gate()
    rig.call(1, 2)
    rig.executions(2)
    rig.queue(1, 3)
    rig.unload()
    rig.call(1, 4).wait()
    rig.call(2, 1, start=True).wait()
    rig.open_gate()


@scenario(config(batch=1, idle_us=IDLE_US))
def the_model_is_loaded_again(rig: Rig) -> Observation:
    rig.call(1, 1, start=True).wait()
    loaded = rig.load(config(batch=2, idle_us=IDLE_US))
    rig.call(1, 2).wait()
    rig.call(1, 3, start=True).wait()
    return {"loaded": loaded, "answers": rig.answers(), "executions": rig.batches()}
