# SPDX-License-Identifier: Apache-2.0
"""Adds the outcomes of batches to the statistics of their model, and to the traces of requests.

A model calls these functions with the outcomes that an instance has reported together.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from pytriton.base.messages import ExecutionTimes
from pytriton.runtime.executor.inference import trace_of
from pytriton.serving.engine.costs import TokenUsage
from pytriton.serving.engine.stats import BatchRecord, FailureReason, ResponseOutcome

if TYPE_CHECKING:
    from pytriton.runtime.executor.columns import ChunkRun
    from pytriton.runtime.executor.inference import Inference, Outcome, RunningBatch
    from pytriton.serving.engine.latencies import Latencies
    from pytriton.serving.engine.stats import ModelStatistics


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
    slow_ns = math.inf if latencies is None else latencies.slow.limit_ns
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
                request_ns = now_ns - request.received_ns
                queue_ns = started_ns - inference.queued_ns
                bucket = latencies.on_requests(1, request_ns, queue_ns)
                is_known = request.fields.id or inference.trace is not None
                if request_ns >= slow_ns or (is_known and now_ns >= latencies.due_ns[bucket]):
                    latencies.on_identified(
                        (inference,), request_ns, queue_ns, now_ns - started_ns, now_ns
                    )
        else:
            failed_rows += request.rows or 1
            reason = FailureReason.CANCELED if inference.is_cancelled else FailureReason.BACKEND
            statistics.record_failure(inference, outcome.error, now_ns, reason)
    for run in batch.answered:
        first, count = inferences[run.position], run.end - run.first
        starts = run.chunk.row_starts
        succeeded += count
        succeeded_rows += starts[run.end] - starts[run.first]
        received_ns += count * first.request.received_ns
        queued_ns += count * first.queued_ns
        if latencies is not None:
            _time_members(latencies, run, batch, now_ns)
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


def _time_members(latencies: Latencies, run: ChunkRun, batch: RunningBatch, now_ns: int) -> None:
    """Add the times of members of a chunk, which came together."""
    first = batch.inferences[run.position]
    count, started_ns = run.end - run.first, batch.started_ns
    request_ns = now_ns - first.request.received_ns
    queue_ns = started_ns - first.queued_ns
    bucket = latencies.on_requests(count, request_ns, queue_ns)
    is_slow = request_ns >= latencies.slow.limit_ns
    is_known = run.chunk.has_fields or run.chunk.trace is not None
    if is_slow or (is_known and now_ns >= latencies.due_ns[bucket]):
        until = run.position + count
        seen = batch.inferences[run.position if is_slow else until - 1 : until]
        latencies.on_identified(seen, request_ns, queue_ns, now_ns - started_ns, now_ns)


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
            statistics.record_failure(inference, outcome.error, now_ns, reason)


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
            if latencies is not None:
                record_pace(latencies, inference, 1, now_ns)
        statistics.record_response(
            inference.response_count, kind, times_ns[1] - times_ns[0], now_ns - times_ns[1]
        )
        inference.response_count += 1
        if outcome.is_final:
            final.append(outcome)
    if final:
        record_answers(statistics, batch, final, times_ns, now_ns)


def record_pace(latencies: Latencies, inference: Inference, count: int, now_ns: int) -> None:
    """Count the first response of a stream, or the time since the one before.

    `count` responses came together. Errors and responses without tensors are not among them.
    """
    before_ns = inference.responded_ns
    inference.responded_ns = now_ns
    if before_ns:
        latencies.on_next_responses(count, now_ns - before_ns)
        return
    latencies.on_first_response(now_ns - inference.request.received_ns)
    if count > 1:
        latencies.on_next_responses(count - 1, 0)


def record_burst(
    statistics: ModelStatistics,
    inference: Inference,
    count: int,
    times_ns: tuple[int, int],
    now_ns: int,
) -> None:
    """Count successful responses of a decoupled model, which end no request."""
    first = inference.response_count
    if statistics.latencies is not None:
        record_pace(statistics.latencies, inference, count, now_ns)
    statistics.record_burst(first, count, times_ns[1] - times_ns[0], now_ns - times_ns[1])
    inference.response_count = first + count


def record_traces(
    batch: RunningBatch,
    outcomes: list[Outcome],
    times_ns: tuple[int, int],
    statistics: ModelStatistics | None = None,
) -> None:
    """Add the times and the costs of the execution to the traces of its requests."""
    if not outcomes and not batch.answered:
        return  # the instance only says that it is free, and answers follow
    parts = _TracedParts(batch, outcomes, times_ns, statistics)
    told: set[int] = set()  # several outcomes may be for one request
    for outcome in outcomes:
        inference = batch.inferences[outcome.position]
        is_only = outcome.is_final and not inference.response_count
        has_costs = outcome.position not in told
        told.add(outcome.position)
        trace, index = trace_of(inference), inference.index
        if trace is not None:
            times = parts.execution(inference, has_costs=has_costs, is_only=is_only)
            trace.add_execution(index, index + 1, times)
    for run in batch.answered:
        if run.chunk.trace is not None:  # its members came together, and have equally many rows
            times = parts.execution(batch.inferences[run.position], has_costs=True, is_only=True)
            run.chunk.trace.add_execution(run.first, run.end, times)
    batch.processor_ns = batch.bytes_out = 0


class _TracedParts:
    """The parts of requests in what their batch has cost since its model was told about it.

    Time and outputs are shared by rows among the requests that are answered now, inputs among all,
    each with its first answer.
    """

    def __init__(
        self,
        batch: RunningBatch,
        outcomes: list[Outcome],
        times_ns: tuple[int, int],
        statistics: ModelStatistics | None,
    ) -> None:
        self._batch = batch
        self._times_ns = times_ns
        self._ended_ns = time.monotonic_ns()
        self._server = None if statistics is None else statistics.server_costs
        requests = [each.request for each in batch.inferences]
        self._all_rows = batch.rows or sum([request.rows or 1 for request in requests]) or 1
        answered = {outcome.position for outcome in outcomes}
        rows = sum([requests[position].rows or 1 for position in answered])
        self._rows = rows + sum([run.rows for run in batch.answered])
        self._usual_ns = 0
        if not batch.processor_ns and statistics is not None and statistics.execution_count:
            # Instances do not measure each of many short executions: it is as long as the others.
            self._usual_ns = statistics.costs.worker_ns // statistics.execution_count

    def execution(self, inference: Inference, *, has_costs: bool, is_only: bool) -> ExecutionTimes:
        """Returns the times and the costs of a request.

        `has_costs` is False if it was told its part before, `is_only` is True if this is its only
        answer.
        """
        batch, own = self._batch, inference.request.rows or 1
        processor_ns = size_in = size_out = 0
        if has_costs:
            processor_ns = batch.processor_ns * own // self._rows
            size_out = batch.bytes_out * own // self._rows
            if is_only and self._usual_ns:
                processor_ns = self._usual_ns * own // self._all_rows
            if not inference.response_count:
                size_in = batch.bytes_in * own // self._all_rows
        return ExecutionTimes(
            inference.queued_ns,
            batch.started_ns,
            *self._times_ns,
            self._ended_ns,
            processor_ns,
            0 if self._server is None else self._server.of_request(size_in + size_out),
            size_in,
            size_out,
        )


def usage_of(inference: Inference, text: str) -> TokenUsage:
    """Returns where the tokens of a request are counted; `text` is the output with the text."""
    usage: TokenUsage | None = inference.usage
    if usage is None:
        usage = inference.usage = TokenUsage(text)
    return usage


def record_usage(
    statistics: ModelStatistics, text: str, batch: RunningBatch, outcomes: list[Outcome]
) -> None:
    """Count the tokens of those requests that came over OpenAI's routes.

    `text` is the output of the model with the text.
    """
    for outcome in outcomes:
        inference = batch.inferences[outcome.position]
        if not inference.request.operation:
            continue
        usage = usage_of(inference, text)
        if outcome.response is not None:
            usage.read(outcome.response)
        if outcome.is_final:
            statistics.costs.add_usage(usage)
            if inference.trace is not None:
                inference.trace.add_usage(inference.index, usage)
