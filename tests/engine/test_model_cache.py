# SPDX-License-Identifier: Apache-2.0
"""What a model answers from the response cache, and how it counts that."""

from __future__ import annotations

import pytest

from pytriton.base.dtypes import FP32
from pytriton.base.messages import InferResponse, InferTensor
from pytriton.base.model_spec import BatcherSpec
from pytriton.runtime.executor.inference import Outcome
from pytriton.serving.engine.cache import ResponseStore
from tests.fakes import SECOND_NS


@pytest.fixture
def cache():
    return ResponseStore(1 << 20)


@pytest.fixture
def cached(scene, cache):
    return scene(cache=cache, response_cache=True, batches=False)


def ask(scene, value, **fields):
    inputs = {"x": InferTensor("x", FP32, (1,), bytes([value, 0, 0, 0]))}
    return scene.submit(inputs=inputs, **fields)[0]


def finish(scene, value, instance=0):
    outputs = [InferTensor("y", FP32, (1,), memoryview(bytes([value, 0, 0, 0])))]
    running = scene.instances[instance].running[0]
    response = InferResponse("m", "1", running.inferences[0].request.fields.id, outputs, {"p": 1})
    scene.instances[instance].report(running, [Outcome(0, response)])


def test_equal_request_is_answered_from_the_cache(cached):
    ask(cached, 1, id="first")
    cached.loop.advance(1)
    finish(cached, 7)
    ask(cached, 1, id="second")

    assert cached.instance.sizes == [1]
    (answer,) = cached.sink(1).responses
    assert (answer.id, answer.parameters) == ("second", {"p": 1})
    assert bytes(answer.outputs[0].data) == bytes([7, 0, 0, 0])
    cached.check_all_answered()


def test_sequences_do_not_share_answers(cached):
    ask(cached, 1, correlation_id=1)
    finish(cached, 7)

    ask(cached, 1, correlation_id=2)
    finish(cached, 8)

    answers = [cached.sink(number).responses[0].outputs[0].data[0] for number in range(2)]
    assert answers == [7, 8]
    cached.check_all_answered()


def test_cache_hits_and_misses_are_counted(cached, cache):
    ask(cached, 1)
    cached.loop.advance(1)
    finish(cached, 1)
    for value in (1, 2, 1):
        ask(cached, value)
    finish(cached, 2)

    statistics = cached.model.statistics
    assert (statistics.cache_hit.count, statistics.cache_miss.count) == (2, 2)
    assert (cache.hits, cache.misses) == (2, 2)
    assert (statistics.inference_count, statistics.execution_count) == (2, 2)
    durations = statistics.inference_durations()
    assert (durations.success.count, durations.success.ns) == (4, SECOND_NS)
    cached.check_all_answered()


def test_error_is_not_cached(cached, cache):
    ask(cached, 1)
    cached.instance.fail()
    ask(cached, 1)
    assert cached.instance.sizes == [1, 1]
    finish(cached, 1)
    ask(cached, 1)

    assert len(cache) == 1
    assert cached.instance.sizes == [1, 1]
    cached.check_all_answered()


def test_model_that_was_loaded_again_does_not_answer_from_its_past(scene, cache):
    for answer in (1, 2):
        loaded = scene(cache=cache, response_cache=True, batches=False)
        ask(loaded, 0)
        finish(loaded, answer)

        assert bytes(loaded.sink(0).responses[0].outputs[0].data)[0] == answer


def test_model_without_the_setting_leaves_the_cache_alone(scene, cache):
    plain = scene(cache=cache, batches=False)
    ask(plain, 1)
    finish(plain, 1)

    assert (len(cache), cache.misses) == (0, 0)


def test_ordered_hit_waits_for_earlier_requests(scene, cache):
    one = scene(cache=cache, response_cache=True, batcher=BatcherSpec(preserve_ordering=True))
    ask(one, 1)
    finish(one, 1)
    ask(one, 2)
    ask(one, 1)
    assert one.log == [0]

    finish(one, 2)

    assert one.log == [0, 1, 2]
    one.check_all_answered()


def test_cancelled_request_that_missed_leaves_no_entry(cached, cache):
    ask(cached, 1)
    waiting = ask(cached, 2)
    cached.model.cancel(waiting)
    finish(cached, 1)

    assert len(cache) == 1
    cached.check_all_answered()
