# SPDX-License-Identifier: Apache-2.0
"""Adds the outcomes of batches to the statistics of their model."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pytriton.engine.stats import BatchRecord, FailureReason, ModelStatistics, ResponseOutcome
from pytriton.messages import ExecutionTimes

if TYPE_CHECKING:
    from pytriton.executor.base import Outcome, RunningBatch


def record_answers(
    statistics: ModelStatistics,
    batch: RunningBatch,
    outcomes: list[Outcome],
    times_ns: tuple[int, int],
    now_ns: int,
) -> None:
    """Count requests with a final response; with the last one of a batch, count its execution."""
    inferences = batch.inferences
    record = BatchRecord(0, batch.started_ns, times_ns[0], times_ns[1], now_ns)
    for outcome in outcomes:
        inference = inferences[outcome.position]
        rows = inference.request.rows or 1
        record.rows += rows
        if outcome.error is None:
            record.succeeded += 1
            record.succeeded_rows += rows
            record.succeeded_ns += now_ns - inference.request.received_ns
            record.queue_ns += batch.started_ns - inference.queued_ns
        else:
            reason = FailureReason.CANCELED if inference.is_cancelled else FailureReason.BACKEND
            statistics.record_failures(1, now_ns - inference.request.received_ns, reason)
    for run in batch.answered:
        first, count, rows = inferences[run.position], run.count, run.rows
        record.rows += rows
        record.succeeded += count
        record.succeeded_rows += rows
        record.succeeded_ns += count * (now_ns - first.request.received_ns)
        record.queue_ns += count * (batch.started_ns - first.queued_ns)
    if record.succeeded or not batch.open_positions:
        statistics.record_batch(record, time.time_ns() // 1_000_000)


def record_responses(
    statistics: ModelStatistics,
    batch: RunningBatch,
    outcomes: list[Outcome],
    times_ns: tuple[int, int],
    now_ns: int,
) -> None:
    """Count responses of a decoupled model, and the requests that end with them."""
    final = []
    for outcome in outcomes:
        inference = batch.inferences[outcome.position]
        if outcome.error is not None:
            kind = ResponseOutcome.CANCEL if inference.is_cancelled else ResponseOutcome.FAIL
        elif outcome.response is None:
            kind = ResponseOutcome.EMPTY
        else:
            kind = ResponseOutcome.SUCCESS
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
