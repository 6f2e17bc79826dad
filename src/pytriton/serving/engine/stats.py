# SPDX-License-Identifier: Apache-2.0
"""The statistics of a model version since it was loaded: counts and durations.

The engine adds to plain integers, once per batch; readers get them as the durations of Triton's
statistics messages. The functions at the end add the outcomes of batches.
"""

from __future__ import annotations

import enum
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from pytriton.base.messages import ExecutionTimes, RequestPath
from pytriton.serving.engine.costs import ModelCosts, ServerCosts, TokenUsage
from pytriton.serving.engine.failures import REFUSED
from pytriton.serving.engine.latencies import Latencies

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytriton.base.errors import ServerError
    from pytriton.runtime.executor.inference import Inference, Outcome, RunningBatch
    from pytriton.serving.engine.failures import ModelFailures
    from pytriton.serving.engine.quotas import Account

# A stream may have any number of responses; those beyond the last index are counted there.
MAX_RESPONSE_INDEXES = 1024


class FailureReason(enum.Enum):
    """Why a request failed: the values of the failure metric's `reason` label."""

    REJECTED = "REJECTED"  # its queue timeout expired
    CANCELED = "CANCELED"
    BACKEND = "BACKEND"  # the model returned an error
    OTHER = "OTHER"


class ResponseOutcome(enum.Enum):
    """How one response of a decoupled request ended."""

    SUCCESS = "success"
    FAIL = "fail"
    EMPTY = "empty_response"  # it has flags but no tensor
    CANCEL = "cancel"


@dataclass(slots=True)
class Duration:
    """The number of some events, and how long they took in total."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int, count: int = 1) -> None:
        """Add `count` events that took `ns` together."""
        self.count += count
        self.ns += ns


@dataclass(slots=True)
class InferenceDurations:
    """Durations over all requests; the compute times of a batch count for each of its requests."""

    success: Duration
    fail: Duration
    queue: Duration
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration
    cache_hit: Duration
    cache_miss: Duration


@dataclass(slots=True)
class BatchDurations:
    """Durations over the executions of one batch size."""

    batch_size: int
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration


@dataclass(slots=True)
class ResponseDurations:
    """Durations over the responses of one index; a request's first response has index 0."""

    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    empty_response: Duration = field(default_factory=Duration)
    cancel: Duration = field(default_factory=Duration)


class BurstTotals:
    """Sums over responses of bursts by index, kept as what changes from one index to the next.

    So a burst is counted where it begins and where it ends, whatever its length.
    """

    __slots__ = ("_changes",)

    def __init__(self) -> None:
        self._changes: dict[int, list[int]] = {}  # of the count, of both times; by index

    def add(self, first: int, end: int, infer_ns: int, output_ns: int, count: int = 1) -> None:
        """Add to each index from `first` to `end`, without `end`: `count` successful responses."""
        changes = self._changes
        begun = changes.setdefault(first, [0, 0, 0])
        begun[0] += count
        begun[1] += infer_ns
        begun[2] += output_ns
        ended = changes.setdefault(end, [0, 0, 0])
        ended[0] -= count
        ended[1] -= infer_ns
        ended[2] -= output_ns

    def move_to(self, responses: list[ResponseDurations]) -> None:
        """Add the sums to the durations by index, and begin with none again."""
        changes, self._changes = self._changes, {}
        count = infer_ns = output_ns = 0
        for index in range(max(changes, default=0)):
            if index in changes:
                more, more_infer_ns, more_output_ns = changes[index]
                count += more
                infer_ns += more_infer_ns
                output_ns += more_output_ns
            while len(responses) <= index:
                responses.append(ResponseDurations())
            response = responses[index]
            response.compute_infer.add(infer_ns, count)
            response.compute_output.add(output_ns, count)
            response.success.add(infer_ns + output_ns, count)


class BatchRecord(msgspec.Struct, gc=False):
    """One execution: when its phases began, and sums over those of its requests that succeeded."""

    rows: int  # of all its requests, also of those that failed
    input_start_ns: int = 0
    infer_start_ns: int = 0
    output_start_ns: int = 0
    end_ns: int = 0
    succeeded: int = 0
    succeeded_rows: int = 0
    succeeded_ns: int = 0  # from receipt to response, summed
    queue_ns: int = 0  # summed


@dataclass(slots=True)
class _ComputeTotals:
    """Sums of the compute phases over `count` executions, or over `count` requests."""

    count: int = 0
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0

    def add(self, other: _ComputeTotals) -> None:
        self.count += other.count
        self.input_ns += other.input_ns
        self.infer_ns += other.infer_ns
        self.output_ns += other.output_ns

    def durations(self) -> tuple[Duration, Duration, Duration]:
        count = self.count
        return (
            Duration(count, self.input_ns),
            Duration(count, self.infer_ns),
            Duration(count, self.output_ns),
        )


