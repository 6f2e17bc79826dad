# SPDX-License-Identifier: Apache-2.0
"""When an instance with a worker is free, ready, and gone. No processes: the test is the worker."""

from __future__ import annotations

import asyncio
import socket

import numpy as np
import pytest
from msgspec import structs

from pytriton.base.errors import InternalError
from pytriton.runtime.executor import python_instance
from pytriton.runtime.transport.frames import (
    BatchFailure,
    BatchResult,
    Cancel,
    CheckReady,
    Execute,
    Finalize,
    Initialized,
    ReadyReport,
    RequestDetails,
    ResponseItem,
    ResponsesFrame,
    WorkerLogLine,
)
from tests.executor.worker_rig import INITIALIZE, WorkerRig, place


@pytest.fixture
def rig():
    made = WorkerRig()
    yield made
    made.close()


@pytest.fixture
def decoupled():
    made = WorkerRig(is_decoupled=True).start()
    yield made
    made.close()


def test_worker_is_told_what_only_models_of_its_kind_ask_for(rig):
    rig.start().execute(correlation_id="seven", flags=3, timeout_us=9)
    frame = rig.hear()

    assert isinstance(frame, Execute)
    assert frame.details == {0: RequestDetails("seven", 3, 9)}


def test_batch_result_answers_and_frees(rig):
    batch = rig.start().execute()
    assert (rig.instance.free_slots, rig.instance.is_idle) == (0, False)
    refs, payload = place(rig.far, y=np.arange(4, dtype="u1"))
    rig.far.send(BatchResult(batch, 1, 2, refs), payload)
    rig.turn()
    ((reported, (outcome,)),) = rig.events

    assert reported == batch
    assert bytes(outcome.response.outputs[0].data) == b"\0\1\2\3"
    assert (rig.instance.free_slots, rig.instance.is_idle) == (1, True)


def test_instance_is_free_when_execute_returned_although_answers_are_to_come(decoupled):
    first = decoupled.execute()
    decoupled.say(ResponsesFrame(0, 0, [ResponseItem(first, 0, [], False)]))
    assert decoupled.instance.free_slots == 0
    decoupled.say(ResponsesFrame(0, 0, [], returned_batch=first))
    assert decoupled.events[-1] == (first, [])
    assert (decoupled.instance.free_slots, decoupled.instance.is_idle) == (1, True)

    second = decoupled.execute()
    decoupled.say(ResponsesFrame(0, 0, [ResponseItem(first, 0), ResponseItem(second, 0)]))

    answered = [batch for batch, outcomes in decoupled.events if outcomes and outcomes[0].is_final]
    assert answered == [first, second]
    assert decoupled.instance.free_slots == 0  # the second one has not returned
    decoupled.say(ResponsesFrame(0, 0, [], returned_batch=second))
    assert decoupled.instance.free_slots == 1


def test_return_that_comes_with_answers_is_reported_once(rig):
    batch = rig.start().execute()
    rig.say(ResponsesFrame(0, 0, [ResponseItem(batch, 0, [])], returned_batch=batch))

    assert [reported for reported, _ in rig.events] == [batch]
    assert rig.instance.free_slots == 1


def test_rescheduled_request_is_told_from_an_answered_one(rig):
    batch = rig.start().execute(2)
    items = [ResponseItem(batch, 0, []), ResponseItem(batch, 1, is_rescheduled=True)]
    rig.say(ResponsesFrame(0, 0, items, returned_batch=batch))
    ((_, outcomes),) = rig.events

    assert [outcome.is_rescheduled for outcome in outcomes] == [False, True]
    assert outcomes[1].response is None
    assert outcomes[1].error is None


def test_failure_answers_only_what_is_open_and_frees(rig):
    batch = rig.start().execute(2)
    rig.say(
        ResponsesFrame(0, 0, [ResponseItem(batch, 0, [])]),
        BatchFailure(batch, 0, 0, "it raised", 1),
    )
    (_, first), (_, (second,)) = rig.events

    assert [outcome.position for outcome in first] == [0]
    assert (second.position, second.error.message) == (1, "it raised")
    assert rig.instance.free_slots == 1


def test_failure_after_all_answers_only_frees(decoupled):
    batch = decoupled.execute()
    decoupled.say(ResponsesFrame(0, 0, [ResponseItem(batch, 0)]))
    assert decoupled.instance.free_slots == 0
    decoupled.say(BatchFailure(batch, 0, 0, "too late", 1))

    assert decoupled.events[-1] == (batch, [])
    assert decoupled.instance.free_slots == 1


def test_answer_to_a_batch_that_is_over_is_dropped(decoupled):
    batch = decoupled.execute()
    decoupled.say(ResponsesFrame(0, 0, [ResponseItem(batch, 0)], returned_batch=batch))
    decoupled.say(ResponsesFrame(0, 0, [ResponseItem(batch, 0, [])]))

    assert len(decoupled.events) == 1
    assert decoupled.deaths == []


