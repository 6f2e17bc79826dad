# SPDX-License-Identifier: Apache-2.0
"""Traces of calls that models make."""

from __future__ import annotations

import pytest

from pytriton.base.messages import TraceContext
from pytriton.serving.engine.observers import Observer, Watcher
from tests.fakes import RecordingSink
from tests.repository.calling import World

PARENT = TraceContext("00-1-2-01", "a=b")


class Trace(Watcher):
    """Keeps what it is told."""

    sees_executions = True

    def __init__(self):
        self.runs = []
        self.is_cancelled = False

    def answered(self, run):
        self.runs.append(run)

    def on_cancelled(self, index):
        self.is_cancelled = True

    @property
    def refusals(self):
        return [run.error for run in self.runs if run.is_refused]


class Tracing(Observer):
    """Traces calls, and keeps the traces with what they were begun for."""

    def __init__(self):
        self.calls = []

    def begun(self, members):
        return None

    def called(self, request, spec, parent):
        self.calls.append((spec.name, parent, Trace()))
        return self.calls[-1][-1]


@pytest.fixture
def tracing():
    return Tracing()


@pytest.fixture
def world(tracing):
    world = World()
    world.engine.observers.add("tracing", tracing)
    return world


def test_call_is_traced_under_the_request_that_it_is_made_for(world, tracing):
    sink = RecordingSink()
    (instance,) = world.add("add").instances
    world.call(None, "add", sink, trace=PARENT)
    instance.finish()

    ((name, parent, trace),) = tracing.calls
    assert (name, parent) == ("add", PARENT)
    assert len(trace.runs) == sink.final_count == 1


def test_call_of_an_untraced_request_is_not_traced(world, tracing):
    world.add("add")
    world.call(None, "add", RecordingSink())

    assert tracing.calls == []


def test_call_is_not_traced_where_nothing_is():
    world = World()
    (instance,) = world.add("add").instances
    world.call(None, "add", RecordingSink(), trace=PARENT)

    assert instance.running[0].inferences[0].trace is None


def test_trace_of_a_call_that_the_engine_refuses_hears_why(world, tracing):
    world.add("add")
    sink = RecordingSink()
    world.call(None, "add", sink, trace=PARENT, inputs={})

    ((_, _, trace),) = tracing.calls
    (error,) = trace.refusals
    assert "expected 1 inputs but got 0 inputs" in error.message
    assert sink.refusals == [error]


def test_trace_of_a_call_that_would_never_be_answered_hears_why(world, tracing):
    caller = world.ask(world.add("add"))
    world.call(caller, "add", RecordingSink(), trace=PARENT)

    ((_, _, trace),) = tracing.calls
    assert trace.is_cancelled
    assert "would never be answered" in trace.refusals[0].message
