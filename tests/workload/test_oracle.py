# SPDX-License-Identifier: Apache-2.0
"""The oracle: right answers pass, and every planted mistake of a server is found."""

from __future__ import annotations

import dataclasses

import pytest

from pytriton.testing import FakeClock
from tests.workload import models
from tests.workload.calls import (
    Call,
    Conduct,
    Cut,
    End,
    Kind,
    Port,
    Response,
    SequenceStep,
    make_tensor,
)
from tests.workload.oracle import Bounds, Cause, Oracle


class Court:
    """An oracle with a clock, and calls whose outcome a test makes up."""

    def __init__(self, **bounds: float) -> None:
        self.clock = FakeClock()
        self.oracle = Oracle(self.clock, Bounds(**bounds), models.repository_models())

    def begin(self, call: Call) -> Call:
        self.oracle.begin(call)
        call.outcome.submitted_s = call.outcome.began_s = call.outcome.sent_s = self.clock()
        return call

    def end(self, call: Call, end: End, status: int | None = None, error: str = "") -> None:
        outcome = call.outcome
        outcome.end, outcome.status, outcome.error = end, status, error
        outcome.ended_s = self.clock()
        outcome.ends += 1
        self.oracle.finish(call)

    def answer(self, call: Call, *outputs: tuple, **fields) -> None:
        """End a call with responses of these outputs."""
        if call.outcome.began_s is None:
            self.begin(call)
        for each in outputs:
            self.respond(call, each, **fields)
        self.end(call, End.ANSWERED, 200 if call.port is Port.HTTP else 0)

    def respond(self, call: Call, outputs: tuple, **fields) -> None:
        made = {"id": call.id, "model": call.model, "version": "1", "outputs": outputs} | fields
        call.outcome.responses.append(Response(self.clock(), **made))

    def fail(self, call: Call, status: int | None, error: str = "some text") -> None:
        if call.outcome.began_s is None:
            self.begin(call)
        self.end(call, End.ERROR, status, error)

    def sentences(self) -> list[str]:
        return [finding.sentence for finding in self.oracle.findings]


@pytest.fixture
def court():
    return Court()


def double(number=1, model="double", port=Port.HTTP, **settings):
    return Call(number, Kind.INFER, port, model, models.rows_of(number), **settings)


def stream(number=1, count=3, port=Port.GRPC, **settings):
    inputs = models.stream_inputs(number, count)
    lane = 1 if port is Port.GRPC else None
    length = {"stream_length": count, "lane": lane}
    return Call(number, Kind.STREAM, port, "stream", inputs, **length, **settings)


def slow(number=1, delay_us=0, **settings):
    inputs = models.slow_inputs(number, delay_us)
    return Call(number, Kind.INFER, Port.GRPC, "slow", inputs, **settings)


def fails(number=1, *, odd=True):
    inputs = models.fails_inputs(number, fails=odd)
    return Call(number, Kind.INFER, Port.HTTP, "fails", inputs)


def step(number, index, *, key=7, length=4, **settings):
    place = SequenceStep(key, index, index == 0, index == length - 1)
    model = "accumulate_direct"
    inputs = models.step_inputs(index)
    return Call(number, Kind.INFER, Port.HTTP, model, inputs, sequence=place, **settings)


def total(value, key=7):
    out = make_tensor("OUT", "INT64", (1, 1), [value])
    return (out, make_tensor("ID", "UINT64", (1, 1), [key]))


def right(call):
    return models.ANSWERS[call.model](call)


# Right answers


@pytest.mark.parametrize(
    "call",
    [
        double(),
        double(model="limited"),
        double(model="caller"),
        stream(),
        stream(count=0),
        slow(),
        fails(odd=False),
        Call(3, Kind.INFER, Port.HTTP, "strings", models.texts_of(3, 2)),
        Call(3, Kind.INFER, Port.HTTP, "cached", models.cached_rows(5)),
        Call(3, Kind.INFER, Port.GRPC, "large", models.large_inputs(3, 100)),
    ],
    ids=str,
)
def test_right_answers_are_no_findings(court, call):
    call = dataclasses.replace(call, outcome=type(call.outcome)())
    court.answer(call, *right(call))

    assert court.sentences() == []
    assert court.oracle.account.tally(call.model).answered == 1


