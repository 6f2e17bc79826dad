# SPDX-License-Identifier: Apache-2.0
"""Which requests become one chunk, when it is submitted, and what happens to cancelled ones."""

from __future__ import annotations

import gc
import weakref

import pytest

from pytriton.base import dtypes
from pytriton.base.columns import ColumnKind
from pytriton.runtime.executor.columns import ChunkSignature
from pytriton.serving.engine.observers import Observer, Observers
from pytriton.serving.server.api.gatherer import MAX_MEMBERS, Gatherer, Iterations
from tests.fakes import FakeClock, FakeLoop, model_spec

SIGNATURE = ChunkSignature(
    (ColumnKind("x", dtypes.INT32, (1,), 4), ColumnKind("y", dtypes.INT32, (1,), 4))
)


class FakeModel:
    """Keeps the chunks that it gets."""

    def __init__(self) -> None:
        self.spec = model_spec(max_batch_size=8)
        self.chunks: list = []
        self.complete: list[bool] = []
        self.cancelled: list[int] = []
        self.prefers_columns = False
        self.quotas = None
        self.starts_at = 0  # waiting requests with which it would start at once; 0: never

    def submit_chunk(self, inferences, now_ns, *, is_complete=False):
        (chunk,) = {inference.chunk for inference in inferences}
        assert list(inferences) == list(chunk.members)
        self.chunks.append(chunk)
        self.complete.append(is_complete)

    def is_start_due(self, count):
        return 0 < self.starts_at <= count

    def cancel(self, inference):
        self.cancelled.append(inference.index)


class FakeEngine:
    """Is behind when it is asked first; requests to the models in `full` wait for answers."""

    def __init__(self, rounds_behind: int = 0) -> None:
        self.rounds_behind = rounds_behind
        self.observers = Observers(None)
        self.full: list = []
        self.after_answers = lambda: None

    def call_after_answers(self, models, callback):
        if not models or any(model not in self.full for model in models):
            return False
        self.after_answers = callback
        return True

    @property
    def is_behind(self):
        is_behind = self.rounds_behind > 0
        self.rounds_behind -= is_behind
        return is_behind


@pytest.fixture
def clock(monkeypatch):
    fake = FakeClock()
    monkeypatch.setattr("pytriton.serving.server.api.gatherer.monotonic_ns", fake.monotonic_ns)
    return fake


@pytest.fixture
def loop(clock):
    return FakeLoop(clock)


def is_alone(gatherer: Gatherer, model: FakeModel) -> bool:
    """Counts a request; whether it is better not gathered."""
    gatherer.count()
    return gatherer.is_alone(model)


def gather(gatherer: Gatherer, model: FakeModel, *callers: object) -> list:
    """Adds requests whose inputs are named after their callers."""
    places = []
    for caller in callers:
        assert not is_alone(gatherer, model)
        places.append(gatherer.add(model, (b"x%r" % caller, b"y%r" % caller), caller))
    return places


@pytest.fixture
def model():
    return FakeModel()


def test_requests_of_an_iteration_become_one_chunk(model, loop):
    gatherer = Gatherer(Iterations(FakeEngine(), loop), SIGNATURE, 2, "", (0, 1), None)
    gather(gatherer, model, 1, 2, 3)
    assert not model.chunks

    loop.run()

    (chunk,) = model.chunks
    assert model.complete == [True]
    assert chunk.callers == [1, 2, 3]
    assert list(chunk.row_starts) == [0, 2, 4, 6]
    assert chunk.pieces(0, 0, 2) == [b"x1", b"x2"]
    assert chunk.pieces(1, 1, 3) == [b"y2", b"y3"]
    assert {member.request.rows for member in chunk.members} == {2}


def test_members_know_the_version_that_the_client_wants(model, loop):
    gatherer = Gatherer(Iterations(FakeEngine(), loop), SIGNATURE, 1, "01", (0, 1), None)
    gather(gatherer, model, 1)

    loop.run()

    assert model.chunks[0].members[0].request.model_version == "01"


