# SPDX-License-Identifier: Apache-2.0
"""What observers see of requests, alone and in chunks, and that they harm none."""

from __future__ import annotations

import pytest

from pytriton.base.columns import Column, ColumnKind
from pytriton.base.dtypes import FP32
from pytriton.base.errors import InternalError
from pytriton.base.messages import InferRequest, InferResponse, InferTensor, ResponseBurst
from pytriton.runtime.executor.columns import (
    ChunkSignature,
    make_members,
)
from pytriton.runtime.executor.inference import Inference
from pytriton.serving.engine.engine import Engine
from pytriton.serving.engine.observers import ORDER, Observer, Observers, Watcher
from tests.chunks import PiecesChunk
from tests.fakes import RecordingSink, model_spec, request, response

SIGNATURE = ChunkSignature((ColumnKind("x", FP32, (1,), 4),))


class Seen(Watcher):
    sees_executions = True

    def __init__(self):
        self.runs = []
        self.error = None

    def answered(self, run):
        if self.error is not None:
            raise self.error
        self.runs.append(run)


class Seer(Observer):
    """Watches all, and keeps what it has seen."""

    def __init__(self, log=None, name=""):
        self.log = [] if log is None else log
        self.name = name
        self.watchers = []
        self.inputs = []

    def begun(self, members):
        self.log.append(self.name)
        self.inputs.append([[each.data for each in members.inputs(0)], len(members)])
        self.watchers.append(Seen())
        return self.watchers[-1]


class Model:
    spec = model_spec(max_batch_size=8)


class ChunkSink:
    def __init__(self):
        self.calls = []

    def on_rows(self, chunk, first, end, outputs, row):
        self.calls.append((first, end))

    def on_outcome(self, chunk, index, response, error, *, is_refused):
        self.calls.append((index, error, is_refused))


def begin(*observers, sink=None):
    slot = Observers(lambda name, version: Model())
    for name, observer in zip(ORDER, observers, strict=False):
        slot.add(name, observer)
    sink = RecordingSink() if sink is None else sink
    inference = Inference(request(), sink)
    slot.begin(inference)
    return inference, sink


def begin_chunk(observer):
    slot = Observers(lambda name, version: None)
    slot.add(ORDER[0], observer)
    chunk = PiecesChunk.of(SIGNATURE, ChunkSink(), [[b"aaaa", b"bbbb", b"cccc"]], range(4))
    sink = chunk.sink
    make_members(chunk, Model(), request())
    slot.begin_chunk(chunk, Model())
    return chunk, sink


def test_observers_see_requests_in_the_order_of_the_list():
    log = []
    slot = Observers(lambda name, version: None)
    for name in reversed(ORDER):
        slot.add(name, Seer(log, name))
    slot.begin(Inference(request(), RecordingSink()))

    assert tuple(log) == ORDER


def test_engine_without_observers_leaves_the_sink_alone():
    slot, seer = Observers(lambda name, version: None), Seer()
    slot.add(ORDER[0], seer)
    slot.remove(ORDER[0])

    assert not slot.are_there


def test_answers_errors_and_refusals_are_passed_on_and_seen_once():
    seer = Seer()
    for end in ("response", "error", "refusal"):
        inference, sink = begin(seer)
        if end == "response":
            inference.sink.on_response(response(), final=True)
        elif end == "error":
            inference.sink.on_error(InternalError("no"))
        else:
            inference.sink.on_refused(InternalError("no"))
        assert sink.final_count == 1

    runs = [run for watcher in seer.watchers for run in watcher.runs]
    assert [(run.error is None, run.is_refused) for run in runs] == [
        (True, False), (False, False), (False, True),
    ]  # fmt: skip


def test_burst_comes_as_one_and_is_passed_on_as_its_sink_takes_it():
    seer = Seer()
    inference, sink = begin(seer)
    inference.sink.on_burst(ResponseBurst("m", "1", "", 3, []))

    (run,) = seer.watchers[0].runs
    assert (len(list(run.answers(0))), run.is_final) == (3, False)
    assert len(sink.responses) == 3


def test_answer_that_the_sink_does_not_take_is_not_seen():
    class Failing(RecordingSink):
        def on_response(self, answer, *, final):
            raise ValueError("it cannot be written")

    seer = Seer()
    inference, _ = begin(seer, sink=Failing())
    sink = inference.sink
    with pytest.raises(ValueError, match="cannot be written"):
        sink.on_response(response(), final=True)
    sink.on_error(InternalError("it cannot be written"))

    assert [run.error.message for run in seer.watchers[0].runs] == ["it cannot be written"]


def test_observer_that_fails_is_logged_once_and_harms_no_request(caplog):
    class Broken(Observer):
        def begun(self, members):
            raise ValueError("broken")

    failing, other = Seer(), Seer()
    inference, sink = begin(Broken(), failing, other)
    failing.watchers[0].error = ValueError("fails")
    inference.sink.on_response(response(), final=False)
    inference.sink.on_response(response(), final=True)

    assert sink.final_count == 1
    assert len(other.watchers[0].runs) == 2
    assert len(caplog.records) == 2


def test_members_of_a_chunk_are_seen_together_and_their_ends_as_runs():
    seer = Seer()
    chunk, sink = begin_chunk(seer)
    outputs = [Column("y", FP32, (1,), 4, memoryview(b"AAAABBBB"))]
    chunk.sink.on_rows(chunk, 0, 2, outputs, 0)
    chunk.sink.on_outcome(chunk, 2, None, InternalError("full"), is_refused=True)

    assert seer.inputs == [[[b"aaaa"], 3]]
    (answered, refused) = seer.watchers[0].runs
    assert [
        [(each.shape, bytes(each.data)) for each in tensors]
        for index in range(2)
        for tensors, _ in answered.answers(index)
    ] == [[((1, 1), b"AAAA")], [((1, 1), b"BBBB")]]
    assert (refused.first, refused.end, refused.is_refused) == (2, 3, True)
    assert sink.calls[0] == (0, 2)


def test_request_that_is_submitted_again_is_begun_once():
    engine, seer = Engine(), Seer()
    engine.observers.add(ORDER[0], seer)
    inference = Inference(InferRequest("m", {}), RecordingSink())
    engine.submit(inference)
    engine.submit_again(Inference(InferRequest("m", {}), RecordingSink()))

    assert len(seer.watchers) == 1
    assert seer.watchers[0].runs[0].is_refused


def test_parameters_of_an_answer_are_those_of_its_response():
    seer = Seer()
    inference, _ = begin(seer)
    tensor = InferTensor("y", FP32, (1,), bytes(4))
    inference.sink.on_response(InferResponse("m", "1", "", [tensor], {"a": 1}), final=True)

    ((tensors, parameters),) = seer.watchers[0].runs[0].answers(0)
    assert (tensors, parameters) == ([tensor], {"a": 1})