def test_ensembles_say_that_they_have_no_sequence(court):
    call = double(model="pipeline")
    parameters = {"sequence_id": 0, "sequence_start": False, "sequence_end": False}
    court.answer(call, *right(call), parameters=parameters)
    court.answer(double(2), *right(double(2)), parameters=parameters)

    (finding,) = court.oracle.findings
    assert finding.call.model == "double"


def test_sums_of_a_sequence_are_judged_by_their_steps(court):
    for index in range(4):
        court.answer(step(index, index), total((2 << index) - 1))

    assert court.sentences() == []


def test_chats_are_judged_by_their_text(court):
    call = Call(1, Kind.CHAT_STREAM, Port.HTTP, "chat", text="a b")
    court.begin(call)
    parts = [("", None), ("a ", None), ("b ", None), (None, "stop")]
    for content, reason in parts:
        choice = {"delta": {"content": content}, "finish_reason": reason}
        court.respond(call, (), document={"choices": [choice]})
    court.end(call, End.ANSWERED, 200)

    assert court.sentences() == []


# Planted mistakes


def test_wrong_value_is_found(court):
    call = double()
    court.answer(call, (make_tensor("OUT", "INT32", (1, 4), [128, 130, 132, 135]),))

    (sentence,) = court.sentences()
    assert sentence.startswith("response 0 is [('OUT', (1, 4), [128, 130, 132, 135])], expected")


def test_answer_of_another_request_is_found_and_named(court):
    call, other = double(1), double(2)
    court.begin(other)
    court.answer(call, *right(other))

    (sentence,) = court.sentences()
    assert sentence.endswith("it is the answer to call 2")


@pytest.mark.parametrize("fields", [{"id": "0000000009"}, {"model": "limited"}, {"version": "2"}])
def test_wrong_id_model_or_version_is_found(court, fields):
    call = double()
    court.answer(call, *right(call), **fields)

    assert len(court.sentences()) == 1


def test_second_answer_to_one_request_is_found(court):
    call = double()
    court.answer(call, *right(call), *right(call))

    assert court.sentences() == ["expected 1 responses, got 2"]


def test_call_that_ends_twice_is_found(court):
    call = double()
    court.answer(call, *right(call))
    court.end(call, End.ANSWERED, 200)

    assert court.sentences() == ["a call ended that was not open, for the 2. time"]


def test_call_that_never_ends_is_found(court):
    court.begin(double())
    court.oracle.close()

    assert court.sentences() == ["a call never ended"]


def test_call_that_waits_too_long_is_found_once(court):
    court.begin(double())
    court.clock.advance(29)
    court.oracle.check_waiting()
    assert court.sentences() == []
    court.clock.advance(2)
    court.oracle.check_waiting()
    court.oracle.check_waiting()

    assert court.sentences() == ["a call still waits, longer than its bound"]


def test_late_answer_is_found(court):
    call = court.begin(Call(1, Kind.LIVE, Port.HTTP))
    court.clock.advance(11)
    court.answer(call, ())

    assert court.sentences() == ["a call took 1.000 s longer than its bound"]


def test_fault_makes_waiting_longer_legitimate(court):
    call = court.begin(double())
    court.oracle.fault(Cause.STALLED)
    court.clock.advance(60)
    court.answer(call, *right(call))

    assert court.sentences() == []


@pytest.mark.parametrize("status", [400, 404, 500, 503])
def test_error_that_nothing_explains_is_found(court, status):
    court.fail(double(), status)

    (sentence,) = court.sentences()
    assert sentence == "nothing explains the error 'some text' (there was no fault)"


def test_missing_end_of_a_stream_is_found(court):
    call = stream()
    court.answer(call, *right(call)[:2])

    assert court.sentences() == ["expected 3 responses, got 2"]


