# SPDX-License-Identifier: Apache-2.0
"""Members of chunks on every kind of instance that takes them, over both kinds of channel."""

from __future__ import annotations

import time
from itertools import accumulate
from typing import Any

import numpy as np
import pytest

from pytriton.base import dtypes
from pytriton.base.columns import ColumnKind
from pytriton.base.messages import InferRequest, InferResponse, InferTensor
from pytriton.model_config import Tensor
from pytriton.runtime.executor.columns import (
    ChunkSignature,
    make_members,
    shared_request,
)
from pytriton.runtime.executor.inference import Inference
from pytriton.serving.engine.delivery import Answers
from tests.chunks import JoinedChunk, PiecesChunk
from tests.contract.benches import COUPLED, Bench, floats, to_arrays, to_tensor
from tests.contract.worker_bench import WORKERS, WorkerBench
from tests.fakes import RecordingSink

KINDS = [*COUPLED, *(kind for kind, (_, is_decoupled) in WORKERS.items() if not is_decoupled)]


class Recorder:
    """Delivers outcomes as a model does, and keeps what the members of chunks are answered."""

    costs = None  # of batches: nobody asks for them here

    def __init__(self) -> None:
        self.ends: dict[int, Any] = {}  # by index: arrays or an error
        self._answers = Answers(None, is_ordered=False)

    def shown(self, error, batch):
        return error

    def on_outcomes(self, instance, batch, outcomes, times_ns):
        self._answers.pass_on(batch, outcomes)

    def on_unavailable(self, instance):
        pass

    def on_died(self, instance, reason):
        pass

    def on_rows(self, chunk, first, end, outputs, row):
        starts = chunk.row_starts
        for index in range(first, end):
            at, until = (row + starts[each] - starts[first] for each in (index, index + 1))
            tensors = [
                InferTensor(
                    column.name,
                    column.dtype,
                    (until - at, *column.shape),
                    column.part(at, until),
                )
                for column in outputs
            ]
            self._end(index, to_arrays(InferResponse("m", "1", "", tensors)))

    def on_outcome(self, chunk, index, response, error, *, is_refused):
        assert not is_refused
        self._end(index, to_arrays(response) if error is None else error.message)

    def _end(self, index, end):
        assert index not in self.ends, "answered twice"
        self.ends[index] = end


class Columns:
    """An instance that gets chunks of one input `x`."""

    def __init__(self, bench, joined) -> None:
        self._bench = bench
        self._joined = joined
        self.recorder = Recorder()
        bench.instance.set_events(self.recorder)

    def infer(self, *arrays, wanted=None, others=()) -> list[Any]:
        """Run arrays as members of one chunk, before ordinary requests; returns all ends."""
        width = arrays[0].shape[1:]
        column = ColumnKind("x", dtypes.FP32, width, 4 * int(np.prod(width)))
        signature = ChunkSignature((column,), wanted)
        starts = [0, *accumulate(map(len, arrays))]
        cells = [array.tobytes() for array in arrays]
        if self._joined:
            columns = (memoryview(b"".join(cells)),)
            chunk: Any = JoinedChunk.of(signature, self.recorder, columns, starts)
        else:
            chunk = PiecesChunk.of(signature, self.recorder, (cells,), starts)
        requests = [shared_request("m", signature, 0, rows=len(array)) for array in arrays]
        batch = list(make_members(chunk, None, requests))
        sinks = []
        for other in others:
            sinks.append(RecordingSink())
            request = InferRequest("m", {"x": to_tensor("x", other)}, rows=len(other))
            batch.append(Inference(request, sinks[-1]))
        self._bench.instance.execute(batch, time.monotonic_ns())
        assert self._bench.until(lambda: all(each.is_over for each in batch))
        answers = [to_arrays(sink.responses[0]) for sink in sinks]
        return [self.recorder.ends[index] for index in range(len(arrays))] + answers


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(params=[True, False], ids=["joined", "pieces"])
def serve(request, channel, kind, served):
    def serve(function, outputs=None, **config) -> Columns:
        outputs = floats("y") if outputs is None else outputs
        inputs = floats("x")
        if kind in WORKERS:
            bench = WorkerBench(served.loop, kind, function, inputs, outputs, **config)
        else:
            bench = Bench(served.loop, COUPLED[kind](function), inputs, outputs, **config)
        return Columns(served.add(bench), request.param)

    return serve


def rows(count, size=3, start=0):
    return np.arange(start, start + count * size, dtype=np.float32).reshape(count, size)


def double(request):
    return {"y": request["x"] * 2}


def test_each_member_gets_its_rows(serve):
    sent = [rows(count, start=100 * count) for count in (1, 3, 2)]
    got = serve(double, max_batch_size=8).infer(*sent)

    for array, answer in zip(sent, got, strict=True):
        assert np.array_equal(answer["y"], 2 * array)


def test_member_shares_a_batch_with_an_ordinary_request(serve):
    sent = [rows(1), rows(2, start=50)]
    other = rows(2, start=200)
    got = serve(double, max_batch_size=8).infer(*sent, others=[other])

    for array, answer in zip([*sent, other], got, strict=True):
        assert np.array_equal(answer["y"], 2 * array)


def test_member_gets_only_the_outputs_that_it_wants(serve):
    def both(request):
        return {"y": request["x"], "z": -request["x"]}

    got = serve(both, floats("y", "z"), max_batch_size=8).infer(rows(1), rows(2), wanted=("z",))

    assert [list(answer) for answer in got] == [["z"], ["z"]]
    assert np.array_equal(got[1]["z"], -rows(2))


@pytest.mark.parametrize("size", [300, 3_000, 30_000])
def test_rows_in_shared_memory_reach_members(serve, size):
    sent = [rows(1, size, start) for start in range(40)]
    got = serve(double, max_batch_size=64).infer(*sent)

    for array, answer in zip(sent, got, strict=True):
        assert np.array_equal(answer["y"], 2 * array)


def test_strings_reach_members(serve):
    def name(request):
        return {"y": np.array([[b"%d" % value for value in row] for row in request["x"]], object)}

    strings = [Tensor(name="y", dtype=bytes, shape=(-1,))]
    got = serve(name, strings, max_batch_size=8).infer(rows(1), rows(2))

    assert got[1]["y"].tolist() == [[b"0", b"1", b"2"], [b"3", b"4", b"5"]]


def test_each_member_of_a_failed_batch_gets_the_error(serve):
    def fail(request):
        raise ValueError("not today")

    got = serve(fail, max_batch_size=8).infer(rows(1), rows(2))

    assert all("not today" in end for end in got)
