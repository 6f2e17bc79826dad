# SPDX-License-Identifier: Apache-2.0
"""The spans that are made of a request's facts."""

from __future__ import annotations

from pytriton.base.messages import ExecutionTimes
from pytriton.serving.server.tracing.request_trace import TracedExecution, TraceFacts
from pytriton.serving.server.tracing.tracing import make_spans

TIMES = ExecutionTimes(
    queued_ns=110, started_ns=120, infer_start_ns=130, output_start_ns=140, ended_ns=150
)


def facts(**changes):
    known = {
        "trace_id": 1,
        "parent_id": 2,
        "tracestate": "a=b",
        "number": 7,
        "protocol": "HTTP",
        "model_name": "m",
        "model_version": 3,
        "request_id": "",
        "infer_id": 10,
        "model_id": 11,
        "start_ns": 100,
        "answered_ns": 160,
        "end_ns": 170,
        "executions": [TracedExecution(12, TIMES)],
    }
    return TraceFacts(**{**known, **changes})


def spans(offset_ns=0, **changes):
    return {span.name: span for span in make_spans(facts(**changes), offset_ns)}


def test_spans_of_a_request_lie_in_one_another():
    made = spans()

    assert list(made) == ["InferRequest", "m", "compute"]
    assert [(span.parent_id, span.span_id) for span in made.values()] == [
        (2, 10),
        (10, 11),
        (11, 12),
    ]
    assert [(span.start_ns, span.end_ns) for span in made.values()] == [
        (100, 170),
        (100, 160),
        (120, 150),
    ]


def test_spans_share_the_trace_and_its_state():
    made = spans().values()

    assert {(span.trace_id, span.tracestate, span.scope) for span in made} == {
        (1, "a=b", "triton-server")
    }


def test_only_the_outer_span_has_a_parent_elsewhere():
    assert [span.is_parent_remote for span in spans().values()] == [True, False, False]
    assert not spans(parent_id=0)["InferRequest"].is_parent_remote


def test_times_are_those_of_the_system():
    made = spans(offset_ns=1000, events=[("INFER_RESPONSE_COMPLETE", 160)])

    assert (made["compute"].start_ns, made["compute"].end_ns) == (1120, 1150)
    assert made["InferRequest"].events == [("INFER_RESPONSE_COMPLETE", 1160)]
    assert made["m"].events == [
        ("REQUEST_START", 1100),
        ("QUEUE_START", 1110),
        ("REQUEST_END", 1160),
    ]
    assert made["compute"].events == [
        ("COMPUTE_START", 1120),
        ("COMPUTE_INPUT_END", 1130),
        ("COMPUTE_OUTPUT_START", 1140),
        ("COMPUTE_END", 1150),
    ]


def test_request_that_was_not_executed_has_no_compute_span():
    made = spans(executions=[])

    assert list(made) == ["InferRequest", "m"]
    assert [name for name, _ in made["m"].events] == ["REQUEST_START", "REQUEST_END"]


def test_request_that_was_executed_twice_has_two_compute_spans():
    made = make_spans(facts(executions=[TracedExecution(12, TIMES), TracedExecution(13, TIMES)]), 0)

    assert [span.span_id for span in made if span.name == "compute"] == [12, 13]


def test_bound_callable_has_a_span_of_the_backend_around_it():
    backend = spans(backend_id=14)["python_backend_execute"]

    assert (backend.parent_id, backend.span_id, backend.scope) == (11, 14, "pbe")
    assert (backend.start_ns, backend.end_ns) == (120, 150)


def test_outer_span_begins_with_the_first_bytes_of_its_request():
    outer = spans(began_ns=80, received_ns=90, events=[("INFER_RESPONSE_COMPLETE", 160)])[
        "InferRequest"
    ]

    assert outer.start_ns == 80
    assert outer.events == [
        ("HTTP_RECV_START", 80),
        ("HTTP_RECV_END", 90),
        ("INFER_RESPONSE_COMPLETE", 160),
    ]


def test_error_is_in_every_span():
    assert {span.error for span in spans(error="no luck").values()} == {"no luck"}
    assert {span.error for span in spans().values()} == {None}


def test_call_of_a_model_has_no_span_of_a_front_end():
    made = spans(is_call=True, protocol="")

    assert list(made) == ["m", "compute"]
    assert (made["m"].parent_id, made["m"].is_parent_remote) == (2, True)
    assert "triton.trace_parent_id" not in made["m"].attributes


def test_span_of_a_model_has_the_cost_of_its_request():
    times = ExecutionTimes(110, 120, 130, 140, 150, 70, 5, 8, 16)
    attributes = spans(executions=[TracedExecution(12, times)])["m"].attributes

    costs = {name: value for name, value in attributes.items() if "cost" in name}
    assert costs == {
        "triton.cost.worker_ns": 70,
        "triton.cost.server_ns": 5,
        "triton.cost.queue_ns": 10,
        "triton.cost.bytes_in": 8,
        "triton.cost.bytes_out": 16,
    }