def test_wrong_order_of_a_stream_is_found(court):
    call = stream()
    first, second, third = right(call)
    court.answer(call, second, first, third)

    assert len(court.sentences()) == 2


def test_response_beyond_the_end_of_a_stream_is_found(court):
    call = stream()
    court.answer(call, *right(call), right(call)[2])

    assert court.sentences() == ["expected 3 responses, got 4"]


def test_wrong_responses_before_an_error_are_found(court):
    call = court.begin(stream())
    court.oracle.fault(Cause.WORKER_KILLED, "stream")
    court.respond(call, right(call)[1])
    court.fail(call, None)

    assert len(court.sentences()) == 1


def test_right_responses_before_an_error_are_no_finding(court):
    call = court.begin(stream())
    court.oracle.fault(Cause.WORKER_KILLED, "stream")
    court.respond(call, right(call)[0])
    court.fail(call, None)

    assert court.sentences() == []


def test_wrong_order_of_answers_on_a_stream_is_found(court):
    earlier, call = court.begin(slow(1)), court.begin(slow(2))
    decoupled = court.begin(stream(3))
    decoupled.outcome.overtook = (earlier,)
    court.answer(decoupled, *right(decoupled))
    call.outcome.overtook = (earlier,)
    court.answer(call, *right(call))

    assert court.sentences() == ["a call ended before those that were sent before it: ['1']"]


def test_protocol_violation_is_a_finding(court):
    call = court.begin(double())
    court.oracle.violate("bytes beyond", call)
    court.end(call, End.BROKEN)

    assert court.sentences() == ["the protocol does not allow what came: bytes beyond"]
    assert "call 1 (http infer double" in str(court.oracle.findings[0])


def test_invalid_request_that_is_answered_is_found(court):
    court.answer(Call(1, Kind.INVALID, Port.HTTP), ())

    assert court.sentences() == ["a call that makes no sense was answered"]


def test_model_has_to_fail_where_it_should(court):
    call = fails()
    court.answer(call, (make_tensor("OUT", "INT32", (1,), [65]),))
    court.fail(fails(2), 500, "ValueError: odd 129")
    court.fail(fails(3), 404, "ValueError: odd 193")
    court.fail(fails(4), 500, "ValueError: odd 1")

    assert [finding.call.number for finding in court.oracle.findings] == [1, 3, 4]


# Errors that the call itself explains


@pytest.mark.parametrize("others, is_found", [(15, True), (16, False)])
def test_full_queue_needs_as_many_others(court, others, is_found):
    for number in range(others):
        court.begin(slow(100 + number))
    court.fail(slow(), 14, "[request id: 0000000001] Exceeds maximum queue size")

    assert bool(court.sentences()) is is_found


def test_full_queue_of_a_model_without_a_limit_is_found(court):
    for number in range(100):
        court.begin(double(100 + number))
    court.fail(double(), 503, "Exceeds maximum queue size")

    assert len(court.sentences()) == 1


@pytest.mark.parametrize("waited_s, is_found", [(0.005, True), (0.011, False)])
def test_queue_timeout_cannot_come_before_its_time(court, waited_s, is_found):
    call = court.begin(slow(timeout_us=10_000))
    court.clock.advance(waited_s)
    court.fail(call, 14, "Request timeout expired")

    assert bool(court.sentences()) is is_found


@pytest.mark.parametrize("port, is_found", [(Port.HTTP, False), (Port.GRPC, True)])
def test_queue_timeout_of_a_pipelined_call_begins_with_the_answer_before_it(port, is_found):
    court = Court(late_s=0.05)
    first, second = (
        Call(number, Kind.INFER, port, "slow", models.slow_inputs(number, 0), timeout_us=timeout_us)
        for number, timeout_us in ((1, 60_000), (2, 100_000))
    )
    second.waits = False
    for call in (first, second):
        court.begin(call)
    status = 503 if port is Port.HTTP else 14
    court.clock.advance(0.06)
    court.fail(first, status, "Request timeout expired")
    court.clock.advance(0.1)
    court.fail(second, status, "Request timeout expired")

    assert bool(court.sentences()) is is_found


