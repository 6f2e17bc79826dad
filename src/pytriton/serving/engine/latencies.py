# SPDX-License-Identifier: Apache-2.0
"""The distributions of a model's latencies: histograms, and quantiles of the last minute.

`serving.engine.stats` has the sums of the same durations. Requests that ended together and took
equally long are counted in one step.
"""

from __future__ import annotations

import logging
import math
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import msgspec

from pytriton.base.model_spec import ModelSpec
from pytriton.runtime.executor.inference import trace_of

if TYPE_CHECKING:
    from pytriton.runtime.executor.inference import Inference


class Exemplar(msgspec.Struct, frozen=True, gc=False):
    """A request that took some time, and by what its trace and its lines in logs are found."""

    ns: int
    at_ns: int  # when it was answered, by the monotonic clock
    trace_id: str = ""  # "": it was not traced
    request_id: str = ""


class SlowRequests:
    """The newest of the requests that took longer than a limit.

    Each has a slot, the next one after the last. So a reader who remembers how often each slot was
    used knows which requests are new, and whether some of them are missing.

    Args:
        limit_ns: Requests that took so long are slow.
        size: The number of slots.
    """

    __slots__ = ("_size", "_slots", "count", "limit_ns")

    def __init__(self, limit_ns: float = math.inf, size: int = 0) -> None:
        self.limit_ns = limit_ns
        self.count = 0
        self._size = size
        self._slots: list[Exemplar] = []

    def add(self, exemplar: Exemplar) -> None:
        """Add a slow request, in the place of the oldest one if all slots are in use."""
        if self.count < self._size:
            self._slots.append(exemplar)
        else:
            self._slots[self.count % self._size] = exemplar
        self.count += 1

    def readings(self) -> list[tuple[int, int, Exemplar]]:
        """Returns each slot in use, how many requests have used it, and the newest of them."""
        rounds, used = divmod(self.count, self._size) if self._size else (0, 0)
        return [(slot, rounds + (slot < used), each) for slot, each in enumerate(self._slots)]


class Histogram:
    """Counts durations in nanoseconds by bounds in another unit.

    A duration belongs to the first of `counts` whose limit in `limits_ns` it does not exceed; the
    last one has no limit. `exemplars` has the newest request of each that can be found elsewhere.

    Args:
        bounds: The upper bounds of the buckets, ascending.
        unit_ns: The unit of the bounds, in nanoseconds.
    """

    __slots__ = ("bounds", "counts", "exemplars", "limits_ns")

    def __init__(self, bounds: Sequence[float], unit_ns: int) -> None:
        self.bounds = tuple(bounds)
        self.limits_ns = [round(bound * unit_ns) for bound in bounds]
        self.counts = [0] * (len(bounds) + 1)
        self.exemplars: list[Exemplar | None] = [None] * (len(bounds) + 1)

    def show(self, exemplar: Exemplar) -> None:
        """Let a request stand for the others of its bucket; it is counted already."""
        self.exemplars[bisect_left(self.limits_ns, exemplar.ns)] = exemplar

    def add(self, ns: int, count: int = 1) -> None:
        """Count `count` events that took `ns` each."""
        self.counts[bisect_left(self.limits_ns, ns)] += count

    @property
    def count(self) -> int:
        """The number of all events."""
        return sum(self.counts)

    def cumulative(self) -> list[int]:
        """Returns how many events were within each bound, and at last the number of all."""
        return list(accumulate(self.counts))


def count_within(sizes: Sequence[tuple[int, int]], bounds: Sequence[float]) -> list[int]:
    """Returns the cumulative counts of a histogram, made of (size, count) pairs."""
    counts = [0] * (len(bounds) + 1)
    for size, count in sizes:
        counts[bisect_left(bounds, size)] += count
    return list(accumulate(counts))


SLICE_NS = 12_000_000_000
SLICES = 5
# Larger values keep as many bits as this one has, so they are at most 0.1 % too small.
_LARGEST_EXACT = 2047
_EXACT_BITS = _LARGEST_EXACT.bit_length()


class Quantile(msgspec.Struct, frozen=True):
    """A quantile that summaries show."""

    rank: float  # from 0 to 1
    error: float  # how far the rank of the value may be off


