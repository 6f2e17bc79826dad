# SPDX-License-Identifier: Apache-2.0
"""Requests that travel as columns: batches, answers, refusals and cancellation of members."""

from __future__ import annotations

import random

import pytest

from pytriton.base.dtypes import FP32
from pytriton.base.errors import UNEXPECTED, InvalidArgumentError, UnavailableError
from pytriton.base.model_spec import BatcherSpec, ModelTensor, QueuePolicySpec
from pytriton.serving.engine.cache import ResponseStore
from pytriton.serving.engine.model import Model
from tests.column_rig import ColumnScene, random_details, values_of
from tests.fakes import FakeLoop, model_spec

KINDS = pytest.mark.parametrize("joined", [True, False], ids=["joined", "pieces"])


@pytest.fixture
def columns(clock):
    """Makes scenes; settings are those of `ColumnScene` and `model_spec`."""

    def make(**settings):
        return ColumnScene(clock, **settings)

    return make


def test_member_gets_only_the_outputs_that_it_wants(columns):
    scene = columns(max_batch_size=8)
    some = scene.submit_chunk([1, 2], wanted=("y",), runs=False)
    every = scene.submit_chunk([1])

    scene.instance.double()

    assert scene.instance.frames[0].outputs == {0: ["y"], 1: ["y"]}
    assert scene.ends.of(some) == scene.doubled(some)
    assert scene.ends.of(every) == scene.doubled(every)
    assert list(scene.doubled(some)[0]) == ["y"]


def test_members_beyond_the_queue_size_are_refused(columns):
    policy = QueuePolicySpec(max_queue_size=2)
    scene = columns(max_batch_size=1, batcher=BatcherSpec(default_queue_policy=policy))
    busy = scene.submit_chunk([1])
    chunk = scene.submit_chunk([1, 1, 1])

    scene.instance.double()
    scene.instance.double()
    scene.instance.double()

    text = "[request id: <id_unknown>] Exceeds maximum queue size"
    assert scene.ends.of(busy) == scene.doubled(busy)
    assert scene.ends.of(chunk) == [*scene.doubled(chunk)[:2], ("refused", text)]
    assert scene.model.statistics.fail.count == 0
    assert not scene.model.is_busy


def test_cancelled_member_in_the_queue_ends_and_its_neighbours_run(columns):
    scene = columns(max_batch_size=4)
    scene.submit_chunk([4])
    chunk = scene.submit_chunk([1, 1, 1])
    scene.members[1][1].cancel()
    scene.instance.double()
    scene.instance.double()

    first, cancelled, last = scene.ends.of(chunk)
    assert [first, last] == scene.doubled(chunk)[::2]
    assert cancelled == ("failed", "")
    assert scene.ends.runs == [(0, 1), (0, 1), (2, 3)]
    assert scene.model.statistics.fail.count == 1


@pytest.mark.parametrize(
    "failure, text", [(ValueError("x"), UNEXPECTED), (InvalidArgumentError("big"), "big")]
)
def test_sink_that_raises_gets_errors_and_hurts_nobody_else(columns, failure, text):
    scene = columns(max_batch_size=8)
    ends = scene.ends
    chunk = scene.submit_chunk([1, 1], runs=False)
    other = scene.submit(1)
    scene.loop.run()
    ends.failure = failure
    scene.instance.double()

    assert ends.of(chunk) == [("failed", text)] * 2
    assert len(other.responses) == 1
    assert not scene.model.is_busy


def test_statistics_count_members_like_other_requests(columns, clock):
    began_ns = clock.now_ns

    def run(submit):
        clock.now_ns = began_ns
        scene = columns(max_batch_size=8)
        submit(scene)
        clock.now_ns += 3000
        scene.instance.double()
        snapshot = scene.model.statistics.snapshot()
        return {name: value for name, value in snapshot.items() if name != "last_inference"}

    def ordinary(scene):
        clock.now_ns += 1000
        for rows in (1, 2, 1):
            scene.submit(rows)
        clock.now_ns += 2000
        scene.loop.run()

    def chunk(scene):
        clock.now_ns += 1000
        scene.submit_chunk([1, 2, 1], runs=False)
        clock.now_ns += 2000
        scene.loop.run()

    assert run(chunk) == run(ordinary)


def test_complete_chunk_starts_at_once(columns):
    scene = columns(max_batch_size=8)

    scene.submit_chunk([1, 1], runs=False, is_complete=True)
    assert len(scene.instance.frames) == 1