@pytest.mark.parametrize(
    "deadline_s, waited_s, is_found", [(None, 1, True), (1, 0.5, True), (1, 1.1, False)]
)
def test_deadline_cannot_come_before_its_time(court, deadline_s, waited_s, is_found):
    call = court.begin(slow(deadline_s=deadline_s))
    court.clock.advance(waited_s)
    court.fail(call, 4, "Deadline Exceeded")

    assert bool(court.sentences()) is is_found


# Errors that a fault explains


@pytest.mark.parametrize(
    "cause, model, status, is_found",
    [
        (Cause.WORKER_KILLED, "double", 500, False),
        (Cause.WORKER_KILLED, "double", 404, True),
        (Cause.WORKER_KILLED, "slow", 500, True),
        (Cause.MODEL_UNLOADED, "double", 404, False),
        (Cause.MODEL_RELOADED, "double", 404, True),
        (Cause.SERVER_STOPPING, "", 503, False),
        (Cause.SERVER_STOPPING, "", 500, True),
        (Cause.EXHAUSTED, "", 503, False),
        (Cause.STALLED, "", 503, True),
    ],
)
def test_fault_explains_some_errors_only(court, cause, model, status, is_found):
    call = court.begin(double())
    court.clock.advance(1)
    court.oracle.over(court.oracle.fault(cause, model))
    court.clock.advance(1)
    court.fail(call, status)

    assert bool(court.sentences()) is is_found


@pytest.mark.parametrize(
    "before_s, waits, end, is_found",
    [
        (1.0, True, End.ERROR, True),
        (1.0, True, End.LOST, True),
        (0.001, True, End.ERROR, False),
        (0.001, True, End.LOST, False),
        (1.0, False, End.ERROR, False),
    ],
)
def test_call_under_way_when_the_server_is_stopped_has_to_be_finished(
    before_s, waits, end, is_found
):
    court = Court(under_way_s=0.02)
    call = court.begin(double(waits=waits))
    court.clock.advance(before_s)
    court.oracle.fault(Cause.SERVER_STOPPING)
    court.end(call, end, 503 if end is End.ERROR else None)

    assert bool(court.sentences()) is is_found


@pytest.mark.parametrize("status", [500, 503])
@pytest.mark.parametrize(
    "work_s, others_s, ends_after_s, is_found",
    [
        (3.0, 0.0, 2.0, False),
        (0.5, 2.0, 2.0, False),
        (3.0, 0.0, 1.9, True),
        (0.5, 1.0, 2.0, True),
    ],
)
def test_only_calls_that_last_longer_than_the_exit_timeout_may_be_given_up(
    work_s, others_s, ends_after_s, is_found, status
):
    court = Court(under_way_s=0.02, exit_timeout_s=2.0)
    court.begin(double(1, work_s=others_s))
    call = court.begin(double(2, work_s=work_s))
    court.clock.advance(1)
    court.oracle.fault(Cause.SERVER_STOPPING)
    court.clock.advance(ends_after_s)
    court.fail(call, status)

    assert bool(court.sentences()) is is_found


def test_other_fault_explains_what_a_stop_alone_does_not():
    court = Court(under_way_s=0.02)
    call = court.begin(double())
    court.clock.advance(1)
    court.oracle.fault(Cause.WORKER_KILLED, "double")
    court.oracle.fault(Cause.SERVER_STOPPING)
    court.fail(call, 503)

    assert court.sentences() == []


def test_fault_of_a_step_explains_the_error_of_what_calls_it(court):
    court.oracle.fault(Cause.WORKER_KILLED, "double")
    court.fail(double(1, "pipeline"), 500)
    court.fail(double(2, "caller"), 500)
    court.fail(double(3, "limited"), 500)

    assert [finding.call.number for finding in court.oracle.findings] == [3]