def test_depth_of_calls_is_known_while_execute_works_or_answers_are_to_come(decoupled):
    batch = decoupled.execute()
    decoupled.inferences[-1].request.call_depth = 3
    decoupled.say(ResponsesFrame(0, 0, [ResponseItem(batch, 0)]))
    assert decoupled.instance.call_depth_of(batch) == 3
    decoupled.say(ResponsesFrame(0, 0, [], returned_batch=batch))

    assert decoupled.instance.call_depth_of(batch) == 0


def test_coroutine_takes_many_batches(rig):
    rig.start(Initialized(is_async=True))
    batches = [rig.execute() for _ in range(5)]
    assert rig.instance.free_slots == rig.instance.concurrency - 5
    rig.say(*(BatchResult(batch, 0, 0, []) for batch in reversed(batches)))

    assert [batch for batch, _ in rig.events] == batches[::-1]
    assert rig.instance.is_idle


def test_cancel_reaches_a_request_after_its_execute_returned(decoupled):
    batch = decoupled.execute()
    decoupled.hear()
    decoupled.say(ResponsesFrame(0, 0, [], returned_batch=batch))
    decoupled.instance.cancel(decoupled.inferences[0])

    assert decoupled.hear() == Cancel(batch, 0)


# Initialization


def test_error_of_initialize_is_raised_and_the_worker_killed(rig):
    task = rig.begin()
    rig.far.send(Initialized(error="ValueError: no weights"))

    with pytest.raises(InternalError, match=r"^ValueError: no weights$"):
        rig.loop.run_until_complete(task)
    assert rig.kills == 1
    assert rig.services.closed == 1
    assert rig.instance.free_slots == 0


@pytest.mark.parametrize("is_eof_first", [True, False])
def test_death_in_initialize_is_raised_with_its_cause(rig, is_eof_first):
    task = rig.begin()
    if is_eof_first:
        rig.far.close()
        rig.turn()
    rig.exited.set_result("killed by SIGSEGV (11)")

    with pytest.raises(InternalError) as raised:
        rig.loop.run_until_complete(task)
    assert raised.value.message == "Stub process 'm_0_0' is not healthy. Killed by SIGSEGV (11)."
    assert rig.deaths == []


def test_worker_that_cannot_be_told_what_to_load_is_killed(rig):
    frame = structs.replace(INITIALIZE, arguments={"model_name": "\ud800"})
    with pytest.raises(UnicodeEncodeError):
        rig.loop.run_until_complete(rig.instance.initialize(frame))

    assert rig.kills == 1
    assert rig.services.closed == 1


def test_initialization_that_takes_too_long_can_be_given_up(rig):
    async def initialize():
        await asyncio.wait_for(rig.instance.initialize(INITIALIZE), 0.01)

    with pytest.raises((TimeoutError, asyncio.TimeoutError)):
        rig.loop.run_until_complete(initialize())
    assert rig.kills == 1


def test_log_lines_of_initialize_are_heard(rig):
    task = rig.begin()
    rig.say(WorkerLogLine("INFO", "loading", "model.py", 3), Initialized())
    rig.loop.run_until_complete(task)

    assert rig.services.lines == ["loading"]


def test_death_before_the_owner_listens_is_told_when_it_does(rig):
    task = rig.begin()
    rig.far.send(Initialized())
    rig.loop.run_until_complete(task)
    rig.exit("exited with code 1")
    assert rig.deaths == []
    rig.instance.start()
    rig.turn()

    assert rig.deaths == ["exited with code 1"]


# Death


@pytest.mark.parametrize("is_eof_first", [True, False])
def test_death_fails_open_requests_with_its_cause(rig, is_eof_first):
    rig.start().execute(2)
    if is_eof_first:
        rig.far.close()
        rig.turn()
        assert rig.events == []
    rig.exit("killed by SIGKILL (9)")
    ((_, outcomes),) = rig.events

    assert [outcome.error.message for outcome in outcomes] == [
        "Stub process 'm_0_0' is not healthy. Killed by SIGKILL (9)."
    ] * 2
    assert rig.deaths == ["killed by SIGKILL (9)"]
    assert rig.instance.free_slots == 0
    assert rig.services.closed == 1
    assert rig.instance.ended.done()


@pytest.mark.parametrize("is_eof_first", [True, False])
def test_answers_that_were_given_before_the_death_are_delivered(rig, is_eof_first):
    batch = rig.start().execute()  # which it has not read: the connection counts as reset
    rig.far.send(BatchResult(batch, 0, 0, []))
    if is_eof_first:
        rig.far.close()
        rig.turn()
    rig.exit("exited with code 3")
    ((_, (outcome,)),) = rig.events

    assert outcome.error is None
    assert rig.deaths == ["exited with code 3"]


def test_worker_that_only_closes_its_channel_is_killed_and_its_requests_fail(rig):
    rig.start().execute()
    rig.far.close()
    rig.wait_for(lambda: rig.deaths)

    assert rig.deaths == ["it closed its connection"]
    assert rig.kills == 1
    assert not rig.instance.ended.done()


