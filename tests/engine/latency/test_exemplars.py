# SPDX-License-Identifier: Apache-2.0
"""Which requests the engine shows as exemplars, alone and in columns."""

from __future__ import annotations

import pytest

from pytriton.runtime.executor.inference import Outcome
from pytriton.serving.engine.latencies import Latencies, LatencyPlan
from tests.column_rig import ColumnScene
from tests.fakes import SECOND_NS, response


class NamedTrace:
    def trace_id(self, index):
        return "t1"


def record(scene, clock, **plan):
    latencies = Latencies(LatencyPlan(**plan), scene.model.spec, lambda: clock.now_ns)
    scene.model.statistics.latencies = latencies
    return latencies


def shown(histogram):
    return [(each.trace_id, each.request_id) for each in histogram.exemplars if each is not None]


def slow(latencies):
    return [each.request_id for _, _, each in latencies.slow.readings()]


def test_request_without_ids_is_no_exemplar(scene, clock):
    one = scene()
    latencies = record(one, clock)
    one.submit()
    one.instance.report(one.instance.running[0], [Outcome(0, response())])

    assert shown(latencies.request) == []
    assert latencies.request.count == 1


def test_request_with_a_trace_is_an_exemplar_of_all_histograms(scene, clock):
    one = scene()
    latencies = record(one, clock)
    (made,) = one.submit(id="r1")
    made.trace = NamedTrace()
    one.instance.report(one.instance.running[0], [Outcome(0, response())])

    for histogram in (latencies.request, latencies.queue, latencies.compute):
        assert shown(histogram) == [("t1", "r1")]


def test_slow_request_is_kept_and_a_quick_one_is_not(scene, clock):
    one = scene()
    latencies = record(one, clock, slow_s=2.0)
    for number, seconds in enumerate((1, 2, 3)):
        one.submit(id=f"r{number}")
        clock.now_ns += seconds * SECOND_NS
        one.instance.report(one.instance.running[0], [Outcome(0, response())])

    assert slow(latencies) == ["r1", "r2"]
    assert latencies.slow.count == 2


@pytest.mark.parametrize("seconds", [0, 5])
def test_members_of_a_chunk_are_exemplars(clock, seconds):
    scene = ColumnScene(clock, max_batch_size=8)
    latencies = record(scene, clock)
    chunk = scene.submit_chunk([1, 1, 1], details=[{"id": each} for each in "abc"])
    clock.now_ns += seconds * SECOND_NS
    scene.instance.double()

    assert scene.ends.of(chunk) == scene.doubled(chunk)
    assert shown(latencies.request) == [("", "c")]
    assert slow(latencies) == (["a", "b", "c"] if seconds else [])


def test_exemplar_of_a_bucket_is_renewed_after_a_while_and_others_at_once(scene, clock):
    one = scene()
    latencies = record(one, clock, latency_buckets_s=(0.05, 0.5))

    def answer(request_id, seconds):
        one.submit(id=request_id)
        clock.now_ns += round(seconds * SECOND_NS)
        one.instance.report(one.instance.running[0], [Outcome(0, response())])

    answer("first", 0.01)
    answer("too soon", 0.01)
    answer("another bucket", 0.2)
    answer("later", 0.01)

    assert shown(latencies.request) == [("", "later"), ("", "another bucket")]


def test_exemplar_stays_while_it_is_new(scene, clock):
    one = scene()
    latencies = record(one, clock)
    for request_id in ("first", "second"):
        one.submit(id=request_id)
        one.instance.report(one.instance.running[0], [Outcome(0, response())])

    assert shown(latencies.request) == [("", "first")]


def test_long_id_is_not_kept(scene, clock):
    one = scene()
    latencies = record(one, clock)
    one.submit(id="x" * 10**6)
    one.instance.report(one.instance.running[0], [Outcome(0, response())])

    assert shown(latencies.request) == [("", "x" * 128)]
