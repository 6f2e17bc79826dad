# SPDX-License-Identifier: Apache-2.0
"""Members of a chunk are traced like requests that travel alone."""

from __future__ import annotations

import pytest

from pytriton.base.columns import Column, ColumnKind
from pytriton.base.dtypes import FP32
from pytriton.base.errors import CancelledError, InternalError
from pytriton.base.messages import ChunkOrigins, InferResponse, InferTensor
from pytriton.runtime.executor.columns import (
    ChunkSignature,
    make_members,
)
from pytriton.serving.engine.observers import Observers, Watch
from pytriton.serving.server.tracing.settings import TraceSettings
from pytriton.serving.server.tracing.trace_files import FileExporter, trace_text
from pytriton.serving.server.tracing.tracing import Tracing
from tests.chunks import PiecesChunk
from tests.fakes import RecordingSink, model_spec, request
from tests.server.tracing.trace_facts import TIMES

SIGNATURE = ChunkSignature((ColumnKind("x", FP32, (1,), 4),))
SPEC = model_spec(name="m", version=3, max_batch_size=8)


class Sink:
    """Ends the members that it hears of, as the sinks of protocols do."""

    def __init__(self):
        self.calls = []
        self.error = None
        self.left = 3

    def on_rows(self, chunk, first, end, *arguments):
        self._end(chunk, end - first, (first, end, *arguments))

    def on_outcome(self, chunk, *arguments, is_refused):
        self._end(chunk, 1, (*arguments, is_refused))

    def _end(self, chunk, count, call):
        self.calls.append(call)
        if self.error is not None:
            raise self.error
        self.left -= count
        if not self.left:
            chunk.members = []


class Owner:
    spec = SPEC

    def cancel(self, inference):
        inference.is_cancelled = True
        inference.chunk.trace.on_cancelled(inference.index)


class Rig:
    """A chunk of three requests, and the traces that were written of them."""

    def __init__(self, *settings, level="TIMESTAMPS"):
        config = ["triton,file=/nowhere", f"level={level}", "rate=1", *settings]
        self.timers = []
        exporter = FileExporter(self, lambda delay_s, call: self.timers.append(call))
        self.tracing = Tracing(TraceSettings.read(config), exporter)
        self.written = []
        self.sink = Sink()
        self.chunk = PiecesChunk.of(SIGNATURE, self.sink, [[b"aaaa", b"bbbb", b"cccc"]], range(4))
        self.chunk.origins = ChunkOrigins("HTTP", [0, 1, 2], [5, 5, 5])
        requests = [request(id=each, received_ns=100) for each in ("a", "", "c")]
        self.members = make_members(self.chunk, Owner(), requests)
        observers = Observers(None)
        observers.add("tracing", self.tracing)
        observers.begin_chunk(self.chunk, self.members[0].owner)

    def write(self, traces, size, number):
        self.written += traces

    def traces(self):
        for write in self.timers:
            write()
        return [trace[0] for trace in self.written]

    def answer(self, first, end):
        data = memoryview(b"AAAABBBBCCCC")
        outputs = [Column("y", FP32, (1,), 4, data)]
        self.chunk.sink.on_rows(self.chunk, first, end, outputs, first)

    def end(self, index, response=None, error=None, *, is_refused=False):
        self.chunk.sink.on_outcome(self.chunk, index, response, error, is_refused=is_refused)


def test_all_members_are_traced_with_the_times_of_their_chunk():
    rig = Rig()
    rig.chunk.trace.add_execution(0, 3, TIMES)
    rig.answer(0, 3)

    assert rig.sink.calls[0][:2] == (0, 3)
    traces = rig.traces()
    assert [(facts.number, facts.request_id) for facts in traces] == [(1, "a"), (2, ""), (3, "c")]
    assert len({facts.trace_id for facts in traces}) == 3
    for facts in traces:
        assert (facts.began_ns, facts.received_ns, facts.model_version) == (5, 100, 3)
        assert [each.times_ns for each in facts.executions] == [TIMES]
        names = [name for name, _ in facts.events]
        assert names == ["INFER_RESPONSE_COMPLETE", "HTTP_SEND_START", "HTTP_SEND_END"]
        assert facts.start_ns <= facts.answered_ns <= facts.end_ns
    assert trace_text(traces[:1]).count('{"id":1,') == 13


