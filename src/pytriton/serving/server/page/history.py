# SPDX-License-Identifier: Apache-2.0
"""The last hour of all models in a fixed amount of memory: rates, latencies, batch sizes, queues.

A timer of the server's event loop takes the samples, so a page that is opened has them at once.
Every server with a page imports this module, so it needs nothing that a server has not anyway.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pytriton.protocol.json_text import dump_json
from pytriton.serving.engine.model_state import VersionState
from pytriton.serving.engine.stats import FailureReason

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from pytriton.serving.engine.latencies import Histogram
    from pytriton.serving.engine.served_model import ManagedModel
    from pytriton.serving.engine.stats import ModelStatistics

    ListModels = Callable[[], Iterable[ManagedModel]]
    Key = tuple[str, str, int]  # namespace, name and version
    Counts = tuple[int, ...]  # of a histogram
    # Of parts of a histogram, by upper and lower bound in seconds.
    Buckets = dict[tuple[float, float], int]

logger = logging.getLogger(__name__)

_MODELS_AT_ONCE = 32  # as for /metrics: then requests have their turn
_PAUSE_S = 0.01  # until the next models are read
_TOGETHER_S = 0.25  # samples that are due within this time are taken in one walk
_SHARES = (0.5, 0.95, 0.99)
WHOLE_SERVER = 0  # the number of the sums over all models; models have the others


class Resolution(NamedTuple):
    """How far apart samples are, how far back they reach, and how much memory they may take.

    If samples become too large for that, they are further apart, and reach as far back.
    """

    interval_s: float
    span_s: float
    max_bytes: int

    def interval_for(self, sample_bytes: int) -> float:
        """Returns the time until the next sample after one of this size."""
        return max(self.interval_s, self.span_s * sample_bytes / self.max_bytes)


# A model that has work takes about 60 bytes of a sample, and others none. So a hundred busy models
# have these intervals, and a thousand 17 s and 103 s.
FINE = Resolution(2.0, 300.0, 1 << 20)
COARSE = Resolution(10.0, 3600.0, 2 << 20)


class Reading:
    """The counters of a model at one moment, or those of a model that was just loaded."""

    __slots__ = (
        *("batch_rows", "errors", "executions", "failed", "inferences", "intervals", "ok"),
        *("refused", "request_ns", "requests", "starts"),
    )

    def __init__(self, statistics: ModelStatistics | None = None) -> None:
        self.ok = self.failed = self.refused = self.errors = self.executions = 0
        self.inferences = self.batch_rows = self.request_ns = 0
        self.requests: Counts = ()  # by latency
        self.starts: Counts = ()  # of streams, by the time to the first response
        self.intervals: Counts = ()  # of streams, by the time between responses
        if statistics is not None:
            self._read(statistics)

    def _read(self, statistics: ModelStatistics) -> None:
        self.ok = statistics.success_count
        self.failed = statistics.fail.count
        self.refused = statistics.refused
        # A client that left is no error.
        self.errors = self.failed - statistics.failures[FailureReason.CANCELED] + self.refused
        self.executions = statistics.execution_count
        self.inferences = statistics.inference_count
        self.batch_rows = statistics.batch_rows
        self.request_ns = statistics.success_ns
        latencies = statistics.latencies
        if latencies is not None:
            self.requests = _counts(latencies.request)
            self.starts = _counts(latencies.stream_start)
            self.intervals = _counts(latencies.response_interval)

    def is_of(self, statistics: ModelStatistics) -> bool:
        """Returns whether no request and no execution has ended since."""
        return (
            self.executions == statistics.execution_count
            and self.ok == statistics.success_count
            and self.failed == statistics.fail.count
            and self.refused == statistics.refused
        )


def _counts(histogram: Histogram | None) -> Counts:
    return () if histogram is None else tuple(histogram.counts)


class Change:
    """What a model did between two readings, or all models together.

    Requests are those that ended, also with an error, and those that were refused. Errors are the
    refused and the failed ones, without those that clients cancelled. The mean batch size is the
    rows of all executions over their number, also of those that failed. Latencies are of successful
    requests.
    """

    __slots__ = (
        *("answered", "batch_rows", "errors", "executions", "inferences", "intervals"),
        *("latencies", "pending", "request_ns", "requests", "running", "starts"),
    )

    def __init__(self) -> None:
        self.requests = self.errors = self.inferences = 0
        self.executions = self.batch_rows = 0
        self.pending = self.running = 0  # now
        self.answered = self.request_ns = 0  # the requests that latencies are of
        self.latencies: Buckets = {}
        self.starts: Buckets = {}
        self.intervals: Buckets = {}

    @classmethod
    def of(cls, model: ManagedModel, before: Reading, now: Reading) -> Change:
        """Compare two readings of a model."""
        change = cls()
        change.answered = now.ok - before.ok
        change.errors = now.errors - before.errors
        ended = now.ok + now.failed + now.refused
        change.requests = ended - before.ok - before.failed - before.refused
        change.inferences = now.inferences - before.inferences
        change.executions = now.executions - before.executions
        change.batch_rows = now.batch_rows - before.batch_rows
        change.request_ns = now.request_ns - before.request_ns
        change.pending = model.statistics.pending_count
        change.running = model.running_count
        latencies = model.statistics.latencies
        if latencies is not None:
            change.latencies = _grown(latencies.request, before.requests, now.requests)
            change.starts = _grown(latencies.stream_start, before.starts, now.starts)
            change.intervals = _grown(latencies.response_interval, before.intervals, now.intervals)
        return change

    def add(self, other: Change, *, is_stream: bool) -> None:
        """Add what another model did; a stream may take minutes, and is not in the latencies."""
        self.requests += other.requests
        self.errors += other.errors
        self.inferences += other.inferences
        self.executions += other.executions
        self.batch_rows += other.batch_rows
        self.pending += other.pending
        self.running += other.running
        if is_stream:
            _merge(self.starts, other.starts)
            _merge(self.intervals, other.intervals)
        else:
            self.answered += other.answered
            self.request_ns += other.request_ns
            _merge(self.latencies, other.latencies)

    def record(self, number: int, seconds: float) -> str:
        """Returns its numbers as a JSON array: rates, latencies in ms, batch size, queue."""
        mean_ms = self.request_ns / self.answered / 1e6 if self.answered else None
        batch = self.batch_rows / self.executions if self.executions else None
        return (
            f"[{number},{self.requests / seconds:.5g},{self.errors / seconds:.5g},"
            f"{self.inferences / seconds:.5g},{_text(mean_ms)},{_quantiles(self.latencies)},"
            f"{_text(batch)},{self.pending},{self.running}]"
        )

    def stream_record(self, number: int) -> str:
        """Returns the times to the first response and between responses, in ms."""
        return f"[{number},{_quantiles(self.starts)},{_quantiles(self.intervals)}]"


def _grown(histogram: Histogram | None, before: Counts, now: Counts) -> Buckets:
    if histogram is None or before == now:
        return {}
    bounds = histogram.bounds
    edges = zip((*bounds, math.inf), (0.0, *bounds), strict=True)
    before = before or (0,) * len(now)
    return {
        edge: count - earlier
        for edge, earlier, count in zip(edges, before, now, strict=True)
        if count != earlier
    }


def _merge(merged: Buckets, buckets: Buckets) -> None:
    for edge, count in buckets.items():
        merged[edge] = merged.get(edge, 0) + count


def quantile_ms(buckets: Buckets, share: float) -> float | None:
    """Returns the time that a share of the events did not exceed, linear within a bucket.

    For a bucket without an upper bound it is the lower one; None if there are no events.
    """
    rank = share * sum(buckets.values())
    lower: float | None = None
    for (upper, lower), count in sorted(buckets.items()):
        if rank <= count:
            within = lower if upper == math.inf else lower + (upper - lower) * rank / count
            return within * 1e3
        rank -= count
    return None if lower is None else lower * 1e3


def _quantiles(buckets: Buckets) -> str:
    return ",".join([_text(quantile_ms(buckets, share)) for share in _SHARES])


def _text(value: float | None) -> str:
    return "null" if value is None else f"{value:.5g}"


class _Known:
    """A model version that samples tell of, also for a while after it was unloaded."""

    __slots__ = ("before", "key", "last_seen", "number", "since", "since_s", "statistics")

    def __init__(self, key: Key, number: int, since: int, since_s: float) -> None:
        self.key = key
        self.number = number  # in the records of samples
        self.since = since  # the number of the sample that knows it first
        self.since_s = since_s
        self.last_seen = since
        self.statistics: ModelStatistics | None = None
        self.before: dict[Track, Reading] = {}  # what the last sample of each track has seen

    def follow(self, statistics: ModelStatistics, sample: int) -> None:
        """Take note that it is there; if it was loaded again, it counts from zero."""
        self.last_seen = sample
        if self.statistics is not statistics:
            self.statistics = statistics
            self.before = {}


class Track:
    """The samples of one resolution, as JSON texts in a bounded number of bytes."""

    def __init__(self, resolution: Resolution, now_s: float) -> None:
        self.resolution = resolution
        self._taken_s = now_s
        self._refused = 0  # requests that reached no model, up to the last sample
        self.due_s = now_s + resolution.interval_s
        self._samples: deque[tuple[int, float, bytes]] = deque()  # number, time, text
        self._bytes = 0

    def seconds(self, now_s: float) -> float:
        """Returns the time since the last sample, which a sample of now is about."""
        return max(now_s - self._taken_s, 1e-3)

    def newly_refused(self, refused: int) -> int:
        """Returns how many of all requests that reached no model are new in this sample."""
        new, self._refused = refused - self._refused, refused
        return new

    def add(self, number: int, now_s: float, sample: bytes) -> None:
        """Keep a sample, and drop those that are too old or do not fit beside it."""
        self._taken_s = now_s
        self.due_s = now_s + self.resolution.interval_for(len(sample))
        self._samples.append((number, now_s, sample))
        self._bytes += len(sample)
        oldest_s = now_s - self.resolution.span_s
        while len(self._samples) > 1 and (
            self._samples[0][1] < oldest_s or self._bytes > self.resolution.max_bytes
        ):
            self._bytes -= len(self._samples.popleft()[2])

    @property
    def first_number(self) -> int:
        """The number of the oldest sample; 0 if there is none."""
        return self._samples[0][0] if self._samples else 0

    def after(self, number: int) -> bytes:
        """Returns the samples after the one with this number as a JSON array."""
        return b"[%b]" % b",".join([text for each, _, text in self._samples if each > number])


class _Sample:
    """A sample of a track that is being taken."""

    __slots__ = ("records", "seconds", "streams", "total", "track")

    def __init__(self, track: Track, now_s: float) -> None:
        self.track = track
        self.seconds = track.seconds(now_s)
        self.total = Change()
        self.records: list[str] = []
        self.streams: list[str] = []

    def add(self, number: int, change: Change, *, is_stream: bool) -> None:
        self.total.add(change, is_stream=is_stream)
        self.records.append(change.record(number, self.seconds))
        if change.starts or change.intervals:
            self.streams.append(change.stream_record(number))

    def text(self, time_s: float, memory_bytes: int | None, refused: int) -> bytes:
        """Returns it as JSON: time, seconds, memory, records, records of streams."""
        new = self.track.newly_refused(refused)
        self.total.requests += new
        self.total.errors += new
        if self.records or new:
            self.records.append(self.total.record(WHOLE_SERVER, self.seconds))
        if self.streams:
            self.streams.append(self.total.stream_record(WHOLE_SERVER))
        memory = "null" if memory_bytes is None else memory_bytes
        lists = f"[{','.join(self.records)}],[{','.join(self.streams)}]"
        return f"[{time_s:.2f},{self.seconds:.2f},{memory},{lists}]".encode()


class Sweep:
    """One walk over all models, for the tracks whose samples are due."""

    def __init__(self, history: History, tracks: list[Track], now_s: float, time_s: float) -> None:
        self.number = history.last_number + 1
        self.time_s = time_s
        self._now_s = now_s
        self._history = history
        self._samples = [_Sample(track, now_s) for track in tracks]

    def add(self, model: ManagedModel) -> None:
        """Read a model; if it did nothing since the last sample, it has no record."""
        statistics = model.statistics
        known = self._history.known(model, self)
        is_idle = not (statistics.pending_count or model.running_count)
        now: Reading | None = None
        for sample in self._samples:
            before = known.before.get(sample.track, _NEW)
            if is_idle and before.is_of(statistics):
                continue
            now = now or Reading(statistics)
            known.before[sample.track] = now
            change = Change.of(model, before, now)
            sample.add(known.number, change, is_stream=model.spec.decoupled)

    def finish(self, memory_bytes: int | None, refused: int = 0) -> None:
        """Keep the samples; `refused` counts all requests that reached no model."""
        for sample in self._samples:
            text = sample.text(self.time_s, memory_bytes, refused)
            sample.track.add(self.number, self._now_s, text)
        self._history.last_number = self.number
        self._history.forget_gone()


_NEW = Reading()


class History:
    """All samples, and the models that they tell of.

    Samples of all resolutions have numbers of one sequence. Besides them, each model takes about
    1 KiB for what the last sample has seen, and stays known while a sample may tell of it.
    """

    def __init__(self, now_s: float, fine: Resolution = FINE, coarse: Resolution = COARSE) -> None:
        self._fine, self._coarse = Track(fine, now_s), Track(coarse, now_s)
        self._tracks = (self._fine, self._coarse)
        self._models: dict[Key, _Known] = {}
        self._last_model = WHOLE_SERVER
        self.last_number = 0  # of the samples that are complete

    @property
    def due_s(self) -> float:
        """When the next sample has to be taken."""
        return min(track.due_s for track in self._tracks)

    def begin(self, now_s: float, time_s: float) -> Sweep:
        """Begin the samples that are due; `time_s` is that of the wall clock."""
        due = [track for track in self._tracks if track.due_s <= now_s + _TOGETHER_S]
        return Sweep(self, due, now_s, time_s)

    def known(self, model: ManagedModel, sweep: Sweep) -> _Known:
        """Returns what is known of a model that a walk has found."""
        spec = model.spec
        key = (spec.namespace, spec.name, spec.version)
        known = self._models.get(key)
        if known is None:
            self._last_model += 1
            known = _Known(key, self._last_model, sweep.number, sweep.time_s)
            self._models[key] = known
        known.follow(model.statistics, sweep.number)
        return known

    def forget_gone(self) -> None:
        """Forget models that were unloaded before the oldest sample."""
        first = min(track.first_number for track in self._tracks)
        for key in [key for key, each in self._models.items() if each.last_seen < first]:
            del self._models[key]

    def after(self, number: int) -> dict[str, bytes]:
        """Returns what is new since the sample with this number, as JSON texts.

        A number that no sample has had yet is one of an earlier server: all are returned.
        """
        if not 0 <= number <= self.last_number:
            number = 0
        models = [
            [each.number, *each.key[:2], str(each.key[2]), each.since_s]
            for each in self._models.values()
            if each.since > number
        ]
        return {
            "models": dump_json(models),
            "fine": self._fine.after(number),
            "coarse": self._coarse.after(number),
        }


class Sampler:
    """Takes samples whenever they are due.

    Exactly one timer of the loop runs until `stop`. Many models are read in slices, with pauses in
    which requests are served.
    """

    def __init__(
        self,
        list_models: ListModels,
        count_refused: Callable[[], int],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._list_models = list_models
        self._count_refused = count_refused
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self.history = History(loop.time())

    def start(self) -> None:
        """Begin to take samples."""
        self._wait()

    def stop(self) -> None:
        """Take no more samples."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        delay_s = max(self.history.due_s - self._loop.time(), _PAUSE_S)
        self._timer = self._loop.call_later(delay_s, self._begin)

    def _begin(self) -> None:
        models = [model for model in self._list_models() if is_shown(model)]
        self._read(self.history.begin(self._loop.time(), time.time()), models, 0)

    def _read(self, sweep: Sweep, models: list[ManagedModel], first: int) -> None:
        try:
            end = first + _MODELS_AT_ONCE
            for model in models[first:end]:
                sweep.add(model)
            if end < len(models):
                self._timer = self._loop.call_later(_PAUSE_S, self._read, sweep, models, end)
                return
            sweep.finish(resident_bytes(), self._count_refused())
        except Exception:
            logger.exception("a sample could not be taken: charts of the page get no more points")
            self._timer = None
        else:
            self._wait()


def is_shown(model: ManagedModel) -> bool:
    """Returns whether the page has numbers of a model."""
    return model.state in (VersionState.READY, VersionState.UNLOADING) or bool(model.instances)


def resident_bytes() -> int | None:
    """Returns the memory of this process; None if the system does not tell as Linux does."""
    try:
        pages = Path("/proc/self/statm").read_bytes().split()[1]
    except OSError:  # no Linux, or no descriptors
        return None
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
