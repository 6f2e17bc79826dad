# SPDX-License-Identifier: Apache-2.0
"""What the engine tells the traces of requests."""

from __future__ import annotations

from pytriton.base.messages import ExecutionTimes
from pytriton.runtime.executor.inference import Outcome
from tests.fakes import SECOND_NS, response


class RecordingTrace:
    """Keeps what it is told."""

    def __init__(self):
        self.executions = []
        self.cancelled_count = 0

    def trace_id(self, index):
        return "t"

    def add_execution(self, first, end, times_ns):
        self.executions.append(times_ns)

    def on_cancelled(self, index):
        self.cancelled_count += 1


def submit(scene, **fields):
    (made,) = scene.submit(trace=RecordingTrace(), **fields)
    return made.trace


def report(scene, *outcomes):
    batch = scene.instance.running[0]
    batch.is_traced = True  # as an instance says of traced requests
    batch.is_rescheduled = any(outcome.is_rescheduled for outcome in outcomes)
    scene.instance.report(batch, list(outcomes))
    scene.loop.run()


def test_trace_hears_when_its_request_was_executed(scene, clock):
    one = scene()
    start_ns = clock.now_ns
    trace = submit(one)
    clock.now_ns += SECOND_NS
    report(one, Outcome(0, response()))

    assert trace.executions == [
        ExecutionTimes(start_ns, start_ns, start_ns, start_ns, start_ns + SECOND_NS)
    ]
    one.check_all_answered()


def test_only_the_traced_requests_of_a_batch_have_traces(scene):
    one = scene()
    (first, second) = one.submit(2)
    trace = second.trace = RecordingTrace()
    report(one, Outcome(0, response()), Outcome(1, response()))

    assert first.trace is None
    assert len(trace.executions) == 1
    one.check_all_answered()


def test_request_that_was_answered_keeps_no_trace(scene):
    one = scene()
    (made,) = one.submit(trace=RecordingTrace())
    report(one, Outcome(0, response()))

    assert made.trace is None  # it has the sink, which has the request: a cycle keeps tensors


def test_request_that_was_refused_keeps_no_trace(scene):
    one = scene()
    (made,) = one.submit(trace=RecordingTrace())
    made.end()

    assert made.trace is None


def test_trace_hears_of_every_response_of_a_stream(scene):
    one = scene(decoupled=True)
    trace = submit(one)
    report(one, Outcome(0, response(), is_final=False))
    report(one, Outcome(0, response()))

    assert len(trace.executions) == 2


def test_trace_hears_of_every_execution_of_a_request(scene):
    one = scene(iterative=True)
    trace = submit(one)
    report(one, Outcome(0, is_rescheduled=True))
    report(one, Outcome(0, response()))

    assert len(trace.executions) == 2
    one.check_all_answered(repeated_executions=1)


def test_trace_hears_that_its_client_is_gone(scene):
    one = scene()
    trace = submit(one)
    for _ in range(2):
        one.model.cancel(one.inferences[0])

    assert trace.cancelled_count == 1