def test_fault_that_is_over_explains_nothing(court):
    fault = court.oracle.fault(Cause.WORKER_KILLED, "double")
    court.clock.advance(1)
    court.oracle.over(fault)
    court.clock.advance(1)
    court.fail(double(), 500)

    assert len(court.sentences()) == 1


@pytest.mark.parametrize("end", [End.LOST, End.RESET, End.UNSENT])
def test_lost_connection_needs_a_cause(court, end):
    first = court.begin(double(1))
    court.end(first, end)
    court.oracle.fault(Cause.FRONT_END_KILLED)
    court.end(court.begin(double(2)), end)

    assert [finding.call.number for finding in court.oracle.findings] == [1]


def test_client_that_leaves_explains_its_own_end(court):
    conduct = Conduct(cut_after_received_bytes=5, cut=Cut.ABORT)
    court.end(court.begin(double(conduct=conduct)), End.CUT)
    court.end(court.begin(slow(2, conduct=Conduct(cancel_after_s=1.0))), End.CANCELLED)

    assert court.sentences() == []
    assert court.oracle.account.tally("double").unknown == 1


# Sequences


@pytest.mark.parametrize(
    "sums, found_at",
    [
        ([1, 1], 1),  # the second step is missing
        ([1, 2], 1),  # the first step is forgotten
        ([1, 7], 1),  # a step that was never sent is in the sum
        ([1, 3, 7, -1], 3),  # the model has lost its sum
        ([3], 0),  # a step of another sequence is in the sum
    ],
)
def test_wrong_sums_of_a_sequence_are_found(court, sums, found_at):
    for index, value in enumerate(sums):
        court.answer(step(index, index), total(value))

    assert [finding.call.number for finding in court.oracle.findings] == [found_at]


def test_answer_of_another_sequence_is_found(court):
    court.answer(step(1, 0), total(1, key=8))

    assert len(court.sentences()) == 1


def test_steps_that_ran_in_the_wrong_order_are_found(court):
    first, second, third = (court.begin(step(index, index)) for index in range(3))
    court.answer(first, total(1))
    court.answer(third, total(5))
    court.answer(second, total(7))

    assert court.sentences()
    assert all(finding.call is second for finding in court.oracle.findings)


def test_step_that_failed_may_be_missing_in_later_sums(court):
    court.answer(step(0, 0), total(1))
    court.oracle.over(court.oracle.fault(Cause.EXHAUSTED))
    court.fail(step(1, 1), 503)
    court.answer(step(2, 2), total(0b101))

    assert court.sentences() == []


@pytest.mark.parametrize("killed", [True, False])
def test_missing_start_needs_a_sequence_that_ended(court, killed):
    court.answer(step(0, 0), total(1))
    court.clock.advance(0.5)
    if killed:
        court.oracle.over(court.oracle.fault(Cause.WORKER_KILLED, "accumulate_direct"))
    court.clock.advance(0.5)
    error = "inference request for sequence 7 must specify the START flag on the first request"
    court.fail(step(1, 1), 400, error)

    assert bool(court.sentences()) is not killed


def test_idle_sequence_may_have_ended(court):
    court.answer(step(0, 0), total(1))
    court.clock.advance(models.SEQUENCE_IDLE_US / 1e6 + 1)
    court.fail(step(1, 1), 400, "must specify the START flag")

    assert court.sentences() == []


# Management


def test_model_is_unloaded_until_a_load_that_came_later(court):
    unload = court.begin(Call(1, Kind.UNLOAD, Port.HTTP, "double"))
    court.answer(unload, ())
    court.clock.advance(1)
    court.fail(double(2), 404)
    court.answer(Call(3, Kind.LOAD, Port.HTTP, "double"), ())
    court.clock.advance(1)
    court.fail(double(4), 404)

    assert [finding.call.number for finding in court.oracle.findings] == [4]


def test_load_beside_an_unload_proves_nothing(court):
    unload = court.begin(Call(1, Kind.UNLOAD, Port.HTTP, "double"))
    load = court.begin(Call(2, Kind.LOAD, Port.HTTP, "double"))
    court.clock.advance(1)
    court.answer(unload, ())
    court.answer(load, ())
    court.clock.advance(1)
    court.fail(double(3), 404)

    assert court.sentences() == []