class QuantileSummary:
    """Counts values, and knows quantiles of those of the last 48 to 60 seconds.

    The window is made of slices of 12 seconds: each has the number of values by value, and the
    oldest slice is dropped as a whole. The rank of a quantile is exact; what is not is the value,
    which is at most 0.1 % too small from 2048 on. The caller passes the number of the slice, which
    is the time divided by `SLICE_NS`.
    """

    __slots__ = ("_slice", "_slices", "_values", "count")

    def __init__(self) -> None:
        self.count = 0  # of all values since the start, not only of the window
        self._slice = -1
        self._values: dict[int, int] = {}  # of this slice
        self._slices: deque[tuple[int, dict[int, int]]] = deque(maxlen=SLICES)

    def add(self, value: int, count: int, now_slice: int) -> None:
        """Count a value that came `count` times."""
        if now_slice != self._slice:
            self._slice, self._values = now_slice, {}
            self._slices.append((now_slice, self._values))
        self.count += count
        if value > _LARGEST_EXACT:
            shift = value.bit_length() - _EXACT_BITS
            value = value >> shift << shift
        values = self._values
        values[value] = values.get(value, 0) + count

    def values_at(self, ranks: Sequence[float], now_slice: int) -> list[float]:
        """Returns the value at each rank from 0 to 1; NaN if the window is empty."""
        merged: dict[int, int] = {}
        for number, values in self._slices:
            if number > now_slice - SLICES:
                for value, count in values.items():
                    merged[value] = merged.get(value, 0) + count
        if not merged:
            return [math.nan] * len(ranks)
        ordered = sorted(merged.items())
        total = sum(merged.values())
        return [_value_at(rank, ordered, total) for rank in ranks]


def _value_at(rank: float, ordered: Sequence[tuple[int, int]], count: int) -> int:
    """Returns the smallest value that is not less than a share of `rank` of all values."""
    passed = 0
    for value, times in ordered:
        passed += times
        if passed >= rank * count:
            return value
    return ordered[-1][0]


logger = logging.getLogger(__name__)

# The names of the families whose buckets a model's configuration may choose.
FIRST_RESPONSE = "nv_inference_first_response_histogram_ms"
REQUEST = "nv_inference_request_latency_seconds"
QUEUE = "nv_inference_queue_latency_seconds"
COMPUTE = "nv_inference_compute_latency_seconds"
BATCH_SIZE = "nv_inference_batch_size"
STREAM_START = "nv_inference_first_response_latency_seconds"
RESPONSE_INTERVAL = "nv_inference_response_interval_seconds"
HISTOGRAMS = (
    *(FIRST_RESPONSE, REQUEST, QUEUE, COMPUTE, BATCH_SIZE),
    *(STREAM_START, RESPONSE_INTERVAL),
)

