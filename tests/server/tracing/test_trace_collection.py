# SPDX-License-Identifier: Apache-2.0
"""When traces are written, and to which file; as the real Triton does where it has a rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.base import dtypes
from pytriton.serving.server.tracing.request_trace import TensorFact
from pytriton.serving.server.tracing.settings import TraceSampling
from pytriton.serving.server.tracing.trace_files import (
    MAX_KEPT_BYTES,
    TraceCollection,
    TraceTarget,
)
from tests.server.tracing.trace_facts import facts


def collect(count=-1, log_frequency=0):
    return TraceCollection(TraceSampling(1, count, log_frequency=log_frequency))


def end(collection, number):
    collection.begin()
    return collection.end([facts(number)])


def numbers(batch):
    return [trace[0].number for trace in batch.traces]


def test_traces_are_kept_until_somebody_asks_for_them():
    collection = collect()
    assert end(collection, 1) is end(collection, 2) is None
    assert collection.is_written_soon

    batch = collection.take()
    assert (batch.target, numbers(batch)) == (TraceTarget.MAIN, [1, 2])
    assert not collection.is_written_soon
    assert collection.take() is None


@pytest.mark.parametrize("setting", [{"log_frequency": 2}, {"count": 2}])
def test_number_of_traces_fills_a_file_and_the_last_of_a_limited_number_has_all_written(setting):
    collection = collect(**setting)
    assert end(collection, 1) is None
    assert not collection.is_written_soon

    batch = end(collection, 2)
    assert (batch.target, numbers(batch)) == (TraceTarget.NUMBERED, [1, 2])


def test_limited_number_waits_for_traces_that_have_not_ended():
    collection = collect(count=2)
    collection.begin()
    assert end(collection, 2) is None

    assert numbers(collection.end([facts(1)])) == [2, 1]


def test_limited_number_counts_requests_that_left_no_trace():
    collection = collect(count=2)
    end(collection, 1)
    collection.begin()

    assert numbers(collection.end([])) == [1]


def test_changed_setting_has_the_rest_written():
    for frequency, target in ((0, TraceTarget.MAIN), (5, TraceTarget.NUMBERED)):
        collection = collect(log_frequency=frequency)
        end(collection, 1)
        batch = collection.retire()

        assert (batch.target, numbers(batch)) == (target, [1])
        assert collection.is_over


def test_changed_setting_waits_for_traces_that_have_not_ended():
    collection = collect()
    collection.begin()
    end(collection, 2)
    assert collection.retire() is None
    assert not collection.is_over

    assert numbers(collection.end([facts(1)])) == [2, 1]
    assert collection.is_over


def test_large_tensors_are_not_kept_for_a_full_file():
    collection = collect(log_frequency=1000)
    large = TensorFact("TENSOR_QUEUE_INPUT", "X", dtypes.UINT8, (), bytes(MAX_KEPT_BYTES))
    collection.begin()

    assert collection.end([facts(tensors=[large])]).size > MAX_KEPT_BYTES


@given(
    st.sampled_from([-1, 1, 3, 10]),
    st.sampled_from([0, 1, 2, 7]),
    st.lists(st.sampled_from("beexs"), max_size=40),
)
def test_every_trace_is_written_once(count, frequency, steps):
    collection = collect(count, frequency)
    begun, ended, written = 0, [], []
    for step in steps:
        batch = None
        if step == "b" and begun != count:
            collection.begin()
            begun += 1
        elif step in "ex" and len(ended) < begun:
            number = len(ended) + 1
            ended.append(number if step == "e" else 0)
            batch = collection.end([facts(number)] if step == "e" else [])
        elif step == "s" and collection.is_written_soon:
            batch = collection.take()
        if batch is not None:
            assert batch.target is TraceTarget.MAIN or frequency or begun == count
            written += numbers(batch)
    for _ in range(begun - len(ended)):
        batch = collection.end([])
        written += numbers(batch) if batch is not None else []
    batch = collection.retire()
    written += numbers(batch) if batch is not None else []

    assert written == [number for number in ended if number]
    assert collection.is_over