@dataclass(slots=True, repr=False, eq=False)
class ModelStatistics:
    """The statistics of one loaded model version; a reload starts from zero."""

    inference_count: int = 0  # rows of the successful requests that ran
    execution_count: int = 0
    last_inference_ms: int = 0  # since the epoch; 0: none yet
    pending_count: int = 0  # requests that are queued and not executing; `Model` updates it
    load_ns: int = 0
    lost_instances: int = 0  # instances that ended without being stopped
    requeued_requests: int = 0  # requests of lost instances that another one got
    scale_ups: int = 0  # instances that were started because of the load
    scale_downs: int = 0  # and those that were ended because of it
    fail: Duration = field(default_factory=Duration)
    cache_hit: Duration = field(default_factory=Duration)
    cache_miss: Duration = field(default_factory=Duration)
    failures: dict[FailureReason, int] = field(
        default_factory=lambda: dict.fromkeys(FailureReason, 0)
    )
    refused: int = 0  # requests that it has not seen, which Triton does not count
    recent: ModelFailures | None = None  # keeps groups of the last failures, if these are wanted
    paths: list[int] = field(default_factory=lambda: [0] * len(RequestPath))  # requests by path
    last_batch: BatchRecord | None = None  # while its answers are passed on, their batch
    latencies: Latencies | None = None  # their distributions, if those are wanted
    costs: ModelCosts = field(default_factory=ModelCosts)
    server_costs: ServerCosts | None = None  # the share of the server's own time
    accounts: Sequence[Account] = ()  # what principals have used; none if nobody has quotas
    _batches: dict[int, _ComputeTotals] = field(default_factory=dict)  # by rows
    _executed: _ComputeTotals = field(default_factory=_ComputeTotals)  # successful requests
    _success_ns: int = 0
    _queue_ns: int = 0
    _responses: list[ResponseDurations] = field(default_factory=list)  # by index
    _bursts: BurstTotals = field(default_factory=BurstTotals)  # those that are not in `_responses`

    @property
    def responses(self) -> list[ResponseDurations]:
        """The durations of responses of decoupled requests by index."""
        self._bursts.move_to(self._responses)
        return self._responses

    def record_batch(self, record: BatchRecord, now_ms: int) -> None:
        """Count one execution and its successful requests; the others go to `record_failures`."""
        infer_start_ns = record.infer_start_ns
        output_start_ns = record.output_start_ns
        input_ns = infer_start_ns - record.input_start_ns
        infer_ns = output_start_ns - infer_start_ns
        output_ns = record.end_ns - output_start_ns
        self.execution_count += 1
        self.last_batch = record
        batch = self._batches.get(record.rows)
        if batch is None:
            batch = self._batches[record.rows] = _ComputeTotals()
        batch.count += 1
        batch.input_ns += input_ns
        batch.infer_ns += infer_ns
        batch.output_ns += output_ns
        succeeded = record.succeeded
        if succeeded:
            self.inference_count += record.succeeded_rows
            self.last_inference_ms = now_ms
            self._success_ns += record.succeeded_ns
            self._queue_ns += record.queue_ns
            executed = self._executed
            executed.count += succeeded
            executed.input_ns += succeeded * input_ns
            executed.infer_ns += succeeded * infer_ns
            executed.output_ns += succeeded * output_ns
            if self.latencies is not None:
                self.latencies.on_execution(succeeded, input_ns, infer_ns, output_ns)

    def record_alike(self, record: BatchRecord, count: int, now_ms: int) -> None:
        """Count `count` executions that are alike, each of one request that succeeded."""
        self.record_batch(record, now_ms)
        if self.latencies is not None:
            self.latencies.on_requests(count, record.succeeded_ns, record.queue_ns)
        more = count - 1
        if not more:
            return
        totals = _ComputeTotals(
            more,
            more * (record.infer_start_ns - record.input_start_ns),
            more * (record.output_start_ns - record.infer_start_ns),
            more * (record.end_ns - record.output_start_ns),
        )
        self._batches[record.rows].add(totals)
        self._executed.add(totals)
        if self.latencies is not None:
            self.latencies.on_execution(more, *(phase.ns // more for phase in totals.durations()))
        self.execution_count += more
        self.inference_count += more * record.succeeded_rows
        self._success_ns += more * record.succeeded_ns
        self._queue_ns += more * record.queue_ns

    def record_failures(self, count: int, ns: int, reason: FailureReason) -> None:
        """Count requests that failed after `ns` in total.

        Requests refused because the queue is full are not counted, as in Triton.
        """
        self.fail.add(ns, count)
        self.failures[reason] += count

    def record_failure(
        self, inference: Inference, error: ServerError, now_ns: int, reason: FailureReason
    ) -> None:
        """Count a request that failed, and note with what."""
        self.record_failures(1, now_ns - inference.request.received_ns, reason)
        if self.recent is not None:
            self.recent.add(inference, error, reason.value)

    def record_refusal(self, inference: Inference, error: ServerError) -> None:
        """Count a request that was refused, for example because the queue is full."""
        self.refused += 1
        if self.recent is not None:
            self.recent.add(inference, error, REFUSED)

    def record_cache_hit(self, lookup_ns: int, request_ns: int, now_ms: int) -> None:
        """Count a request that the cache answered: a success that neither waited nor ran."""
        self.last_inference_ms = now_ms
        self._success_ns += request_ns
        self.cache_hit.add(lookup_ns)
        if self.latencies is not None:
            self.latencies.on_cache_hit(lookup_ns, request_ns)

    def record_cache_misses(self, count: int, ns: int) -> None:
        """Count misses; `ns` is the time of the lookups and, if there were any, the insertions."""
        self.cache_miss.add(ns, count)
        if self.latencies is not None:
            self.latencies.on_cache_misses(count, ns)

    def record_response(
        self, index: int, outcome: ResponseOutcome, infer_ns: int, output_ns: int = 0
    ) -> None:
        """Count one response of a decoupled request; `output_ns` is 0 if it has no tensor."""
        responses = self._responses
        index = min(index, MAX_RESPONSE_INDEXES - 1)
        while len(responses) <= index:
            responses.append(ResponseDurations())
        response = responses[index]
        if outcome is not ResponseOutcome.CANCEL:
            response.compute_infer.add(infer_ns)
            if outcome is ResponseOutcome.SUCCESS or output_ns:
                response.compute_output.add(output_ns)
        whole: Duration = getattr(response, outcome.value)
        whole.add(infer_ns + output_ns)

    def record_burst(self, first: int, count: int, infer_ns: int, output_ns: int) -> None:
        """Count successful responses of a decoupled request, the first of index `first`."""
        last = MAX_RESPONSE_INDEXES - 1
        end = first + count
        if first < last:
            self._bursts.add(first, min(end, last), infer_ns, output_ns)
        beyond = end - max(first, last)
        if beyond > 0:
            self._bursts.add(last, last + 1, beyond * infer_ns, beyond * output_ns, beyond)

    @property
    def success_count(self) -> int:
        """The number of requests that succeeded, including those answered from the cache."""
        return self._executed.count + self.cache_hit.count

    @property
    def success_ns(self) -> int:
        """How long these requests took, in total."""
        return self._success_ns

    def inference_durations(self) -> InferenceDurations:
        """Returns the durations over all requests."""
        return InferenceDurations(
            Duration(self.success_count, self._success_ns),
            self.fail,
            Duration(self.success_count, self._queue_ns),
            *self._executed.durations(),
            self.cache_hit,
            self.cache_miss,
        )

    def batch_durations(self) -> list[BatchDurations]:
        """Returns the durations of each batch size that was executed, in ascending order."""
        return [
            BatchDurations(rows, *self._batches[rows].durations()) for rows in sorted(self._batches)
        ]

    def batch_sizes(self) -> list[tuple[int, int]]:
        """Returns pairs of the rows of an execution and the number of executions with them."""
        return [(rows, totals.count) for rows, totals in self._batches.items()]

    @property
    def batch_rows(self) -> int:
        """The rows of all executions together."""
        return sum(rows * totals.count for rows, totals in self._batches.items())

    def snapshot(self) -> dict[str, Any]:
        """Returns a copy in Triton's layout: members of the JSON object or of the gRPC message."""
        return {
            "last_inference": self.last_inference_ms,
            "inference_count": self.inference_count,
            "execution_count": self.execution_count,
            "inference_stats": msgspec.to_builtins(self.inference_durations()),
            "response_stats": {
                str(index): msgspec.to_builtins(durations)
                for index, durations in enumerate(self.responses)
            },
            "batch_stats": msgspec.to_builtins(self.batch_durations()),
        }

    def __repr__(self) -> str:
        return (
            f"<ModelStatistics {self.success_count} succeeded, {self.fail.count} failed, "
            f"{self.pending_count} pending, {self.execution_count} executions>"
        )


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
                is_known = request.id or inference.trace is not None
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
        if latencies is not None:  # the members of a chunk came together
            request_ns = now_ns - first.request.received_ns
            queue_ns = started_ns - first.queued_ns
            bucket = latencies.on_requests(count, request_ns, queue_ns)
            is_slow = request_ns >= slow_ns
            is_known = run.chunk.has_fields or run.chunk.trace is not None
            if is_slow or (is_known and now_ns >= latencies.due_ns[bucket]):
                until = run.position + count
                seen = inferences[run.position if is_slow else until - 1 : until]
                latencies.on_identified(seen, request_ns, queue_ns, now_ns - started_ns, now_ns)
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
        chunk, index = inference.chunk, inference.index
        is_only = outcome.is_final and not inference.response_count
        has_costs = outcome.position not in told
        told.add(outcome.position)
        if inference.trace is not None:
            times = parts.execution(inference, has_costs=has_costs, is_only=is_only)
            inference.trace.add_execution(times)
        elif chunk is not None and chunk.trace is not None:
            times = parts.execution(inference, has_costs=has_costs, is_only=is_only)
            chunk.trace.add_execution(index, index + 1, times)
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
                inference.trace.add_usage(usage)