def test_columns_are_in_the_order_of_the_model(model, loop):
    gatherer = Gatherer(Iterations(FakeEngine(), loop), SIGNATURE, 1, "", (1, 0), None)
    gather(gatherer, model, 1, 2)

    loop.run()

    assert model.chunks[0].pieces(0, 0, 2) == [b"y1", b"y2"]


def test_time_of_a_chunk_is_the_mean_of_its_requests(model, loop, clock):
    gatherer = Gatherer(Iterations(FakeEngine(), loop), SIGNATURE, 1, "", (0, 1), None)
    start_ns = clock.now_ns
    gather(gatherer, model, 1)
    clock.now_ns += 1000
    gather(gatherer, model, 2)

    loop.run()

    assert model.chunks[0].members[1].request.received_ns == start_ns + 500


def test_chunk_is_submitted_as_soon_as_its_model_would_start(model, loop):
    model.starts_at = 18
    gatherer = Gatherer(Iterations(FakeEngine(), loop), SIGNATURE, 1, "", (0, 1), None)

    gather(gatherer, model, *range(25))
    early = [len(chunk.callers) for chunk in model.chunks]
    loop.run()

    assert early == [20]
    assert [len(chunk.callers) for chunk in model.chunks] == [20, 5]
    assert model.complete == [False, True]


def test_chunk_has_a_largest_size(model, loop):
    gatherer = Gatherer(Iterations(FakeEngine(), loop), SIGNATURE, 1, "", (0, 1), None)

    gather(gatherer, model, *range(MAX_MEMBERS + 1))
    loop.run()

    assert [len(chunk.callers) for chunk in model.chunks] == [MAX_MEMBERS, 1]


def test_last_chunk_of_a_model_in_an_iteration_is_complete(loop):
    iterations = Iterations(FakeEngine(), loop)
    first, second, third = (Gatherer(iterations, SIGNATURE, 1, "", (0, 1), None) for _ in range(3))
    model, other = FakeModel(), FakeModel()

    gather(first, model, 1)
    gather(second, other, 2)
    gather(third, model, 3)
    loop.run()

    assert [chunk.callers for chunk in model.chunks] == [[1], [3]]
    assert model.complete == [False, True]
    assert other.complete == [True]


def test_requests_of_all_models_wait_for_an_engine_that_is_behind(loop):
    engine = FakeEngine(rounds_behind=2)
    iterations = Iterations(engine, loop)
    models = FakeModel(), FakeModel()
    alone, *gatherers = (Gatherer(iterations, SIGNATURE, 1, "", (0, 1), None) for _ in range(3))
    alone.count()  # a request that is not gathered does not end the wait of others
    for gatherer, model in zip(gatherers, models, strict=True):
        gather(gatherer, model, 1)

    loop.run()

    assert engine.rounds_behind == 0
    assert [model.complete for model in models] == [[True], [True]]


def test_engine_that_stays_behind_gets_the_requests_all_the_same(loop):
    engine, model = FakeEngine(rounds_behind=100), FakeModel()
    gatherer = Gatherer(Iterations(engine, loop), SIGNATURE, 1, "", (0, 1), None)
    gather(gatherer, model, 1, 2)

    loop.run()

    assert [chunk.callers for chunk in model.chunks] == [[1, 2]]
    assert 90 < engine.rounds_behind < 100


def test_requests_that_come_before_the_next_answers_share_a_chunk(loop):
    engine, model = FakeEngine(), FakeModel()
    engine.full = [model]
    gatherer = Gatherer(Iterations(engine, loop), SIGNATURE, 1, "", (0, 1), None)
    gather(gatherer, model, 1, 2)
    loop.run()
    gather(gatherer, model, 3)
    loop.run()
    assert model.chunks == []

    engine.after_answers()

    assert [chunk.callers for chunk in model.chunks] == [[1, 2, 3]]
    gather(gatherer, model, 4)
    engine.full = []
    loop.run()
    assert [chunk.callers for chunk in model.chunks] == [[1, 2, 3], [4]]


