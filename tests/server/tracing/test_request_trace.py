# SPDX-License-Identifier: Apache-2.0
"""What a trace notes while its request is served."""

from __future__ import annotations

import gc
import types
import weakref

import numpy as np
import pytest

from pytriton.base import dtypes
from pytriton.base.errors import CancelledError, InternalError, UnavailableError
from pytriton.base.messages import (
    DeviceBytes,
    ExecutionTimes,
    InferRequest,
    InferTensor,
    TraceContext,
)
from pytriton.runtime.executor.inference import Inference
from pytriton.serving.engine import observers
from pytriton.serving.engine.observers import Watch
from pytriton.serving.server.tracing import request_trace
from pytriton.serving.server.tracing.request_trace import TraceFacts, TraceWatcher, record_tensors
from tests.fakes import FakeClock, RecordingSink, response

TIMES = ExecutionTimes(queued_ns=1, started_ns=2, infer_start_ns=3, output_start_ns=4, ended_ns=5)


class Traced:
    """A request's trace, its sink, and what was said of it in the end."""

    def __init__(self):
        self.sink = RecordingSink()
        self.ended = []
        self.facts = TraceFacts(
            trace_id=0xAB,
            tracestate="a=b",
            number=1,
            protocol="GRPC",
            model_name="m",
            model_version=1,
            request_id="",
            infer_id=10,
            model_id=11,
            start_ns=0,
        )
        self.trace = self.trace_of(self.sink)

    def trace_of(self, sink, *, has_spans=True):
        exporter = types.SimpleNamespace(has_spans=has_spans, end=self.ended.append)
        return Watch(sink, [TraceWatcher({0: self.facts}, exporter)])

    def context(self, *, is_model_file):
        return context_of(self.trace, is_model_file=is_model_file)

    @property
    def events(self):
        return [name for name, _ in self.facts.events]


def context_of(trace, *, is_model_file):
    return dict(trace.contexts(0, 1, is_model_file=is_model_file)).get(0)


@pytest.fixture
def clock(monkeypatch):
    fake = FakeClock()
    for module in (request_trace, observers):
        monkeypatch.setattr(module, "_monotonic_ns", fake.monotonic_ns)
    return fake


@pytest.fixture
def traced(clock):
    return Traced()


def test_answer_is_passed_on_and_ends_the_trace(traced, clock):
    answer = response()
    traced.trace.on_response(answer, final=True)

    assert (traced.sink.responses, traced.sink.final_count) == ([answer], 1)
    assert traced.ended == [traced.facts]
    assert traced.facts.error is None
    assert traced.facts.answered_ns == traced.facts.end_ns == clock.now_ns
    assert traced.events == ["INFER_RESPONSE_COMPLETE", "GRPC_SEND_START", "GRPC_SEND_END"]


@pytest.mark.parametrize("end", ["on_response", "on_error", "on_refused"])
def test_request_that_ended_is_freed_without_garbage_collection(traced, end):
    class Exchange(RecordingSink):
        pass

    exchange = Exchange()
    trace = traced.trace_of(exchange)
    exchange.inference = Inference(InferRequest("m", {}), trace, trace)
    sink = exchange.inference.end()
    freed = weakref.ref(exchange)
    del exchange, trace
    gc.disable()
    try:
        if end == "on_response":
            sink.on_response(None, final=True)
        else:
            getattr(sink, end)(InternalError("broken"))
        del sink

        assert freed() is None
    finally:
        gc.enable()


def test_time_to_send_is_in_the_outer_span_only(traced, clock):
    class SlowSink:
        def on_response(self, answer, *, final):
            clock.now_ns += 50

    started_ns = clock.now_ns
    traced.trace_of(SlowSink()).on_response(None, final=True)

    assert (traced.facts.answered_ns, traced.facts.end_ns) == (started_ns, started_ns + 50)


def test_error_is_passed_on_and_told(traced):
    error = InternalError("no luck")
    traced.trace.on_error(error)

    assert (traced.sink.errors, traced.sink.final_count) == ([error], 1)
    assert [facts.error for facts in traced.ended] == ["no luck"]


def test_error_of_a_stream_that_goes_on_is_told_in_the_end(traced):
    traced.trace.on_error(InternalError("one bad answer"), final=False)
    assert traced.ended == []

    traced.trace.on_response(None, final=True)
    assert [facts.error for facts in traced.ended] == ["one bad answer"]


def test_request_that_was_given_up_failed_whatever_its_model_answered(traced):
    traced.trace.on_cancelled(0)
    traced.trace.on_response(response(), final=True)

    assert [facts.error for facts in traced.ended] == ["the request was cancelled"]


def test_responses_to_nobody_are_no_events(traced):
    traced.trace.on_cancelled(0)
    traced.trace.on_response(response(), final=True)

    assert traced.events == []


def test_error_without_a_text_is_one_of_a_request_that_was_given_up(traced):
    traced.trace.on_error(CancelledError(""))

    assert traced.facts.error == "the request was cancelled"