DEFAULT_LATENCY_BUCKETS_S = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025),
    *(0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
DEFAULT_BATCH_SIZE_BUCKETS = tuple(float(1 << power) for power in range(11))
DEFAULT_FIRST_RESPONSE_BUCKETS_MS = (100.0, 500.0, 2000.0, 5000.0)

DEFAULT_SLOW_S = 1.0
SLOW_SLOTS = 128
_MAX_ID_CHARACTERS = 128  # a client may send ids of any length, and exemplars stay
_EXEMPLARS_EVERY_NS = 100_000_000

_SECOND_NS = 1_000_000_000
_MS_NS = 1_000_000


class LatencyPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Which distributions are recorded for each model."""

    histograms: bool = True  # of requests, queues, computation, batch sizes and streams
    latency_buckets_s: tuple[float, ...] = DEFAULT_LATENCY_BUCKETS_S
    batch_size_buckets: tuple[float, ...] = DEFAULT_BATCH_SIZE_BUCKETS
    first_responses: bool = False
    quantiles: tuple[Quantile, ...] = ()  # of summaries; empty: there are none
    slow_s: float = DEFAULT_SLOW_S  # the newest requests that took longer are kept


class Summaries:
    """The summaries of a model, in microseconds.

    Those of a model with a response cache have the times of the cache, and not those of whole
    requests, as in Triton.
    """

    def __init__(self, quantiles: tuple[Quantile, ...], *, has_cache: bool) -> None:
        self.quantiles = quantiles
        self.request = None if has_cache else QuantileSummary()
        self.queue = QuantileSummary()
        self.compute_input = QuantileSummary()
        self.compute_infer = QuantileSummary()
        self.compute_output = QuantileSummary()
        self.cache_hit = QuantileSummary() if has_cache else None
        self.cache_miss = QuantileSummary() if has_cache else None


class Latencies:
    """Records the latencies of one loaded model version."""

    __slots__ = (
        "_clock",
        "_has_more",
        "_only_response",
        "_stream_response",
        "batch_sizes",
        "compute",
        "due_ns",
        "first_response",
        "first_response_ns",
        "queue",
        "request",
        "response_interval",
        "response_interval_ns",
        "slow",
        "stream_start",
        "summaries",
    )

    def __init__(
        self, plan: LatencyPlan, spec: ModelSpec, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        chosen = spec.histogram_buckets
        self._clock = clock
        self.request = self.queue = self.compute = None
        self.batch_sizes: tuple[float, ...] = ()  # bounds; what they count is in the statistics
        if plan.histograms:
            self.request = _seconds(chosen, REQUEST, plan)
            self.queue = _seconds(chosen, QUEUE, plan)
            self.compute = _seconds(chosen, COMPUTE, plan)
            self.batch_sizes = chosen.get(BATCH_SIZE) or _up_to(
                spec.max_batch_size, plan.batch_size_buckets
            )
        # Only decoupled models have streams, whose first response and pace matter.
        self.stream_start: Histogram | None = None
        self.response_interval: Histogram | None = None
        self.response_interval_ns = 0  # the sum
        if plan.histograms and spec.decoupled:
            self.stream_start = _seconds(chosen, STREAM_START, plan)
            self.response_interval = _seconds(chosen, RESPONSE_INTERVAL, plan)
        # When the exemplar of each bucket of requests is old enough for another.
        self.due_ns: list[float] = [math.inf]
        if self.request is not None:
            self.due_ns = [0] * len(self.request.counts)
        self.slow = SlowRequests()
        if plan.histograms:
            self.slow = SlowRequests(plan.slow_s * _SECOND_NS, SLOW_SLOTS)
        self.first_response: Histogram | None = None
        self.first_response_ns = 0  # the sum, also that of `stream_start`
        if plan.first_responses:
            bounds = chosen.get(FIRST_RESPONSE, DEFAULT_FIRST_RESPONSE_BUCKETS_MS)
            self.first_response = Histogram(bounds, _MS_NS)
        # The only response of a model that is not decoupled is its first one, too.
        self._only_response = None if spec.decoupled else self.first_response
        self._stream_response = self.first_response if spec.decoupled else None
        self._has_more = plan.first_responses or bool(plan.quantiles)
        self.summaries: Summaries | None = None
        if plan.quantiles:
            self.summaries = Summaries(plan.quantiles, has_cache=spec.response_cache)

    def time_slice(self) -> int:
        """Returns the part of the window of summaries that is filled now."""
        return self._clock() // SLICE_NS

    def on_requests(self, count: int, request_ns: int, queue_ns: int) -> int:
        """Count requests that succeeded, each after `request_ns`, of which it waited `queue_ns`.

        Returns the place of their bucket, which is that of `due_ns`, too.
        """
        request, queue = self.request, self.queue
        bucket = 0
        if request is not None and queue is not None:
            # As `Histogram.add` does, without the two calls, which take as long as the rest.
            bucket = bisect_left(request.limits_ns, request_ns)
            request.counts[bucket] += count
            queue.counts[bisect_left(queue.limits_ns, queue_ns)] += count
        if self._has_more:
            self._add_requests(count, request_ns, queue_ns)
        return bucket

    def on_identified(
        self,
        inferences: Sequence[Inference],
        request_ns: int,
        queue_ns: int,
        compute_ns: int,
        now_ns: int,
    ) -> None:
        """Show who the requests are that were just counted together, if that can be known.

        The last one stands for them in the histograms. If they were slow, each of them is kept.
        Nobody has to call it before `due_ns` of their bucket, unless they were slow: a scraper sees
        only one of each bucket, and this takes as long as to count ten requests.
        """
        if request_ns >= self.slow.limit_ns:
            for inference in inferences:
                self.slow.add(Exemplar(request_ns, now_ns, *identity(inference)))
        trace_id, request_id = identity(inferences[-1])
        if not trace_id and not request_id:
            return
        if self.request is not None:
            bucket = bisect_left(self.request.limits_ns, request_ns)
            self.due_ns[bucket] = now_ns + _EXEMPLARS_EVERY_NS
        shown = ((self.request, request_ns), (self.queue, queue_ns), (self.compute, compute_ns))
        for histogram, ns in shown:
            if histogram is not None:
                histogram.show(Exemplar(ns, now_ns, trace_id, request_id))

    def _add_requests(self, count: int, request_ns: int, queue_ns: int) -> None:
        if self._only_response is not None:
            self._only_response.add(request_ns, count)
            self.first_response_ns += request_ns * count
        if self.summaries is not None:
            now = self.time_slice()
            if self.summaries.request is not None:
                self.summaries.request.add(request_ns // 1000, count, now)
            self.summaries.queue.add(queue_ns // 1000, count, now)

    def on_execution(self, count: int, input_ns: int, infer_ns: int, output_ns: int) -> None:
        """Count the compute times of an execution for the `count` requests that succeeded."""
        compute = self.compute
        if compute is not None:
            ns = input_ns + infer_ns + output_ns
            compute.counts[bisect_left(compute.limits_ns, ns)] += count
        if self.summaries is not None:
            now = self.time_slice()
            self.summaries.compute_input.add(input_ns // 1000, count, now)
            self.summaries.compute_infer.add(infer_ns // 1000, count, now)
            self.summaries.compute_output.add(output_ns // 1000, count, now)

    def on_first_response(self, ns: int) -> None:
        """Count the first response to a request, if the model is decoupled."""
        if self.stream_start is not None:
            self.stream_start.add(ns)
        elif self._stream_response is None:
            return
        if self._stream_response is not None:
            self._stream_response.add(ns)
        self.first_response_ns += ns

    def on_next_responses(self, count: int, ns: int) -> None:
        """Count responses of a stream that came together, `ns` after the one before them.

        They share this time equally: that they were taken out of the channel together says how busy
        the server was, and not how the model paced them.
        """
        interval = self.response_interval
        if interval is not None:  # inlined as in `on_requests`
            interval.counts[bisect_left(interval.limits_ns, ns // count)] += count
            self.response_interval_ns += ns

    def on_cache_hit(self, lookup_ns: int, request_ns: int) -> None:
        """Count a request that the cache answered."""
        if self.request is not None:
            self.request.add(request_ns)
        if self._only_response is not None:
            self._only_response.add(request_ns)
            self.first_response_ns += request_ns
        if self.summaries is not None and self.summaries.cache_hit is not None:
            self.summaries.cache_hit.add(lookup_ns // 1000, 1, self.time_slice())

    def on_cache_misses(self, count: int, ns: int) -> None:
        """Count requests that the cache could not answer; `ns` is the sum of their times."""
        if count and self.summaries is not None and self.summaries.cache_miss is not None:
            self.summaries.cache_miss.add(ns // (1000 * count), count, self.time_slice())


def identity(inference: Inference) -> tuple[str, str]:
    """Returns the ids of a request's trace and of the request; empty if it has none."""
    trace = trace_of(inference)
    trace_id = "" if trace is None else trace.trace_id(inference.index)
    return trace_id, inference.request.fields.id[:_MAX_ID_CHARACTERS]


def plan_latencies(plan: LatencyPlan, spec: ModelSpec) -> Latencies:
    """Make the recorder of a model that is loaded; says which of its settings have no effect."""
    for family in spec.histogram_buckets:
        if family not in HISTOGRAMS:
            logger.warning(
                "model_metrics of model '%s': '%s' is no histogram whose buckets can be chosen; "
                "those are %s",
                spec.name,
                family,
                ", ".join(HISTOGRAMS),
            )
    return Latencies(plan, spec)


def _seconds(chosen: Mapping[str, tuple[float, ...]], family: str, plan: LatencyPlan) -> Histogram:
    return Histogram(chosen.get(family) or plan.latency_buckets_s, _SECOND_NS)


def _up_to(most: int, bounds: tuple[float, ...]) -> tuple[float, ...]:
    """Returns the bounds below the largest batch, and the first that includes it."""
    below = tuple(bound for bound in bounds if bound < most)
    return bounds[: len(below) + 1]
