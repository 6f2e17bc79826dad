# SPDX-License-Identifier: Apache-2.0
"""Decoupled models: any number of responses, credit for clients that take them, gathering."""

from __future__ import annotations

import pytest

from pytriton.base.dtypes import UINT8
from pytriton.base.errors import CancelledError, InternalError
from pytriton.base.messages import InferResponse, InferTensor
from pytriton.base.model_spec import BatcherSpec
from pytriton.runtime.executor.inference import Outcome
from pytriton.runtime.transport.credit import GRANT_RESPONSES, LARGE_RESPONSE_BYTES
from pytriton.serving.engine.batch_stats import record_burst
from pytriton.serving.engine.latencies import Latencies, LatencyPlan
from pytriton.serving.engine.stats import FailureReason
from tests.fakes import response


@pytest.fixture
def stream(scene):
    """A decoupled model with one request that runs."""
    one = scene(decoupled=True, batches=False, concurrency=8)
    one.submit()
    return one


def respond(scene, count=1, position=0):
    for _ in range(count):
        batch = scene.instance.running[0]
        scene.instance.report(batch, [Outcome(position, response(), is_final=False)])


def end(scene, position=0, error=None):
    scene.instance.report(scene.instance.running[0], [Outcome(position, None, error)])


def granted(scene):
    return [count for _, count in scene.instance.granted]


@pytest.mark.parametrize("count", [0, 1, 5])
def test_stream_delivers_any_number_of_responses_and_its_end(stream, count):
    respond(stream, count)
    end(stream)

    assert [each is not None for each in stream.sink(0).responses] == [True] * count + [False]
    stream.check_all_answered()
    assert stream.model.statistics.execution_count == 1


def test_stream_counts_each_response_at_its_index(stream):
    respond(stream, 2)
    end(stream, error=InternalError("half-way"))
    stream.submit()
    respond(stream)
    end(stream)

    first, second, third = stream.model.statistics.responses
    assert (first.success.count, second.success.count) == (2, 1)
    assert (second.empty_response.count, third.fail.count) == (1, 1)
    assert stream.model.statistics.failures[FailureReason.BACKEND] == 1
    stream.check_all_answered()


def test_stream_counts_the_times_between_its_responses(stream, clock):
    latencies = Latencies(LatencyPlan(), stream.model.spec)
    stream.model.statistics.latencies = latencies
    for _ in range(3):
        clock.advance(0.2)
        respond(stream)
    stream.instance.report(
        stream.instance.running[0], [Outcome(0, None, InternalError("no"), is_final=False)]
    )
    clock.advance(0.2)
    respond(stream)
    end(stream)

    assert latencies.stream_start.count == 1
    assert latencies.response_interval.count == 3
    assert latencies.first_response_ns == 200_000_000
    assert latencies.response_interval_ns == 600_000_000


def test_responses_that_come_together_share_the_time_since_the_one_before(stream):
    latencies = Latencies(LatencyPlan(), stream.model.spec)
    statistics, inference = stream.model.statistics, stream.inferences[0]
    statistics.latencies = latencies
    begun = inference.request.received_ns
    record_burst(statistics, inference, 3, (begun, begun), begun + 10_000_000)
    record_burst(statistics, inference, 4, (begun, begun), begun + 30_000_000)

    assert latencies.stream_start.count == 1
    # Two came with the first one, and four within 20 ms: 5 ms each.
    assert latencies.response_interval.cumulative()[0] == 2
    assert latencies.response_interval.cumulative()[4:6] == [2, 6]  # 2.5 and 5 ms


def test_stream_of_a_cancelled_request_counts_as_cancelled(stream):
    respond(stream)
    stream.model.cancel(stream.inferences[0])
    end(stream, error=CancelledError(""))

    assert stream.model.statistics.responses[1].cancel.count == 1
    assert stream.model.statistics.failures[FailureReason.CANCELED] == 1
    assert stream.model.statistics.execution_count == 1
    stream.check_all_answered()


def test_execution_counts_once_where_one_of_its_requests_is_cancelled(scene):
    one = scene(decoupled=True, concurrency=8)
    one.submit(3)
    one.model.cancel(one.inferences[1])
    end(one, 1, CancelledError(""))
    one.instance.finish()

    assert one.model.statistics.execution_count == 1
    assert one.model.statistics.success_count == 2
    one.check_all_answered()


def test_credit_is_granted_for_the_first_response_then_by_the_half_window(stream):
    respond(stream, 1)
    assert granted(stream) == []  # its client is to have it first
    stream.loop.run()
    assert granted(stream) == [1]
    respond(stream, GRANT_RESPONSES - 1)
    assert granted(stream) == [1]
    respond(stream, GRANT_RESPONSES + 1)

    assert granted(stream) == [1, GRANT_RESPONSES, GRANT_RESPONSES]


def test_large_responses_are_credited_at_once(stream):
    """A window of bytes is full after few of them; nobody may wait for the half of the count."""
    batch = stream.instance.running[0]
    large = InferTensor("y", UINT8, (LARGE_RESPONSE_BYTES,), bytes(LARGE_RESPONSE_BYTES))
    respond(stream, 3)
    stream.loop.run()
    answer = InferResponse("model", "1", "", [large])
    stream.instance.report(batch, [Outcome(0, answer, is_final=False)])

    assert granted(stream) == [3, 1]


def test_paused_client_gets_no_credit_until_it_resumes(stream):
    (request,) = stream.inferences
    stream.model.pause(request)
    respond(stream, 2 * GRANT_RESPONSES)
    assert granted(stream) == []

    stream.model.resume(request)
    respond(stream, GRANT_RESPONSES)

    assert granted(stream) == [2 * GRANT_RESPONSES, GRANT_RESPONSES]


def test_resume_without_responses_grants_nothing(stream):
    (request,) = stream.inferences
    stream.model.pause(request)
    stream.model.resume(request)

    assert granted(stream) == []


def test_request_that_waits_may_be_paused_and_resumed(scene):
    one = scene(decoupled=True, batches=False)
    one.submit(2)
    one.model.pause(one.inferences[1])
    one.model.resume(one.inferences[1])
    end(one)
    end(one)

    one.check_all_answered()


def test_batching_stream_gathers_while_the_model_is_at_work(scene):
    one = scene(decoupled=True, max_batch_size=8, concurrency=8)
    one.submit()
    one.submit()
    one.submit()
    assert one.instance.sizes == [1]

    one.loop.advance(0.001)

    assert one.instance.sizes == [1, 2]


def test_ordering_is_no_matter_of_decoupled_models(scene):
    one = scene(decoupled=True, batcher=BatcherSpec(preserve_ordering=True), concurrency=2)
    one.submit()
    one.submit()
    one.loop.advance(0.001)
    second = one.instance.running[1]
    one.instance.report(second, [Outcome(0, response(), is_final=False)])
    one.instance.finish(second)
    one.instance.finish()

    assert one.log == [1, 1, 0]
    one.check_all_answered()


def test_death_of_the_instance_ends_streams(stream):
    respond(stream)

    stream.instance.die()

    assert len(stream.sink(0).errors) == 1
    stream.check_all_answered()