def test_sampling_counts_members():
    rig = Rig("rate=2")
    rig.answer(0, 3)

    assert [facts.number for facts in rig.traces()] == [1]
    assert rig.traces()[0].request_id == ""


def test_traces_of_a_limited_number_are_written_after_the_last_one():
    rig = Rig("count=2")
    rig.answer(0, 1)
    assert not rig.written

    rig.answer(1, 3)
    assert [trace[0].request_id for trace in rig.written] == ["a", ""]


def test_traces_with_a_log_frequency_are_written_in_files_of_that_many():
    rig = Rig("triton,log-frequency=2")
    rig.answer(0, 3)

    assert len(rig.written) == 2


def test_nothing_is_recorded_while_traces_are_off():
    rig = Rig(level="OFF")

    assert rig.chunk.sink is rig.sink
    assert rig.chunk.trace is None


def test_tensors_of_members_are_recorded():
    rig = Rig("level=TENSORS")
    rig.answer(0, 2)
    response = InferResponse("m", "3", "c", [InferTensor("y", FP32, (1, 1), b"CCCC")])
    rig.end(2, response)

    tensors = [
        [(each.name, each.shape, each.data) for each in facts.tensors] for facts in rig.traces()
    ]
    assert tensors == [
        [("x", (1, 1), 4 * letter.lower()), ("y", (1, 1), 4 * letter)]
        for letter in (b"A", b"B", b"C")
    ]


def test_cancelled_member_was_sent_nothing():
    rig = Rig()
    rig.members[1].cancel()
    rig.answer(0, 3)

    assert [(facts.error, len(facts.events)) for facts in rig.traces()] == [
        (None, 3), ("the request was cancelled", 0), (None, 3),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "error, text", [(InternalError("no"), "no"), (CancelledError(""), "the request was cancelled")]
)
def test_member_that_fails_alone_has_its_error(error, text):
    rig = Rig()
    rig.end(1, error=error)

    (facts,) = rig.traces()
    assert (facts.error, facts.number, len(facts.events)) == (text, 2, 3)


def test_refused_member_leaves_no_trace_in_files():
    rig = Rig()
    rig.end(0, error=InternalError("full"), is_refused=True)
    rig.answer(1, 3)

    assert rig.sink.calls[0] == (0, None, rig.sink.calls[0][2], True)
    assert [facts.number for facts in rig.traces()] == [2, 3]


def test_answers_that_could_not_be_sent_end_as_errors():
    rig = Rig()
    rig.sink.error = ValueError("full")
    with pytest.raises(ValueError, match="full"):
        rig.answer(0, 3)
    assert rig.traces() == []

    with pytest.raises(ValueError, match="full"):
        rig.end(0, error=InternalError("not sent"))
    assert [facts.error for facts in rig.traces()] == ["not sent"]


def test_calls_of_a_model_belong_to_the_trace_of_their_member():
    rig = Rig()
    assert list(rig.chunk.trace.contexts(0, 3, is_model_file=False)) == []
    contexts = dict(rig.chunk.trace.contexts(1, 2, is_model_file=True))
    assert list(contexts) == [1]

    call = Watch(RecordingSink(), [rig.tracing.called(request(), SPEC, contexts[1])])
    rig.answer(0, 3)
    assert [facts.number for facts in rig.traces()] == [1, 3]  # the call goes on

    call.on_response(None, final=True)
    rig.traces()
    trace = rig.written[-1]
    assert [facts.number for facts in trace] == [2, 4]
    assert trace[1].parent_number == 2


def test_ensembles_travel_as_columns_only_if_they_are_not_traced():
    ensemble = model_spec(name="m", platform="ensemble")
    tracing = Rig("rate=3").tracing  # its three members were counted

    assert [tracing.passes(ensemble) for _ in range(3)] == [True, True, False]
    assert tracing.passes(SPEC)
