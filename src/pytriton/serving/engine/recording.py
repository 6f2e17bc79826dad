# SPDX-License-Identifier: Apache-2.0
"""Adds the outcomes of batches to the statistics of their model."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pytriton.base.messages import ExecutionTimes
from pytriton.serving.engine.stats import (
    BatchRecord,
    FailureReason,
    ModelStatistics,
    ResponseOutcome,
)

if TYPE_CHECKING:
    from pytriton.runtime.executor.base import Outcome, RunningBatch


def record_answers(
    statistics: ModelStatistics,
    batch: RunningBatch,
    outcomes: list[Outcome],
    times_ns: tuple[int, int],
    now_ns: int,
) -> None:
    """Count requests with a final response; with the last one of a batch, count its execution."""
    inferences = batch.inferences
    succeeded = succeeded_rows = failed_rows = 0
    received_ns = queued_ns = 0  # the sums of these times of the requests that succeeded
    latencies = statistics.latencies
    started_ns = batch.started_ns
    for outcome in outcomes:
        inference = inferences[outcome.position]
        request = inference.request
        if outcome.error is None:
            succeeded += 1
            succeeded_rows += request.rows or 1
            received_ns += request.received_ns
            queued_ns += inference.queued_ns
            if latencies is not None:
                latencies.on_requests(
                    1, now_ns - request.received_ns, started_ns - inference.queued_ns
                )
        else:
            failed_rows += request.rows or 1
            reason = FailureReason.CANCELED if inference.is_cancelled else FailureReason.BACKEND
            statistics.record_failures(1, now_ns - request.received_ns, reason)
    for run in batch.answered:
        first, count = inferences[run.position], run.end - run.first
        starts = run.chunk.row_starts
        succeeded += count
        succeeded_rows += starts[run.end] - starts[run.first]
        received_ns += count * first.request.received_ns
        queued_ns += count * first.queued_ns
        if latencies is not None:  # the members of a chunk came together
            latencies.on_requests(
                count, now_ns - first.request.received_ns, started_ns - first.queued_ns
            )
    if succeeded or not batch.open_positions:
        record = BatchRecord(
            succeeded_rows + failed_rows + batch.null_rows,
            started_ns,
            times_ns[0],
            times_ns[1],
            now_ns,
            succeeded,
            succeeded_rows,
            succeeded * now_ns - received_ns,
            succeeded * started_ns - queued_ns,
        )
        statistics.record_batch(record, time.time_ns() // 1_000_000)


def record_late_failures(
    statistics: ModelStatistics,
    batch: RunningBatch,
    outcomes: list[Outcome],
    passed_on: list[Outcome],
    now_ns: int,
) -> None:
    """Count the requests whose execution succeeded, but which the scheduler has ended after it."""
    counted = {outcome.position for outcome in outcomes if outcome.error is not None}
    for outcome in passed_on:
        if outcome.error is not None and outcome.position not in counted:
            inference = batch.inferences[outcome.position]
            reason = FailureReason.CANCELED if inference.is_cancelled else FailureReason.OTHER
            statistics.record_failures(1, now_ns - inference.request.received_ns, reason)


def record_responses(
    statistics: ModelStatistics,
    batch: RunningBatch,
    outcomes: list[Outcome],
    times_ns: tuple[int, int],
    now_ns: int,
) -> None:
    """Count responses of a decoupled model, and the requests that end with them."""
    final = []
    latencies = statistics.latencies
    for outcome in outcomes:
        if outcome.is_rescheduled:  # this execution has ended without a response
            final.append(outcome)
            continue
        inference = batch.inferences[outcome.position]
        if outcome.error is not None:
            kind = ResponseOutcome.CANCEL if inference.is_cancelled else ResponseOutcome.FAIL
        elif outcome.response is None:
            kind = ResponseOutcome.EMPTY
        else:
            kind = ResponseOutcome.SUCCESS
            if latencies is not None and not inference.response_count:
                latencies.on_first_response(now_ns - inference.request.received_ns)
        statistics.record_response(
            inference.response_count, kind, times_ns[1] - times_ns[0], now_ns - times_ns[1]
        )
        inference.response_count += 1
        if outcome.is_final:
            final.append(outcome)
    if final:
        record_answers(statistics, batch, final, times_ns, now_ns)


def record_traces(batch: RunningBatch, outcomes: list[Outcome], times_ns: tuple[int, int]) -> None:
    """Add the times of the execution to the traces of its requests."""
    ended_ns = time.monotonic_ns()
    for outcome in outcomes:
        inference = batch.inferences[outcome.position]
        if inference.trace is not None:
            inference.trace.add_execution(
                ExecutionTimes(inference.queued_ns, batch.started_ns, *times_ns, ended_ns)
            )