def test_batch_is_held_back_for_members_of_later_chunks(columns):
    scene = columns(max_batch_size=8, batcher=BatcherSpec(max_queue_delay_us=1000))
    scene.submit_chunk([1, 2])
    scene.submit_chunk([1])
    assert scene.instance.frames == []

    scene.submit_chunk([4])

    assert [frame.rows for frame in scene.instance.frames] == [[1, 2, 1, 4]]


def test_models_with_streams_sequences_ragged_inputs_or_ordered_caches_take_no_columns(clock):
    def takes(cache=None, **spec):
        return Model(model_spec(**spec), FakeLoop(clock), cache).takes_columns

    assert takes()
    assert not takes(decoupled=True)
    assert not takes(iterative=True)
    ragged = ModelTensor(name="x", dtype=FP32, dims=(-1,), shape=(-1, -1), is_ragged=True)
    assert not takes(inputs={"x": ragged})
    assert takes(ResponseStore(1 << 20), response_cache=True)
    ordered = BatcherSpec(preserve_ordering=True)
    assert takes(batcher=ordered)
    assert not takes(ResponseStore(1 << 20), response_cache=True, batcher=ordered)


def settings(dice):
    policy = QueuePolicySpec(
        default_timeout_us=dice.choice([0, 2000]),
        max_queue_size=dice.choice([0, 0, 6]),
        allow_timeout_override=True,
    )
    return {
        "instances": dice.randint(1, 3),
        "max_batch_size": dice.choice([3, 8, 32]),
        "batcher": BatcherSpec(
            max_queue_delay_us=dice.choice([0, 1000]),
            preserve_ordering=dice.random() < 0.3,
            default_queue_policy=policy,
            priority_levels=dice.choice([0, 3]),
            default_priority_level=2,
        ),
    }


def submit_something(dice, scene):
    if dice.random() < 0.3:
        try:
            scene.submit(dice.randint(1, 3), **random_details(dice))
        except UnavailableError as error:
            scene.sinks[-1].on_refused(error)
    else:
        ones = dice.random() < 0.5
        rows = [1 if ones else dice.randint(1, 3) for _ in range(dice.randint(1, 9))]
        scene.submit_chunk(
            rows,
            joined=dice.random() < 0.5,
            details=[random_details(dice) for _ in rows] if dice.random() < 0.5 else None,
            wanted=dice.choice([None, None, ("x",), ("y", "x")]),
            runs=dice.random() < 0.5,
            is_complete=dice.random() < 0.3,
        )


def act(dice, scene):
    what = dice.random()
    alive = scene.model.instances
    busy = [(each, batch) for each in alive for batch in each.running]
    if what < 0.4 and alive:
        submit_something(dice, scene)
    elif what < 0.5 and scene.members:
        dice.choice(dice.choice(scene.members)).cancel()
    elif what < 0.6:
        scene.loop.advance(dice.choice([0.0005, 0.003]))
    elif what < 0.62 and len(alive) > 1:
        dice.choice(alive).die()
    elif what < 0.64 and alive:
        each = dice.choice(alive)
        each.refusal = UnavailableError("no room") if each.refusal is None else None
    elif busy:
        each, batch = dice.choice(busy)
        dice.choice([each.double, each.double, each.double_by_item, each.fail])(batch)
    else:
        scene.loop.run()


@pytest.mark.parametrize("seed", range(60))
def test_every_member_ends_exactly_once_with_its_own_answer(columns, seed):
    dice = random.Random(seed)
    scene = columns(**settings(dice))
    for _ in range(200):
        act(dice, scene)
    while busy := [each for each in scene.model.instances if each.running]:
        busy[0].double()
        scene.loop.advance(0.002)
    scene.model.stop()
    scene.loop.advance(1)

    answered = 0
    for chunk in scene.chunks:
        for end, doubled in zip(scene.ends.of(chunk), scene.doubled(chunk), strict=True):
            if isinstance(end, dict):
                wanted = chunk.signature.outputs
                assert {name: end[name] for name in wanted or end} == doubled
                answered += 1
    for sink, values in zip(scene.sinks, scene.inputs, strict=True):
        assert sink.final_count == 1
        if sink.responses:
            assert values_of(sink.responses[0])["x"] == [2 * value for value in values]
            answered += 1
    statistics = scene.model.statistics
    assert answered == statistics.success_count
    assert statistics.pending_count == 0
    assert ": 0 queued, 0 running" in repr(scene.model)
