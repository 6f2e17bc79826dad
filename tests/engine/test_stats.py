# SPDX-License-Identifier: Apache-2.0
"""Statistics add up as Triton's do, and are readable in Triton's layout."""

from __future__ import annotations

import pytest
from tritonclient.grpc import service_pb2

from pytriton.serving.engine.stats import (
    MAX_RESPONSE_INDEXES,
    BatchRecord,
    Duration,
    FailureReason,
    ModelStatistics,
    ResponseOutcome,
)


def executed(rows: int, **changes: int) -> BatchRecord:
    """An execution of `rows` single-row requests that took 10, 20 and 30 ns in its phases."""
    values = {
        "input_start_ns": 1000,
        "infer_start_ns": 1010,
        "output_start_ns": 1030,
        "end_ns": 1060,
        "succeeded": rows,
        "succeeded_rows": rows,
        "succeeded_ns": 100 * rows,
        "queue_ns": 40 * rows,
    }
    return BatchRecord(rows, **(values | changes))


@pytest.fixture
def statistics():
    return ModelStatistics()


def test_record_batch_counts_compute_time_for_each_request_and_once_per_execution(statistics):
    statistics.record_batch(executed(4), now_ms=7)
    statistics.record_batch(executed(4), now_ms=8)

    assert statistics.inference_count == 8
    assert statistics.execution_count == 2
    assert statistics.last_inference_ms == 8
    durations = statistics.inference_durations()
    assert durations.success == Duration(8, 800)
    assert durations.queue == Duration(8, 320)
    assert durations.compute_input == Duration(8, 80)
    assert durations.compute_infer == Duration(8, 160)
    assert durations.compute_output == Duration(8, 240)
    (batch,) = statistics.batch_durations()
    assert batch.batch_size == 4
    assert batch.compute_input == Duration(2, 20)
    assert batch.compute_infer == Duration(2, 40)
    assert batch.compute_output == Duration(2, 60)


def test_batch_durations_are_sorted_by_batch_size(statistics):
    for rows in (8, 1, 3):
        statistics.record_batch(executed(rows), now_ms=1)

    assert [batch.batch_size for batch in statistics.batch_durations()] == [1, 3, 8]


def test_failed_requests_of_a_batch_count_as_failures_only(statistics):
    statistics.record_batch(
        executed(4, succeeded=1, succeeded_rows=1, succeeded_ns=100, queue_ns=40), now_ms=7
    )
    statistics.record_failures(3, 300, FailureReason.BACKEND)

    assert statistics.inference_count == 1
    assert statistics.success_count == 1
    durations = statistics.inference_durations()
    assert durations.fail == Duration(3, 300)
    assert durations.queue == Duration(1, 40)
    assert durations.compute_infer == Duration(1, 20)
    assert statistics.batch_durations()[0].batch_size == 4
    assert statistics.failures == {
        FailureReason.REJECTED: 0,
        FailureReason.CANCELED: 0,
        FailureReason.BACKEND: 3,
        FailureReason.OTHER: 0,
    }


def test_execution_without_success_leaves_last_inference_alone(statistics):
    statistics.record_batch(
        executed(2, succeeded=0, succeeded_rows=0, succeeded_ns=0, queue_ns=0), now_ms=7
    )

    assert statistics.execution_count == 1
    assert statistics.last_inference_ms == 0
    assert statistics.inference_durations().compute_infer == Duration(0, 0)


def test_cache_hit_is_a_success_without_execution(statistics):
    statistics.record_batch(executed(2), now_ms=7)

    statistics.record_cache_misses(1, 50)
    statistics.record_cache_hit(lookup_ns=5, request_ns=9, now_ms=8)

    durations = statistics.inference_durations()
    assert durations.success == Duration(3, 209)
    assert durations.queue == Duration(3, 80)
    assert durations.compute_infer.count == durations.success.count - durations.cache_hit.count
    assert durations.cache_hit == Duration(1, 5)
    assert durations.cache_miss == Duration(1, 50)
    assert statistics.inference_count == 2
    assert statistics.execution_count == 1
    assert statistics.last_inference_ms == 8


def test_record_response_counts_what_each_outcome_includes(statistics):
    statistics.record_response(0, ResponseOutcome.SUCCESS, 20, 3)
    statistics.record_response(0, ResponseOutcome.FAIL, 20)
    statistics.record_response(0, ResponseOutcome.EMPTY, 5)
    statistics.record_response(0, ResponseOutcome.CANCEL, 7)

    (response,) = statistics.responses
    assert response.compute_infer == Duration(3, 45)
    assert response.compute_output == Duration(1, 3)
    assert response.success == Duration(1, 23)
    assert response.fail == Duration(1, 20)
    assert response.empty_response == Duration(1, 5)
    assert response.cancel == Duration(1, 7)


def test_record_response_counts_output_time_of_a_failure_that_wrote_outputs(statistics):
    statistics.record_response(0, ResponseOutcome.FAIL, 20, 3)

    assert statistics.responses[0].compute_output == Duration(1, 3)
    assert statistics.responses[0].fail == Duration(1, 23)


def test_responses_beyond_the_last_index_are_counted_there(statistics):
    for index in range(MAX_RESPONSE_INDEXES + 5):
        statistics.record_response(index, ResponseOutcome.SUCCESS, 1, 1)

    assert len(statistics.responses) == MAX_RESPONSE_INDEXES
    assert statistics.responses[-1].success.count == 6


def test_snapshot_of_an_idle_model_has_every_member():
    snapshot = ModelStatistics().snapshot()

    zero = {"count": 0, "ns": 0}
    assert snapshot == {
        "last_inference": 0,
        "inference_count": 0,
        "execution_count": 0,
        "inference_stats": {
            "success": zero,
            "fail": zero,
            "queue": zero,
            "compute_input": zero,
            "compute_infer": zero,
            "compute_output": zero,
            "cache_hit": zero,
            "cache_miss": zero,
        },
        "response_stats": {},
        "batch_stats": [],
    }


def test_snapshot_builds_the_grpc_message(statistics):
    statistics.record_batch(executed(2), now_ms=7)
    statistics.record_response(0, ResponseOutcome.SUCCESS, 4, 5)

    message = service_pb2.ModelStatistics(name="m", version="1", **statistics.snapshot())

    assert message.inference_count == 2
    assert message.inference_stats.success.ns == 200
    assert message.batch_stats[0].batch_size == 2
    assert message.response_stats["0"].success.ns == 9


def test_snapshot_does_not_change_afterwards(statistics):
    statistics.record_failures(1, 5, FailureReason.OTHER)
    snapshot = statistics.snapshot()

    statistics.record_failures(1, 5, FailureReason.OTHER)

    assert snapshot["inference_stats"]["fail"] == {"count": 1, "ns": 5}


def test_repr_shows_the_counts(statistics):
    statistics.record_batch(executed(2), now_ms=7)
    statistics.pending_count = 3

    assert repr(statistics) == "<ModelStatistics 2 succeeded, 0 failed, 3 pending, 1 executions>"
