# SPDX-License-Identifier: Apache-2.0
"""Many responses of a decoupled model at once: like as many calls, with one for a sink that can."""

from __future__ import annotations

import random

import pytest

from pytriton.base.errors import UNEXPECTED
from pytriton.runtime.executor.inference import Outcome
from pytriton.runtime.transport.credit import GRANT_RESPONSES
from pytriton.serving.engine import model as engine_model
from pytriton.serving.engine.stats import MAX_RESPONSE_INDEXES, ModelStatistics, ResponseOutcome
from tests.bursts import numbers_burst
from tests.fakes import RecordingSink


class BurstSink(RecordingSink):
    """Takes bursts as they are."""

    def __init__(self):
        super().__init__()
        self.bursts = []

    def on_burst(self, burst):
        self.bursts.append(burst)


@pytest.fixture
def stream(scene):
    """A decoupled model with one request that runs."""
    one = scene(decoupled=True, batches=False, concurrency=8)
    one.submit()
    return one


def respond(scene, count, first=0):
    batch = scene.instance.running[0]
    burst = numbers_burst(range(first, first + count))
    scene.model.on_burst(scene.instance, batch, 0, burst, (batch.started_ns, batch.started_ns))


def end(scene):
    scene.instance.report(scene.instance.running[0], [Outcome(0)])


def granted(scene):
    return [count for _, count in scene.instance.granted]


def test_sink_with_bursts_gets_one_call(stream):
    sink = stream.inferences[0].sink = BurstSink()
    respond(stream, 3)
    respond(stream, 2)

    assert [burst.count for burst in sink.bursts] == [3, 2]
    assert sink.responses == []


def test_credit_is_granted_as_for_single_responses(stream):
    respond(stream, 1)
    assert granted(stream) == []  # its client is to have it first
    stream.loop.run()
    assert granted(stream) == [1]
    respond(stream, GRANT_RESPONSES - 1)
    assert granted(stream) == [1]
    respond(stream, 2)

    assert granted(stream) == [1, GRANT_RESPONSES + 1]


def test_first_burst_is_credited_after_it_was_written(stream):
    respond(stream, 2 * GRANT_RESPONSES)
    assert granted(stream) == []
    stream.loop.run()

    assert granted(stream) == [2 * GRANT_RESPONSES]


def test_paused_client_gets_no_credit_until_it_resumes(stream):
    respond(stream, 1)
    stream.loop.run()
    stream.inferences[0].pause()
    respond(stream, 2 * GRANT_RESPONSES)
    assert granted(stream) == [1]
    stream.inferences[0].resume()

    assert granted(stream) == [1, 2 * GRANT_RESPONSES]


def test_burst_that_cannot_be_counted_is_answered_with_errors(stream, caplog, monkeypatch):
    def fail(*_):
        raise ValueError("cannot count")

    monkeypatch.setattr(engine_model, "record_burst", fail)
    respond(stream, 2)
    end(stream)

    assert [each.message for each in stream.sink(0).errors] == [UNEXPECTED] * 2
    assert "cannot count" in caplog.text
    stream.check_all_answered()


def test_bursts_of_an_iterative_model_are_single_responses(scene):
    one = scene(decoupled=True, iterative=True)
    one.submit()
    sink = one.inferences[0].sink = BurstSink()
    respond(one, 2)

    assert sink.bursts == []
    assert len(sink.responses) == 2


@pytest.mark.parametrize("seed", range(20))
def test_bursts_are_counted_at_the_index_of_each_response(seed):
    source = random.Random(seed)
    at_once, one_by_one = ModelStatistics(), ModelStatistics()
    for _ in range(30):
        first = source.choice([0, source.randint(0, 20), source.randint(1000, 1050)])
        count = source.randint(1, 40)
        infer_ns, output_ns = source.randint(0, 1000), source.randint(0, 1000)
        at_once.record_burst(first, count, infer_ns, output_ns)
        for index in range(first, first + count):
            one_by_one.record_response(index, ResponseOutcome.SUCCESS, infer_ns, output_ns)
        if source.random() < 0.2:
            index = source.randint(0, 60)
            for statistics in (at_once, one_by_one):
                statistics.record_response(index, ResponseOutcome.FAIL, infer_ns, 0)
        if source.random() < 0.2:
            assert at_once.snapshot() == one_by_one.snapshot()

    assert at_once.responses == one_by_one.responses
    assert len(at_once.responses) <= MAX_RESPONSE_INDEXES