def test_failed_load_and_not_ready_need_a_cause(court):
    court.fail(Call(1, Kind.LOAD, Port.HTTP, "double"), 400)
    court.clock.advance(1)
    court.fail(Call(2, Kind.MODEL_READY, Port.HTTP, "double"), 400)
    court.fail(Call(3, Kind.READY, Port.HTTP), 400)

    assert [finding.call.number for finding in court.oracle.findings] == [1, 2, 3]


# Statistics


def statistics(court, model="double", **changed):
    """What a server says that has counted as the clients."""
    tally = court.oracle.account.tally(model)
    counts = {"success": tally.answered, "fail": tally.failed, "cache_hit": 0} | changed
    return {
        "model_stats": [
            {
                "name": model,
                "inference_count": changed.get("rows", tally.rows),
                "execution_count": changed.get("executions", tally.answered),
                "batch_stats": [{"batch_size": 1, "compute_infer": {"count": tally.answered}}],
                "inference_stats": {
                    name: {"count": counts[name]} for name in ("success", "fail", "cache_hit")
                },
            }
        ]
    }


def metrics(success=2, fail=0, pending=0):
    labels = 'model="double",version="1"'
    return (
        f"nv_inference_request_success{{{labels}}} {success}\n"
        f'nv_inference_request_failure{{{labels},reason="OTHER"}} {fail}\n'
        f"nv_inference_pending_request_count{{{labels}}} {pending}\n"
    )


@pytest.fixture
def counted(court):
    for number in (1, 2):
        call = double(number)
        court.answer(call, *right(call))
    return court


def test_equal_accounts_are_no_finding(counted):
    counted.oracle.compare(statistics(counted), metrics())

    assert counted.sentences() == []


@pytest.mark.parametrize("model", ["double", "limited"])
@pytest.mark.parametrize("changed", [{"success": 1}, {"success": 3}, {"fail": 1}])
def test_statistics_that_do_not_add_up_are_found(court, model, changed):
    for number in (1, 2):
        call = double(number, model)
        court.answer(call, *right(call))
    court.oracle.compare(statistics(court, model, **changed))

    assert len(court.sentences()) == 1


@pytest.mark.parametrize("changed", [{"rows": 3}, {"rows": 1}, {"executions": 1}])
def test_rows_and_executions_that_do_not_add_up_are_found(court, changed):
    for number in (1, 2):
        call = double(number, "limited")
        court.answer(call, *right(call))
    court.oracle.compare(statistics(court, "limited", **changed))

    assert len(court.sentences()) == 1


@pytest.mark.parametrize("changed", [{"success": 3}, {"fail": 1}, {"pending": 1}])
def test_metrics_that_do_not_add_up_are_found(counted, changed):
    counted.oracle.compare(statistics(counted), metrics(**changed))

    assert len(counted.sentences()) == 1


def test_calls_of_models_count_for_the_models_that_they_call(counted):
    call = double(3, "caller")
    counted.answer(call, *right(call))
    counted.oracle.compare(statistics(counted, success=3))
    assert counted.sentences() == []
    counted.oracle.compare(statistics(counted, success=2))

    assert len(counted.sentences()) == 1


@pytest.mark.parametrize(
    "end, error",
    [
        (End.CUT, ""),
        (End.ERROR, "a tensor in shared memory could not be read: no file descriptors"),
        (End.ERROR, "no room for a tensor of 8 bytes: there is no memory"),
    ],
)
def test_calls_whose_answer_nobody_saw_may_count_or_not(counted, end, error):
    counted.oracle.fault(Cause.EXHAUSTED)
    counted.end(counted.begin(double(3)), end, 503 if error else None, error)
    for changed in ({"success": 2}, {"success": 3}, {"fail": 1}):
        counted.oracle.compare(statistics(counted, **changed))
    assert counted.sentences() == []
    counted.oracle.compare(statistics(counted, success=4))

    assert len(counted.sentences()) == 1
