# SPDX-License-Identifier: Apache-2.0
"""Chunks of small requests run through the steps of an ensemble as columns."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.base.model_spec import SequenceSpec
from pytriton.runtime.executor.columns import make_members, shared_request
from pytriton.serving.engine.cache import ResponseStore
from pytriton.serving.engine.config import spec_from_config
from pytriton.serving.engine.engine import Engine
from pytriton.serving.engine.ensemble.ensemble_model import EnsembleModel
from pytriton.serving.engine.ensemble.ensemble_rules import complete_ensemble
from pytriton.serving.engine.ensemble.graph import make_graph
from pytriton.serving.engine.model import Model
from tests.chunks import JoinedChunk, PiecesChunk
from tests.column_rig import DoublingInstance, Ends, signature
from tests.engine.ensemble.ensemble_configs import ensemble_config, model_config, step
from tests.fakes import FakeClock, FakeLoop

INT = {"data_type": "TYPE_INT32", "dims": [2]}
XY = ["x", "y"]
CHAIN = (
    step("a", {"x": "x", "y": "y"}, {"x": "t", "y": "u"}),
    step("b", {"x": "t", "y": "x"}, {"x": "X", "y": "Y"}),
)


class Scene:
    """An ensemble of two models that double their inputs; y of the second is x of the client."""

    def __init__(
        self,
        steps: Sequence[Any] = CHAIN,
        *,
        max_batch_size: int = 8,
        cache: ResponseStore | None = None,
        **fields: Any,
    ) -> None:
        self.clock = FakeClock()
        self.loop: Any = FakeLoop(self.clock)
        self.engine = Engine()
        self.instances: dict[str, DoublingInstance] = {}
        configs = {}
        for name in ("a", "b"):
            config = model_config(name, XY, XY, max_batch_size=max_batch_size, **INT)
            config.dynamic_batching.SetInParent()
            configs[name] = config
            model = Model(spec_from_config(config, 1), self.loop)
            self.instances[name] = DoublingInstance(name, model)
            model.add_instance(self.instances[name])  # type: ignore[arg-type]  a fake
            self.engine.add(model)
            self.engine.set_ready(model)
        values = {"inputs": XY, "outputs": ["X", "Y"], "max_batch_size": max_batch_size, **fields}
        config = complete_ensemble(ensemble_config(*steps, **INT, **values), configs)
        graph = make_graph(config, configs)
        spec = spec_from_config(config, 1)
        self.model = EnsembleModel(spec, graph, self.engine, cache)
        self.engine.add(self.model)
        self.engine.set_ready(self.model)
        self.ends = Ends()
        self.expected: dict[int, list[dict[str, list[int]]]] = {}
        self._next = 0

    def submit(
        self, rows: list[int], *, joined: bool = True, outputs: tuple[str, ...] | None = None
    ) -> Any:
        """Submit a chunk whose members have these rows."""
        values = []
        for each in rows:
            values.append(list(range(self._next, self._next + 2 * each)))
            self._next += 2 * each
        cells = [np.array(each, np.int32).tobytes() for each in values]
        starts: Sequence[int] = [0, *accumulate(rows)]
        if len(set(rows)) == 1:
            starts = range(0, starts[-1] + 1, rows[0])
        kept = signature(outputs=outputs)
        if joined:
            column = memoryview(b"".join(cells))
            chunk: Any = JoinedChunk.of(kept, self.ends, (column, column), starts)
        else:
            chunk = PiecesChunk.of(kept, self.ends, (cells, cells), starts)
        shared = {
            each: shared_request("e", kept, self.clock.now_ns, rows=each) for each in set(rows)
        }
        members = make_members(chunk, self.model, [shared[each] for each in rows])
        self.expected[id(chunk)] = [
            {"Y": [2 * v for v in each], "X": [4 * v for v in each]} for each in values
        ]
        self.model.submit_chunk(members, self.clock.now_ns, is_complete=True)
        self.loop.run()
        return chunk

    def double(self, name: str) -> None:
        self.instances[name].double()
        self.loop.run()

    def finish(self) -> None:
        while busy := [each for each in self.instances.values() if each.running]:
            busy[0].double()
            self.loop.run()


@pytest.fixture
def scene():
    return Scene()


def test_chunk_runs_through_all_steps_as_columns(scene) -> None:
    chunk = scene.submit([1, 1, 1])
    scene.double("a")
    scene.double("b")

    assert scene.ends.of(chunk) == scene.expected[id(chunk)]
    assert scene.ends.runs == [(0, 3)]
    assert [len(each.frames) for each in scene.instances.values()] == [1, 1]
    assert not scene.model.is_busy


@pytest.mark.parametrize("joined", [True, False])
def test_chunk_that_batches_split_is_answered_in_parts(joined: bool) -> None:
    scene = Scene(max_batch_size=4)
    chunk = scene.submit([2, 1, 3, 4, 1], joined=joined)
    scene.finish()

    assert scene.ends.of(chunk) == scene.expected[id(chunk)]
    assert not scene.model.is_busy


def test_answers_to_several_chunks_share_the_next_batch(scene) -> None:
    scene.submit([1])  # occupies the instance
    chunks = [scene.submit([1, 1]), scene.submit([1, 1])]
    scene.double("a")
    scene.double("b")
    scene.double("a")
    scene.double("b")

    assert [len(frame.rows) for frame in scene.instances["b"].frames] == [1, 4]
    for chunk in chunks:
        assert scene.ends.of(chunk) == scene.expected[id(chunk)]


def test_only_needed_steps_run_for_requested_outputs() -> None:
    steps = (CHAIN[0], step("b", {"x": "t", "y": "t"}, {"x": "X", "y": "Y"}))
    scene = Scene(steps, outputs=["X", "Y", "u"])
    chunk = scene.submit([1, 1], outputs=("u",))
    scene.double("a")

    assert [set(each) for each in scene.ends.of(chunk)] == [{"u"}, {"u"}]
    assert scene.instances["b"].frames == []


def test_chunk_for_an_output_that_is_an_input_needs_no_step() -> None:
    steps = [step("a", {"x": "x", "y": "y"}, {"x": "X", "y": "Y"})]
    scene = Scene(steps, outputs=["x", "X", "Y"])
    chunk = scene.submit([1, 1], outputs=("x",))

    assert scene.ends.of(chunk) == [{"x": [0, 1]}, {"x": [2, 3]}]
    assert not scene.model.is_busy


def test_failed_batch_of_a_step_fails_its_members_with_the_name_of_the_ensemble(scene) -> None:
    chunk = scene.submit([1, 1])
    scene.double("a")
    scene.instances["b"].fail()

    assert scene.ends.of(chunk) == [("failed", "in ensemble 'e', no")] * 2
    assert scene.model.statistics.fail.count == 2
    assert not scene.model.is_busy


@pytest.mark.parametrize("name", ["a", "b"])
def test_member_that_a_step_answers_by_itself_continues_as_a_request(scene, name) -> None:
    chunk = scene.submit([1, 2])
    if name == "b":
        scene.double("a")
    scene.instances[name].double_by_item()
    scene.loop.run()
    scene.finish()

    assert scene.ends.of(chunk) == scene.expected[id(chunk)]
    assert not scene.model.is_busy


def test_member_that_does_not_fit_the_next_step_gets_its_refusal(scene) -> None:
    chunk = scene.submit([1, 1])
    frame, arrays = scene.instances["a"]._take(None)
    arrays = {name: np.zeros((2, 3), np.int32) for name in arrays}
    scene.instances["a"]._messages[frame.batch] = (frame, bytearray(8))
    scene.instances["a"]._take = lambda _: (frame, arrays)  # type: ignore[method-assign]
    scene.double("a")
    ends = scene.ends.of(chunk)

    assert all(kind == "failed" for kind, _ in ends)
    assert all("unexpected shape for input 'x' for model 'b'" in text for _, text in ends)


def test_statistics_count_each_member(scene) -> None:
    scene.submit([2, 2, 2])
    scene.finish()
    statistics = scene.model.statistics
    durations = statistics.inference_durations()

    assert statistics.inference_count == 6
    assert statistics.execution_count == durations.success.count == 3
    assert durations.compute_infer.count == durations.queue.count == 3
    assert [
        (each.batch_size, each.compute_infer.count) for each in statistics.batch_durations()
    ] == [(2, 3)]


def test_ensemble_takes_columns_if_its_steps_follow_one_another() -> None:
    beside = (
        step("a", {"x": "x", "y": "y"}, {"x": "X"}),
        step("b", {"x": "x", "y": "y"}, {"x": "Y"}),
    )

    assert Scene().model.takes_columns
    assert not Scene(beside).model.takes_columns
    assert not Scene(
        CHAIN, response_cache={"enable": True}, cache=ResponseStore(1 << 20)
    ).model.takes_columns


def test_chunk_continues_as_requests_if_a_step_is_gone(scene) -> None:
    chunk = scene.submit([1, 1])
    scene.engine.remove(scene.engine.lookup("b"))
    scene.double("a")

    assert (
        scene.ends.of(chunk)
        == [("failed", "in ensemble 'e', Request for unknown model: 'b' is not found")] * 2
    )


def test_ensemble_with_a_sequence_model_takes_no_columns(scene) -> None:
    step_model = scene.engine.lookup("b")
    assert isinstance(step_model, Model)
    step_model.spec = msgspec.structs.replace(step_model.spec, sequence=SequenceSpec())

    assert step_model.takes_columns
    assert not scene.model.takes_columns


def test_cancelled_member_leaves_the_queue_of_its_step(scene) -> None:
    first = scene.submit([1])  # occupies the instance
    chunk = scene.submit([1, 1, 1])
    chunk.members[1].cancel()
    cancelled = scene.ends.heard.pop((id(chunk), 1))
    queued = scene.engine.lookup("a").statistics.pending_count
    scene.finish()

    assert cancelled == [("failed", "")]
    assert queued == 2
    assert [len(frame.rows) for frame in scene.instances["a"].frames] == [1, 2]
    assert scene.ends.of(first) == scene.expected[id(first)]
    for index in (0, 2):
        assert scene.ends.heard[id(chunk), index] == [scene.expected[id(chunk)][index]]
    assert not scene.model.is_busy


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("by_item", [False, True])
def test_member_that_is_cancelled_while_its_step_runs_goes_no_further(
    name: str, by_item: bool
) -> None:
    scene = Scene()
    chunk = scene.submit([1, 2, 1])
    if name == "b":
        scene.double("a")
    instance = scene.instances[name]
    chunk.members[1].cancel()

    assert instance.cancelled == [(instance.running[0], 1)]
    assert not scene.ends.heard

    if by_item:
        instance.double_by_item()
    else:
        instance.double()
    scene.loop.run()
    scene.finish()
    expected = scene.expected[id(chunk)]

    assert scene.ends.of(chunk) == [expected[0], ("failed", ""), expected[2]]
    assert scene.model.statistics.fail.count == 1
    assert sum(sum(frame.rows) for frame in scene.instances["b"].frames) == (
        2 if name == "a" else 4
    )
    assert not scene.model.is_busy


@given(st.integers(0, 2**32))
def test_random_chunks_with_cancelled_members_end_once(seed: int) -> None:
    dice = random.Random(seed)
    scene = Scene(max_batch_size=dice.choice([2, 4, 8]))
    chunks: list[tuple[Any, list[Any]]] = []
    cancelled: set[tuple[int, int]] = set()
    for _ in range(dice.randint(1, 20)):
        busy = [each for each in scene.instances.values() if each.running]
        choice = dice.random()
        if busy and choice < 0.4:
            instance = dice.choice(busy)
            dice.choice([instance.double, instance.double, instance.double_by_item])()
            scene.loop.run()
        elif chunks and choice < 0.7:
            chunk, members = dice.choice(chunks)
            index = dice.randrange(len(members))
            if not members[index].is_over:
                cancelled.add((id(chunk), index))
                members[index].cancel()
                scene.loop.run()
        else:
            rows = [dice.randint(1, 2) for _ in range(dice.randint(1, 5))]
            chunk = scene.submit(rows, joined=dice.random() < 0.5)
            chunks.append((chunk, list(chunk.members)))
    scene.finish()

    for chunk, _ in chunks:
        for index, end in enumerate(scene.ends.of(chunk)):
            is_cancelled = (id(chunk), index) in cancelled
            assert end == (("failed", "") if is_cancelled else scene.expected[id(chunk)][index])
    assert not scene.model.is_busy
    assert not scene.model._columns._open
    assert not scene.model._columns._cancelled