def test_request_to_a_model_without_answers_to_wait_for_ends_the_wait(loop):
    engine, full, idle = FakeEngine(), FakeModel(), FakeModel()
    engine.full = [full]
    iterations = Iterations(engine, loop)
    first, second = (Gatherer(iterations, SIGNATURE, 1, "", (0, 1), None) for _ in range(2))
    gather(first, full, 1)
    loop.run()
    gather(second, idle, 2)

    loop.run()
    engine.after_answers()  # there is nothing left to submit

    assert [chunk.callers for chunk in full.chunks] == [[1]]
    assert [chunk.callers for chunk in idle.chunks] == [[2]]


def test_models_do_not_share_a_chunk(loop):
    old, new = FakeModel(), FakeModel()
    gatherer = Gatherer(Iterations(FakeEngine(), loop), SIGNATURE, 1, "", (0, 1), None)

    gather(gatherer, old, 1)
    gather(gatherer, new, 2)
    loop.run()

    assert [chunk.callers for chunk in old.chunks] == [[1]]
    assert [chunk.callers for chunk in new.chunks] == [[2]]


@pytest.mark.parametrize("prefers_columns", [False, True])
def test_request_after_an_iteration_with_one_is_alone(model, loop, prefers_columns):
    model.prefers_columns = prefers_columns
    gatherer = Gatherer(Iterations(FakeEngine(), loop), SIGNATURE, 1, "", (0, 1), None)
    seen = []
    for count in (1, 1, 3, 2, 1, 1):
        seen.append([is_alone(gatherer, model) for _ in range(count)])
        loop.run()

    alone = not prefers_columns
    assert seen == [[False], [alone], [alone, False, False], [False, False], [False], [alone]]
    assert not model.chunks


@pytest.mark.parametrize("is_submitted", [False, True])
def test_cancelled_request_is_cancelled_at_its_model(model, loop, is_submitted):
    gatherer = Gatherer(Iterations(FakeEngine(), loop), SIGNATURE, 1, "", (0, 1), None)
    places = gather(gatherer, model, 1, 2, 3)
    if is_submitted:
        loop.run()

    gatherer.cancel(*places[1])
    loop.run()

    assert model.cancelled == [1]
    assert [chunk.callers for chunk in model.chunks] == [[1, 2, 3]]


def test_answered_chunk_is_freed_without_garbage_collection(model, loop):
    gatherer = Gatherer(Iterations(FakeEngine(), loop), SIGNATURE, 1, "", (0, 1), None)
    gather(gatherer, model, FakeModel(), FakeModel())
    loop.run()
    chunk = model.chunks.pop()
    caller = weakref.ref(chunk.callers[0])

    gc.disable()
    try:
        chunk.end(1)
        gatherer.cancel(chunk, 1)
        chunk.end(1)
        gatherer.cancel(chunk, 1)
        del chunk
        is_freed = caller() is None
    finally:
        gc.enable()

    assert is_freed
    assert model.cancelled == [1]


def test_observers_see_chunks_before_they_are_submitted(loop):
    engine, seen = FakeEngine(), []
    gatherer = Gatherer(Iterations(engine, loop), SIGNATURE, 1, "", (0, 1), None)
    model = FakeModel()

    class Seer(Observer):
        def begun(self, members):
            assert not model.chunks
            seen.append((members.callers, len(members)))

    engine.observers.add("tracing", Seer())
    gather(gatherer, model, 1, 2)
    loop.run()

    assert seen == [([1, 2], 2)]
    assert len(model.chunks) == 1


def test_requests_have_the_name_that_means_one_model(model, loop):
    model.spec = model_spec(max_batch_size=8, namespace="team_a")
    gatherer = Gatherer(Iterations(FakeEngine(), loop), SIGNATURE, 1, "", (0, 1), None)
    gather(gatherer, model, 1, 2)
    loop.run()

    (chunk,) = model.chunks
    assert {member.request.model_name for member in chunk.members} == {"team_a::m"}
