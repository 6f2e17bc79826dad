# SPDX-License-Identifier: Apache-2.0
"""Requests that travel as columns hit and miss the response cache as ordinary ones do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.base.dtypes import FP32, INT32
from pytriton.base.messages import InferTensor
from pytriton.base.model_spec import ModelTensor
from pytriton.serving.engine.cache import ResponseStore
from tests.column_rig import NAMES, WIDTH, ColumnScene, values_of

KINDS = pytest.mark.parametrize("joined", [True, False], ids=["joined", "pieces"])
ROWS = pytest.mark.parametrize("rows", [[1], [2], [1, 1, 1, 1], [2, 2, 2, 2], [2, 1, 3]], ids=str)


@pytest.fixture
def cache():
    return ResponseStore(1 << 20)


@pytest.fixture(params=[True, False], ids=["plain", "any"])
def scene(request, clock, cache):
    """A model whose requests have quick keys, and one whose requests have not."""
    inputs = {
        name: ModelTensor(name=name, dtype=INT32, dims=(WIDTH,), shape=(-1, WIDTH))
        for name in NAMES
    }
    return ColumnScene(
        clock,
        cache=cache,
        response_cache=True,
        max_batch_size=8,
        inputs=inputs if request.param else {},
    )


@KINDS
@ROWS
def test_equal_chunk_is_answered_from_the_cache(scene, cache, joined, rows):
    first = scene.submit_chunk(rows)
    scene.instance.double()
    again = scene.submit_chunk(rows, joined=joined, values=scene.values[0])

    assert len(scene.instance.frames) == 1
    assert scene.ends.of(first) == scene.ends.of(again) == scene.doubled(first)
    assert (cache.hits, cache.misses, len(cache)) == (len(rows), len(rows), len(rows))
    statistics = scene.model.statistics
    assert (statistics.cache_hit.count, statistics.cache_miss.count) == (len(rows), len(rows))
    assert statistics.pending_count == 0
    assert ": 0 queued, 0 running" in repr(scene.model)


@KINDS
@ROWS
def test_ordinary_requests_find_the_answers_of_chunks(scene, rows, joined):
    chunk = scene.submit_chunk(rows, joined=joined)
    scene.instance.double()

    found = [
        scene.submit(count, values) for count, values in zip(rows, scene.values[0], strict=True)
    ]

    assert len(scene.instance.frames) == 1
    assert [values_of(sink.responses[0]) for sink in found] == scene.doubled(chunk)
    shapes = [[tensor.shape for tensor in sink.responses[0].outputs] for sink in found]
    assert shapes == [[(count, WIDTH)] * 2 for count in rows]


@KINDS
@ROWS
def test_chunks_find_the_answers_of_ordinary_requests(scene, rows, joined):
    for count in rows:
        scene.submit(count)
        scene.loop.run()
        scene.instance.double()
    frames = len(scene.instance.frames)

    chunk = scene.submit_chunk(rows, joined=joined, values=scene.inputs)

    assert len(scene.instance.frames) == frames
    assert scene.ends.of(chunk) == scene.doubled(chunk)


@KINDS
def test_only_members_that_miss_are_executed(scene, joined):
    scene.submit_chunk([1, 1], values=[[1, 2], [3, 4]])
    scene.instance.double()

    some = scene.submit_chunk([1] * 4, joined=joined, values=[[1, 2], [5, 6], [3, 4], [7, 8]])
    scene.instance.double()

    assert scene.instance.frames[1].rows == [1, 1]
    assert scene.ends.of(some) == scene.doubled(some)


@KINDS
def test_equal_members_of_a_chunk_are_stored_once(scene, cache, joined):
    values = [[1, 2], [1, 2], [3, 4], [5, 6]]
    chunk = scene.submit_chunk([1] * 4, joined=joined, values=values)
    scene.instance.double()

    assert scene.ends.of(chunk) == scene.doubled(chunk)
    assert (len(cache), cache.misses) == (3, 4)
    again = scene.submit_chunk([1] * 4, values=values)
    assert scene.ends.of(again) == scene.doubled(again)


def test_requested_outputs_have_answers_of_their_own(scene):
    every = scene.submit_chunk([1], values=[[1, 2]])
    scene.instance.double()
    some = scene.submit_chunk([1], values=[[1, 2]], wanted=("y",))
    scene.instance.double()
    again = scene.submit_chunk([1], values=[[1, 2]], wanted=("y",))

    assert len(scene.instance.frames) == 2
    assert scene.ends.of(every) == [{"x": [2, 4], "y": [2, 4]}]
    assert scene.ends.of(some) == scene.ends.of(again) == [{"y": [2, 4]}]


def test_timeouts_have_answers_of_their_own(scene, cache):
    details = [{"timeout_us": 500}, {}]
    scene.submit_chunk([1, 1], values=[[1, 2]] * 2, details=details)
    scene.instance.double()
    scene.submit(values=[1, 2], timeout_us=500)
    scene.submit(values=[1, 2])
    scene.submit(values=[1, 2], timeout_us=600)

    assert (cache.hits, cache.misses, len(cache)) == (2, 3, 2)


def test_members_that_are_answered_by_themselves_are_stored(scene, cache):
    scene.submit_chunk([1, 1], values=[[1, 2], [3, 4]])
    scene.instance.double_by_item(error="no")
    again = scene.submit_chunk([1, 1], values=[[1, 2], [3, 4]])
    scene.instance.double()

    assert len(cache) == 2
    assert scene.instance.frames[1].rows == [1]
    assert scene.ends.of(again) == scene.doubled(again)


def test_failed_members_are_not_stored(scene, cache):
    scene.submit_chunk([1, 1])
    scene.instance.fail()

    assert len(cache) == 0


LAYOUT = (("x", FP32, (1,), 4), ("y", FP32, (0,), 0))


def outputs_of(value: int) -> list[InferTensor]:
    data = value.to_bytes(4, "little")
    return [InferTensor("x", FP32, (1,), data), InferTensor("y", FP32, (0,), b"")]


@given(
    st.integers(0, 3000),
    st.lists(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 9)), min_size=1, max_size=6)),
)
def test_storing_many_is_the_same_as_storing_each(byte_limit, batches):
    many, each = ResponseStore(byte_limit), ResponseStore(byte_limit)
    for batch in batches:
        keys = [bytes([name]) * (2 if name > 8 else 1) for name, _ in batch]
        values = [value for _, value in batch]
        columns = [[value.to_bytes(4, "little") for value in values], [b""] * len(values)]
        many.insert_alike(keys, LAYOUT, columns)
        for key, value in zip(keys, values, strict=True):
            each.insert(key, outputs_of(value))
        keys = [bytes([name]) for name in range(0, 8, 3)]

        assert many.lookup_all(keys) == [each.lookup(key) for key in keys]
        assert repr(many) == repr(each)
        many.check_integrity()