def test_refused_request_ends_and_its_sink_hears_why(traced):
    traced.trace.on_refused(UnavailableError("queue is full"))

    assert [facts.error for facts in traced.ended] == ["queue is full"]
    assert [error.message for error in traced.sink.refusals] == ["queue is full"]


def test_response_that_cannot_be_delivered_does_not_end_the_trace_before_its_error(traced):
    def fail(response, *, final):
        raise ValueError("it cannot be written")

    traced.sink.on_response = fail
    with pytest.raises(ValueError, match="it cannot be written"):
        traced.trace.on_response(response(), final=True)
    assert traced.ended == []

    traced.trace.on_error(InternalError("unexpected"))

    assert [facts.error for facts in traced.ended] == ["unexpected"]


def test_trace_ends_once(traced):
    traced.trace.on_refused(UnavailableError("stuck"))
    traced.trace.on_error(CancelledError(""))

    assert len(traced.ended) == 1


def test_long_stream_tells_of_its_first_responses_and_of_its_end(traced, clock):
    for _ in range(1000):
        traced.trace.on_response(response(), final=False)
    clock.now_ns += 5
    traced.trace.on_response(None, final=True)

    assert len(traced.facts.events) <= 128
    assert traced.facts.events[-1] == ("GRPC_SEND_END", clock.now_ns)
    assert len(traced.sink.responses) == 1001


def test_model_file_goes_on_under_the_span_of_the_model(traced):
    context = traced.context(is_model_file=True)

    assert context == TraceContext(f"00-{0xAB:032x}-{11:016x}-01", "a=b")
    assert traced.facts.backend_id == 0


def test_bound_callable_goes_on_under_a_span_of_its_own(traced):
    context = traced.context(is_model_file=False)

    assert traced.facts.backend_id
    assert context.traceparent == f"00-{0xAB:032x}-{traced.facts.backend_id:016x}-01"
    assert traced.context(is_model_file=False) == context


def test_without_spans_only_calls_of_model_files_go_on_in_the_trace(traced):
    trace = traced.trace_of(traced.sink, has_spans=False)

    assert context_of(trace, is_model_file=False) is None
    assert context_of(trace, is_model_file=True) == TraceContext(
        f"00-{0xAB:032x}-{11:016x}-01", "", is_internal=True
    )


def test_only_the_first_tensors_of_a_long_stream_are_recorded(traced, monkeypatch):
    monkeypatch.setattr(request_trace, "_MAX_TENSOR_BYTES", 2000)
    traced.facts.tensors = []
    for size in (1000, 1000, 1):
        record_tensors(traced.facts, "A", [InferTensor("y", dtypes.UINT8, (size,), bytes(size))])

    assert [len(each.data) for each in traced.facts.tensors] == [1000]


def test_tensors_in_gpu_memory_take_no_place_of_others_that_are_recorded(traced, monkeypatch):
    monkeypatch.setattr(request_trace, "_MAX_TENSOR_BYTES", 2000)
    traced.facts.tensors = []
    for data in (DeviceBytes.of_size(2000), bytes(10)):
        record_tensors(traced.facts, "A", [InferTensor("y", dtypes.UINT8, (len(data),), data)])

    assert [(each.data, each.shape) for each in traced.facts.tensors] == [
        (b"", (2000,)), (bytes(10), (10,))
    ]  # fmt: skip


def test_first_tensor_is_recorded_whatever_its_size(traced, monkeypatch):
    monkeypatch.setattr(request_trace, "_MAX_TENSOR_BYTES", 10)
    traced.facts.tensors = []
    record_tensors(traced.facts, "A", [InferTensor("y", dtypes.UINT8, (20,), bytes(20))])

    assert len(traced.facts.tensors) == 1


def test_tensors_of_responses_are_copied_if_they_are_recorded(traced):
    traced.facts.tensors = []
    data = bytearray(np.float32([1, 2]).tobytes())
    answer = response()
    answer.outputs.append(InferTensor("Y", dtypes.FP32, (2,), data))
    traced.trace.on_response(answer, final=True)
    data[:] = bytes(8)

    ((activity, name, dtype, shape, copied),) = traced.facts.tensors
    assert (activity, name, dtype, shape) == ("TENSOR_BACKEND_OUTPUT", "Y", dtypes.FP32, (2,))
    assert copied == np.float32([1, 2]).tobytes()


def test_responses_of_one_execution_prolong_it(traced):
    traced.trace.add_execution(0, 1, TIMES)
    last = ExecutionTimes(
        queued_ns=1, started_ns=2, infer_start_ns=6, output_start_ns=7, ended_ns=8
    )
    traced.trace.add_execution(0, 1, last)

    ((_, times),) = traced.facts.executions
    assert (times.infer_start_ns, times.output_start_ns, times.ended_ns) == (3, 7, 8)


def test_executions_are_told_apart_by_their_start_up_to_a_limit(traced):
    for start in range(1000):
        traced.trace.add_execution(0, 1, ExecutionTimes(1, start, 3, 4, 5))

    executions = traced.facts.executions
    assert [each.times_ns.started_ns for each in executions] == list(range(128))
    assert len({each.span_id for each in executions}) == 128