def test_nothing_new_is_given_to_a_worker_whose_end_has_no_cause_yet(rig):
    rig.start()
    rig.far.close()
    rig.turn()

    assert rig.deaths == []
    assert rig.instance.free_slots == 0


def test_message_that_makes_no_sense_ends_the_worker(rig, caplog):
    rig.start().execute()
    rig.far.link.send(b"\xff" * 40)
    rig.wait_for(lambda: rig.deaths)

    assert rig.deaths == ["its answer could not be read"]
    assert rig.kills == 1


def test_message_that_breaks_a_rule_ends_the_worker_at_once_with_one_line(rig, caplog):
    batch = rig.start().execute()
    rig.far.send(BatchResult(batch, 2, 1, []))
    rig.turn()

    assert rig.deaths == ["its answer could not be read"]
    assert rig.kills == 1
    (record,) = caplog.records
    assert record.exc_info is None
    text = "instance m_0_0: a message could not be read, which ends it: expected times in their"
    assert record.getMessage().startswith(text)


# Stopping


def test_stop_lets_the_model_finalize_and_fails_what_is_open(rig):
    rig.start().execute()
    rig.hear()
    rig.instance.stop()
    rig.instance.stop()
    ((_, (outcome,)),) = rig.events

    assert "the model was unloaded" in outcome.error.message
    assert rig.deaths == ["the model was unloaded"]
    assert rig.instance.free_slots == 0
    assert rig.hear() == Cancel(1, 0)
    assert isinstance(rig.hear(), Finalize)
    assert not rig.instance.ended.done()
    rig.say(WorkerLogLine("INFO", "cleaning up", "model.py", 9), BatchResult(1, 0, 0, []))
    rig.exit("exited with code 0")
    assert rig.services.lines == ["cleaning up"]
    assert rig.instance.ended.done()
    assert len(rig.events) == len(rig.deaths) == 1


def test_worker_that_does_not_finalize_in_time_is_killed(caplog):
    rig = WorkerRig(grace_s=0.01).start()
    rig.instance.stop()
    rig.wait_for(lambda: rig.kills)

    assert "did not finalize within 0.01 s" in caplog.text
    rig.close()


def test_worker_may_close_its_channel_before_it_has_ended(rig):
    rig.start().instance.stop()
    rig.far.close()
    rig.turn()

    assert rig.kills == 0
    assert len(rig.deaths) == 1
    assert rig.losses == 0  # nothing follows its death: an owner that forgot it would miss it again


def test_stop_does_not_wait_for_a_worker_that_never_reads(rig):
    rig.start(Initialized(is_async=True))
    for _ in range(rig.instance.concurrency):
        rig.execute(parameters={"text": "x" * 50_000})
    rig.instance.stop()

    assert len(rig.events) == rig.instance.concurrency
    assert rig.deaths == ["the model was unloaded"]


# Readiness


def ask(rig):
    return rig.loop.create_task(rig.instance.check_ready())


def test_worker_without_a_check_is_ready_while_it_lives(rig):
    rig.start()
    assert rig.loop.run_until_complete(ask(rig))
    rig.exit("exited with code 0")

    assert not rig.loop.run_until_complete(ask(rig))


@pytest.mark.parametrize("is_ready", [True, False])
def test_model_says_whether_it_is_ready(rig, is_ready):
    rig.start(Initialized(has_ready_check=True))
    for _ in range(2):
        task = ask(rig)
        rig.turn()
        question = rig.hear()
        assert isinstance(question, CheckReady)
        rig.say(ReadyReport(question.call, is_ready))

        assert rig.loop.run_until_complete(task) is is_ready


def test_one_call_answers_all_who_ask_meanwhile(rig):
    rig.start(Initialized(has_ready_check=True))
    tasks = [ask(rig) for _ in range(3)]
    rig.turn()
    question = rig.hear()
    rig.say(ReadyReport(question.call, True))

    assert rig.loop.run_until_complete(asyncio.gather(*tasks)) == [True] * 3
    assert rig.far.receive(socket.MSG_DONTWAIT) is None


def test_check_that_takes_too_long_is_a_no_and_the_next_one_takes_its_result(rig, monkeypatch):
    monkeypatch.setattr(python_instance, "READY_TIMEOUT_S", 0.01)
    rig.start(Initialized(has_ready_check=True))
    assert not rig.loop.run_until_complete(ask(rig))
    question = rig.hear()
    monkeypatch.setattr(python_instance, "READY_TIMEOUT_S", 30.0)
    task = ask(rig)
    rig.turn()
    rig.say(ReadyReport(question.call, True))

    assert rig.loop.run_until_complete(task)


def test_check_that_runs_when_the_worker_dies_is_a_no(rig):
    rig.start(Initialized(has_ready_check=True))
    task = ask(rig)
    rig.turn()
    rig.exit("killed by SIGKILL (9)")

    assert not rig.loop.run_until_complete(task)
