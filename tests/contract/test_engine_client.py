# SPDX-License-Identifier: Apache-2.0
"""Requests through an engine's client: the same, whether it is in the engine's process or not."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from pytriton.base.errors import (
    UNEXPECTED,
    CancelledError,
    InternalError,
    InvalidArgumentError,
    UnavailableError,
)
from pytriton.base.messages import InferResponse
from pytriton.base.model_spec import BatcherSpec, QueuePolicySpec
from pytriton.model_config import Tensor
from pytriton.runtime.executor.inference import Outcome
from pytriton.serving.engine.model import VersionState
from tests.column_rig import NAMES
from tests.contract.benches import to_arrays, to_tensor
from tests.contract.seam import doubled, doubling_inputs
from tests.fakes import RecordingSink

ONE_AT_A_TIME = {"max_batch_size": 1}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_request_gets_the_answer_of_its_model(seam):
    _, (instance,) = seam.doubling(version=3)
    call = seam.infer([1, 2, 3, 4], id="mine")
    seam.run()
    instance.double()
    seam.run()

    assert call.values == doubled([1, 2, 3, 4])
    assert [tensor.shape for tensor in call.response.outputs] == [(2, 2), (2, 2)]
    assert (call.response.model_name, call.response.model_version) == ("m", "3")
    assert call.response.id == "mine"
    assert call.inference.is_over


def fail_once(monkeypatch, owner, name):
    """Let a method raise when it is called first."""
    method, failures = getattr(owner, name), [MemoryError()]

    def call_or_fail(*arguments, **named):
        if failures:
            raise failures.pop()
        return method(*arguments, **named)

    monkeypatch.setattr(owner, name, call_or_fail)


def test_exception_with_a_trace_ends_no_request(seam, monkeypatch, caplog):
    _, (instance,) = seam.doubling()
    fail_once(monkeypatch, seam.tracing, "begin")
    calls = [seam.infer([number, 1], traceparent=PARENT) for number in range(3)]
    seam.run()
    instance.double()
    seam.run()

    assert [call.values for call in calls] == [doubled([number, 1]) for number in range(3)]
    assert caplog.messages == ["a request could not be observed for tracing"]


def test_exception_with_a_request_ends_none_of_the_others(seam, monkeypatch):
    if not seam.is_remote:
        pytest.skip("here the caller queues the request")
    model, (instance,) = seam.doubling()
    fail_once(monkeypatch, model, "submit")
    calls = [seam.infer([number, 1]) for number in range(3)]
    seam.run()
    instance.double()
    seam.run()

    assert "memory" in calls[0].error
    assert [call.values for call in calls[1:]] == [doubled([1, 1]), doubled([2, 1])]


def test_requests_of_one_iteration_share_a_batch(seam):
    _, (instance,) = seam.doubling()
    calls = [seam.infer([number, number]) for number in range(5)]
    seam.run()
    instance.double()
    seam.run()

    assert [frame.rows for frame in instance.frames] == [[1] * 5]
    assert [call.values for call in calls] == [doubled([n, n]) for n in range(5)]


def test_requests_beyond_one_message_all_arrive(seam):
    model, (instance,) = seam.doubling(max_batch_size=1000)
    calls = [seam.infer([number, 1]) for number in range(300)]
    seam.run()
    while instance.running:
        instance.double()
        seam.run()

    assert [call.values["x"] for call in calls] == [[2 * n, 2] for n in range(300)]
    assert model.statistics.success_count == 300


def test_tensors_beyond_one_message_all_arrive(seam):
    _, (instance,) = seam.doubling(max_batch_size=10_000)
    large = list(range(2 * 3000))  # 24 kB each
    calls = [seam.infer([number, *large[1:]]) for number in range(8)]
    seam.run()
    while instance.running:
        instance.double()
        seam.run()

    assert [call.values for call in calls] == [doubled([n, *large[1:]]) for n in range(8)]


def test_request_gets_only_the_outputs_that_it_wants(seam):
    _, (instance,) = seam.doubling()
    some, every = seam.infer([1, 2], outputs=("y",)), seam.infer([3, 4])
    seam.run()
    instance.double()
    seam.run()

    assert some.values == doubled([1, 2], ("y",))
    assert every.values == doubled([3, 4])


def test_model_without_a_batch_dimension_gets_the_shape_of_the_request(seam):
    _, (instance,) = seam.doubling(max_batch_size=0)
    call = seam.infer(inputs=doubling_inputs([5, 6], batching=False))
    seam.run()
    instance.double()
    seam.run()

    assert [ref.shape for ref in instance.frames[0].inputs] == [(2,), (2,)]
    assert call.values == doubled([5, 6])


def test_all_fields_of_a_request_reach_the_model(seam):
    _, instance = seam.faked()
    fields = {
        "model_version": "1",
        "id": "an id ✓",
        "outputs": ("x",),
        "parameters": {"flag": True, "count": -(2**63), "share": 0.5, "text": "ü\n"},
        "priority": 7,
        "timeout_us": 10**12,
        "correlation_id": "sequence",
        "flags": 3,
    }
    call = seam.infer([1, 2, 3, 4], **fields)
    seam.run()
    (kept,) = instance.batches[0].inferences
    instance.finish()
    seam.run()

    read = {**msgspec.structs.asdict(kept.request.fields), "outputs": kept.request.outputs}
    read["model_version"] = kept.request.model_version
    assert {name: read[name] for name in fields} == fields
    assert kept.request.model_name == "m"
    assert kept.request.rows == 2
    assert kept.request.received_ns == call.inference.request.received_ns
    assert call.response.id == "an id ✓" if seam.is_remote else True
    for name in NAMES:
        tensor = kept.request.inputs[name]
        assert (tensor.name, tensor.dtype.name, tensor.shape) == (name, "INT32", (2, 2))


def test_parameters_of_a_response_reach_the_client(seam):
    _, instance = seam.faked()
    with_some, without = seam.infer(), seam.infer()
    seam.run()
    parameters = {"a": 1, "b": "text", "c": False, "d": 1.5}
    answers = [
        Outcome(0, InferResponse("m", "1", "", [], parameters)),
        Outcome(1, InferResponse("m", "1", "", [])),
    ]
    instance.report(instance.running[0], answers)
    seam.run()

    assert with_some.response.parameters == parameters
    assert without.response.parameters is None


def test_strings_are_the_same_on_both_sides(seam):
    def upper(requests):
        return [{"out": np.char.upper(request["in"].astype(bytes))} for request in requests]

    seam.bind(
        upper,
        [Tensor(name="in", dtype=object, shape=(-1,))],
        [Tensor(name="out", dtype=object, shape=(-1,))],
        batching=False,
    )
    words = np.array([b"", b"one", "zwölf".encode(), b"x" * 5000], object)
    call = seam.infer(inputs={"in": to_tensor("in", words)})
    seam.until(lambda: call.is_over)

    assert to_arrays(call.response)["out"].tolist() == [bytes(each).upper() for each in words]


def test_empty_tensors_are_answered(seam):
    seam.bind(
        lambda requests: [{"out": request["in"]} for request in requests],
        [Tensor(name="in", dtype=np.float32, shape=(-1, 3))],
        [Tensor(name="out", dtype=np.float32, shape=(-1, 3))],
        batching=False,
    )
    call = seam.infer(inputs={"in": to_tensor("in", np.empty((0, 3), np.float32))})
    seam.until(lambda: call.is_over)

    assert to_arrays(call.response)["out"].shape == (0, 3)


# Refusals


@pytest.mark.parametrize(
    "fields, error",
    [
        ({"model_name": "n"}, "Request for unknown model: 'n' is not found"),
        ({"model_version": "9"}, "Request for unknown model: 'm' version 9 is not found"),
        (
            {"model_version": "x"},
            (
                "failed to get model version from specified version string 'x' "
                "(details: stol), version should be an integral value > 0"
            ),
        ),
        (
            {"inputs": {}},
            (
                "[request id: <id_unknown>] expected 2 inputs but got 0 inputs for model 'm'. Got "
                "input(s) [], but missing required input(s) ['x','y']. Please provide all required "
                "input(s)."
            ),
        ),
    ],
)
def test_wrong_request_is_refused_at_once(seam, fields, error):
    seam.doubling()
    call = seam.infer(**fields)

    assert call.error == f"refused: {error}"


def test_model_that_cannot_serve_refuses_with_its_reason(seam):
    model, _ = seam.doubling()
    model.give_up("it broke\nwith a traceback")
    seam.run()
    by_name, by_version = seam.infer(), seam.infer(model_version="1")

    reason = "(version 1: it broke)"
    assert by_name.error == (
        f"refused: Request for unknown model: 'm' has no available versions {reason}"
    )
    assert by_version.error == (
        f"refused: Request for unknown model: 'm' version 1 is not at ready state {reason}"
    )


def test_reason_that_utf8_cannot_encode_is_told(seam):
    model, _ = seam.doubling()
    model.give_up("no file '\udcff'")
    seam.run()
    call = seam.infer()

    assert "no file '" in call.error


def test_full_queue_refuses(seam):
    policy = QueuePolicySpec(max_queue_size=1)
    _, (instance,) = seam.doubling(
        **ONE_AT_A_TIME, batcher=BatcherSpec(default_queue_policy=policy)
    )
    running = seam.infer()
    seam.run()
    waiting, refused = seam.infer(), seam.infer(id="seven")
    seam.run()

    assert refused.error == "refused: [request id: seven] Exceeds maximum queue size"
    assert type(refused.sink.errors[0]) is UnavailableError
    for _ in range(2):
        instance.double()
        seam.run()
    assert (running.is_over, waiting.is_over) == (True, True)


def test_request_ends_when_its_queue_timeout_is_over(seam):
    policy = QueuePolicySpec(default_timeout_us=10**8, allow_timeout_override=True)
    _, (instance,) = seam.doubling(
        **ONE_AT_A_TIME, batcher=BatcherSpec(default_queue_policy=policy)
    )
    running = seam.infer()
    seam.run()
    late = seam.infer(timeout_us=1000)
    seam.until(lambda: late.is_over)
    instance.double()
    seam.run()

    assert late.error == "Request timeout expired"
    assert running.values == doubled([1, 2])


def test_request_of_a_higher_priority_runs_first(seam):
    batcher = BatcherSpec(priority_levels=2, default_priority_level=2)
    _, (instance,) = seam.doubling(**ONE_AT_A_TIME, batcher=batcher)
    seam.infer(name="running")
    seam.run()
    seam.infer(name="ordinary")
    seam.infer(name="urgent", priority=1)
    seam.run()
    for _ in range(3):
        instance.double()
        seam.run()

    assert seam.log == ["running", "urgent", "ordinary"]


def test_answers_keep_the_order_of_requests_if_the_model_says_so(seam):
    _, instances = seam.doubling(
        instances=2, **ONE_AT_A_TIME, batcher=BatcherSpec(preserve_ordering=True)
    )
    first, second = seam.infer(name=1), seam.infer(name=2)
    seam.run()
    instances[1].double()
    seam.run()
    assert seam.log == []
    instances[0].double()
    seam.run()

    assert seam.log == [1, 2]
    assert (first.is_over, second.is_over) == (True, True)


# Errors


def test_error_of_the_model_reaches_every_request_of_the_batch(seam):
    _, (instance,) = seam.doubling()
    calls = [seam.infer(), seam.infer()]
    seam.run()
    instance.fail()
    seam.run()

    assert [call.error for call in calls] == ["no", "no"]
    assert type(calls[0].sink.errors[0]) is InternalError


def test_error_that_utf8_cannot_encode_still_ends_the_request(seam):
    _, instance = seam.faked()
    call = seam.infer()
    seam.run()
    instance.fail(text="\udcff")
    seam.run()

    assert call.error in ("\udcff", "\\udcff")


def test_instance_that_dies_fails_its_requests(seam):
    _, (instance,) = seam.doubling()
    call = seam.infer()
    seam.run()
    instance.die()
    seam.run()

    assert call.error == "its process ended"


@pytest.mark.parametrize("failure", [UnavailableError("no room"), ValueError("odd")])
def test_batch_that_cannot_be_sent_fails_its_requests(seam, failure):
    _, (instance,) = seam.doubling()
    instance.refusal = failure
    call = seam.infer()
    seam.run()

    expected = "no room" if isinstance(failure, UnavailableError) else UNEXPECTED
    assert call.error == expected


def test_sink_that_fails_gets_an_error_and_others_their_answers(seam):
    class Failing(RecordingSink):
        def on_response(self, response, *, final):
            raise ValueError

    _, (instance,) = seam.doubling()
    before, failing, after = seam.infer(), seam.infer(sink=Failing()), seam.infer()
    seam.run()
    instance.double()
    seam.run()

    assert failing.error == UNEXPECTED
    assert before.values == after.values == doubled([1, 2])


# Cancellation


def test_cancelled_request_leaves_the_queue(seam):
    model, (instance,) = seam.doubling(**ONE_AT_A_TIME)
    running, waiting = seam.infer(), seam.infer()
    seam.run()
    waiting.inference.cancel()
    waiting.inference.cancel()
    seam.run()

    assert waiting.error == ""
    assert type(waiting.sink.errors[0]) is CancelledError
    assert model.statistics.pending_count == 0
    instance.double()
    seam.run()
    assert running.values == doubled([1, 2])


def test_request_may_be_cancelled_in_the_iteration_that_submits_it(seam):
    _, (instance,) = seam.doubling(**ONE_AT_A_TIME)
    running = seam.infer()
    seam.run()
    call = seam.infer()
    call.inference.cancel()
    seam.run()

    assert call.error == ""
    instance.double()
    seam.run()
    assert running.is_over


def test_instance_hears_that_a_running_request_was_cancelled(seam):
    _, (instance,) = seam.doubling()
    call, other = seam.infer(), seam.infer([3, 4])
    seam.run()
    call.inference.cancel()
    call.inference.cancel()
    seam.run()

    assert instance.cancelled == [(1, 0)]
    instance.double()
    seam.run()
    assert (call.values, other.values) == (doubled([1, 2]), doubled([3, 4]))
    call.inference.cancel()
    seam.run()
    assert instance.cancelled == [(1, 0)]


# Traces


def test_request_is_traced_under_the_span_of_its_client(seam):
    _, (instance,) = seam.doubling()
    call = seam.infer(traceparent=PARENT)
    untraced = seam.infer(traceparent="")
    seam.run()
    instance.double()
    seam.run()

    assert call.values == untraced.values == doubled([1, 2])
    (spans,) = seam.spans.traces
    assert {f"{span.trace_id:032x}" for span in spans.values()} == {PARENT.split("-")[1]}


def test_refused_request_is_traced_like_any_other(seam):
    policy = QueuePolicySpec(max_queue_size=1)
    _, (instance,) = seam.doubling(
        **ONE_AT_A_TIME, batcher=BatcherSpec(default_queue_policy=policy)
    )
    seam.infer()
    seam.run()
    seam.infer()
    refused = seam.infer(traceparent=PARENT)
    seam.run()

    assert refused.error == "refused: [request id: <id_unknown>] Exceeds maximum queue size"
    assert len(seam.spans.traces) == 1
    for _ in range(2):
        instance.double()
        seam.run()


# The end


def test_exiting_engine_refuses_requests_and_finishes_those_that_it_has(seam):
    model, (instance,) = seam.doubling()
    accepted = seam.infer()
    seam.run()
    seam.engine.refuse()
    on_its_way = seam.infer()
    seam.run()
    later = seam.infer()

    assert seam.client.is_exiting
    assert on_its_way.error == later.error == "refused: Server exiting"
    assert model.state is VersionState.READY
    instance.double()
    seam.run()
    assert accepted.values == doubled([1, 2])


def test_requests_that_are_refused_are_noted_in_the_core(seam):
    model, _ = seam.doubling()
    wrong = seam.infer(inputs=doubling_inputs([1, 2, 3], batching=False), id="wrong")
    seam.client.report_refusal("nothing", "", "", InvalidArgumentError("no JSON"))
    seam.until(lambda: len(seam.engine.failures) == 2)

    kinds = {group.record.model: group.record for group in seam.engine.failures.listed()}
    assert wrong.error == f"refused: {kinds['m'].example.message}"
    assert kinds["m"].example.request_id == "wrong"
    assert kinds["m"].example.inputs
    assert kinds[""].example.model == "nothing"
    assert model.statistics.refused == 1
    assert seam.engine.failures.unknown_refusals == 1
