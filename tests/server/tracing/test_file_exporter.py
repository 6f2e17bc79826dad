# SPDX-License-Identifier: Apache-2.0
"""The requests of a trace are gathered, and whole traces are written."""

from __future__ import annotations

import asyncio

import pytest

from pytriton.serving.server.tracing import trace_files
from pytriton.serving.server.tracing.settings import TraceSampling
from pytriton.serving.server.tracing.trace_files import FileExporter
from tests.server.tracing.trace_facts import facts


class Rig:
    """An exporter, the traces that it has written, and what it wants to be called for."""

    def __init__(self):
        self.written = []  # (number of the file, numbers of the requests of each trace)
        self.timers = []
        self.is_closed = False
        self.exporter = FileExporter(self, lambda delay_s, call: self.timers.append(call))

    def write(self, traces, size, number):
        traces = [[request.number for request in trace] for trace in traces]
        self.written.append((number, traces))

    async def close(self, timeout_s):
        self.is_closed = True

    def begin(self, number, sampling, **fields):
        made = facts(number, sampling=sampling, **fields)
        assert self.exporter.begin(made)
        return made

    def run(self, number, sampling, **fields):
        self.exporter.end(self.begin(number, sampling, **fields))


@pytest.fixture
def rig():
    return Rig()


def every(count=-1, **fields):
    return TraceSampling(1, count, **fields)


def call(of, number):
    return facts(number, trace_id=of.trace_id, parent_id=of.model_id, is_call=True, protocol="")


def test_traces_are_written_together_after_a_while(rig):
    sampling = every()
    rig.run(1, sampling)
    rig.run(2, sampling)
    assert rig.written == []

    (write,) = rig.timers
    write()
    assert rig.written == [(None, [[1], [2]])]

    rig.run(3, sampling)
    assert len(rig.timers) == 2


def test_files_are_numbered_over_all_settings(rig):
    first, second = every(log_frequency=1), every(count=1)
    rig.run(1, first)
    rig.run(2, second)
    rig.run(3, first)

    assert rig.written == [(0, [[1]]), (1, [[2]]), (2, [[3]])]


def test_trace_ends_with_the_last_of_its_calls(rig):
    root = rig.begin(1, every(log_frequency=1))
    inner, late = call(root, 2), call(root, 3)
    assert rig.exporter.begin(inner)
    rig.exporter.end(inner)
    assert rig.exporter.begin(late)
    rig.exporter.end(root)
    assert rig.written == []

    rig.exporter.end(late)
    assert rig.written == [(0, [[1, 2, 3]])]


def test_call_knows_the_request_that_made_it(rig):
    root = rig.begin(1, every(log_frequency=1))
    inner = call(root, 2)
    rig.exporter.begin(inner)
    innermost = call(root, 3)
    innermost.parent_id = inner.model_id
    rig.exporter.begin(innermost)

    assert (inner.parent_number, innermost.parent_number) == (1, 2)


def test_call_for_a_trace_that_is_over_is_not_traced(rig):
    root = rig.begin(1, every(log_frequency=1))
    rig.exporter.end(root)

    assert not rig.exporter.begin(call(root, 2))


@pytest.mark.parametrize("has_tensors", [True, False])
def test_calls_are_recorded_as_their_trace_is(rig, has_tensors):
    sampling = every(has_tensors=has_tensors, has_timestamps=not has_tensors)
    root = rig.begin(1, sampling)
    inner = call(root, 2)
    rig.exporter.begin(inner)

    expected = ([], False) if has_tensors else (None, True)
    assert (root.tensors, root.has_timestamps) == expected
    assert (inner.tensors, inner.has_timestamps) == expected


def test_refused_request_leaves_no_trace(rig):
    sampling = every(log_frequency=1)
    rig.run(1, sampling, is_refused=True)
    root = rig.begin(2, sampling)
    refused = call(root, 3)
    rig.exporter.begin(refused)
    refused.is_refused = True
    rig.exporter.end(refused)
    rig.exporter.end(root)

    assert rig.written == [(0, [[2]])]


def test_changed_setting_is_written_and_forgotten(rig):
    sampling = every()
    rig.run(1, sampling)
    rig.exporter.retire(sampling)
    assert rig.written == [(None, [[1]])]

    rig.exporter.retire(sampling)
    rig.timers[0]()
    assert len(rig.written) == 1


def test_trace_that_ends_after_its_setting_is_written_then(rig):
    sampling = every(log_frequency=9)
    root = rig.begin(1, sampling)
    rig.exporter.retire(sampling)
    assert rig.written == []

    rig.exporter.end(root)
    assert rig.written == [(0, [[1]])]


def test_the_rest_is_written_in_the_end(rig):
    rig.run(1, every(count=5))
    rig.run(2, every(log_frequency=5))
    rig.begin(3, every())
    asyncio.run(rig.exporter.close(1.0))

    assert rig.written == [(None, [[1]]), (0, [[2]])]
    assert rig.is_closed


def test_trace_with_very_many_calls_has_the_first_of_them(rig, monkeypatch):
    monkeypatch.setattr(trace_files, "_MAX_REQUESTS", 3)
    sampling = every(log_frequency=1)
    root = rig.begin(1, sampling)
    taken = [made for number in range(2, 6) if rig.exporter.begin(made := call(root, number))]
    for made in [*taken, root]:
        rig.exporter.end(made)

    assert rig.written == [(0, [[1, 2, 3]])]
