# SPDX-License-Identifier: Apache-2.0
"""The statistics of a model version since it was loaded: counts and durations.

The engine adds to plain integers, once per batch; readers get them as the durations of Triton's
statistics messages. `batch_stats` adds the outcomes of batches.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from pytriton.base.messages import RequestPath
from pytriton.serving.engine.costs import ModelCosts, ServerCosts
from pytriton.serving.engine.failures import REFUSED
from pytriton.serving.engine.latencies import Latencies

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytriton.base.errors import ServerError
    from pytriton.runtime.executor.inference import Inference
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
