# SPDX-License-Identifier: Apache-2.0
"""Traces of calls that models make."""

from __future__ import annotations

import pytest

from pytriton.base.messages import TraceContext
from tests.fakes import RecordingSink
from tests.repository.calling import World

PARENT = TraceContext("00-1-2-01", "a=b")


class Trace(RecordingSink):
    """A trace as the server makes them: the sink of its request."""

    def __init__(self, sink):
        super().__init__()
        self.sink = sink
        self.is_cancelled = False

    def on_response(self, response, *, final):
        super().on_response(response, final=final)
        self.sink.on_response(response, final=final)

    def on_cancelled(self, index):
        self.is_cancelled = True

    def on_refused(self, error):
        super().on_refused(error)
        self.sink.on_refused(error)


class Tracing:
    """Begins traces, and keeps them with what they were begun for."""

    def __init__(self):
        self.begun = []

    def begin(self, request, spec, parent, sink):
        trace = Trace(sink)
        self.begun.append((spec.name, parent, trace))
        return trace


@pytest.fixture
def tracing():
    return Tracing()


@pytest.fixture
def world(tracing):
    return World(begin_trace=tracing.begin)


def test_call_is_traced_under_the_request_that_it_is_made_for(world, tracing):
    sink = RecordingSink()
    (instance,) = world.add("add").instances
    world.call(None, "add", sink, trace=PARENT)
    instance.finish()

    ((name, parent, trace),) = tracing.begun
    assert (name, parent) == ("add", PARENT)
    assert trace.final_count == sink.final_count == 1


def test_call_of_an_untraced_request_is_not_traced(world, tracing):
    world.add("add")
    world.call(None, "add", RecordingSink())

    assert tracing.begun == []


def test_call_is_not_traced_where_nothing_is():
    world = World()
    (instance,) = world.add("add").instances
    world.call(None, "add", RecordingSink(), trace=PARENT)

    assert instance.running[0].inferences[0].trace is None


def test_trace_of_a_call_that_the_engine_refuses_hears_why(world, tracing):
    world.add("add")
    sink = RecordingSink()
    world.call(None, "add", sink, trace=PARENT, inputs={})

    ((_, _, trace),) = tracing.begun
    (error,) = trace.refusals
    assert "expected 1 inputs but got 0 inputs" in error.message
    assert sink.refusals == [error]


def test_trace_of_a_call_that_would_never_be_answered_hears_why(world, tracing):
    caller = world.ask(world.add("add"))
    world.call(caller, "add", RecordingSink(), trace=PARENT)

    ((_, _, trace),) = tracing.begun
    assert trace.is_cancelled
    assert "would never be answered" in trace.refusals[0].message
