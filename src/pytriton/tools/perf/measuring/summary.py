# SPDX-License-Identifier: Apache-2.0
"""Windows of a measurement, and the numbers that they give together: rates, means, percentiles."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.tools.perf.load.records import GeneratorState, Records
from pytriton.tools.perf.server_state import ServerCounts

# The columns with a row for each request.
_ROWS = (
    "begin_ns", "sent_ns", "first_ns", "last_ns", "responses", "ok", "delayed", "input_index",
    "sequence_id",
)  # fmt: skip

USUAL_PERCENTILES = (50, 90, 95, 99)
CURVE = (*(step / 2 for step in range(200)), 99.9, 100.0)  # the percentiles of a curve
_BINS = 60


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """What was measured between two moments.

    Attributes:
        records: The requests that ended in it.
        server: What the server counted meanwhile; None if it does not say.
        gpu: Gauges of the server's GPUs by name and GPU, if they are collected.
        is_cut: Whether an interrupt ended it.
    """

    begin_ns: int
    end_ns: int
    records: Records
    server: ServerCounts | None = None
    gpu: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    is_cut: bool = False

    @property
    def duration_s(self) -> float:
        return max(self.end_ns - self.begin_ns, 1) / 1e9


def join(parts: Sequence[Records]) -> Records:
    """The records of several takes as one."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return Records()
    columns: dict[str, NDArray[Any]] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in _ROWS
    }
    errors: Counter[str] = Counter()
    for part in parts:
        errors.update(part.errors)
    outputs = None
    if all(part.outputs is not None for part in parts):
        outputs = [each for part in parts for each in part.outputs or ()]
    return Records(
        **columns,
        response_ns=np.concatenate([part.response_ns for part in parts]),
        errors=dict(errors),
        generator=busiest([part.generator for part in parts if part.taken_ns > part.since_ns]),
        taken_ns=parts[-1].taken_ns,
        since_ns=parts[0].since_ns,
        is_done=parts[-1].is_done,
        outputs=outputs,
    )


def busiest(states: Sequence[GeneratorState]) -> GeneratorState:
    """How busy the generator was in all: means, as its limits are those of the whole time."""
    if not states:
        return GeneratorState()
    return GeneratorState(
        processes=max(state.processes for state in states),
        cpu_share=float(np.mean([state.cpu_share for state in states])),
        waiting_share=float(np.mean([state.waiting_share for state in states])),
        lag_ns=float(np.mean([state.lag_ns for state in states])),
        is_limit=sum(state.is_limit for state in states) * 2 > len(states),
    )


def choose(records: Records, rows: NDArray[np.bool_]) -> Records:
    """Some rows of records; errors and the generator's state stay as they are."""
    if bool(rows.all()):
        return records
    columns: dict[str, Any] = {name: getattr(records, name)[rows] for name in _ROWS}
    responses = records.response_ns
    if len(responses):
        responses = responses[np.repeat(rows, records.responses)]
    outputs = records.outputs
    if outputs is not None:
        outputs = [each for each, is_in in zip(outputs, rows, strict=True) if is_in]
    return dataclasses.replace(records, **columns, response_ns=responses, outputs=outputs)


@dataclasses.dataclass(frozen=True, slots=True)
class Distribution:
    """Times in microseconds.

    Attributes:
        percentiles: The usual ones, and the one that was asked for.
        curve_us: The times at the percentiles of `CURVE`.
        bins_us: The edges of the histogram's bins, which grow by a constant factor.
        counts: How many times are in each bin.
    """

    count: int
    avg_us: float
    std_us: float
    min_us: float
    max_us: float
    percentiles: Mapping[int, float]
    curve_us: tuple[float, ...] = ()
    bins_us: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()


def percentile_index(percentile: float, count: int) -> int:
    """The place of a percentile in sorted values, as perf_analyzer rounds it."""
    return min(int(percentile / 100 * (count - 1) + 0.5), count - 1)


def distribution_of(
    times_ns: NDArray[np.int64], extra_percentile: int | None = None
) -> Distribution | None:
    """The distribution of times; None if there are none."""
    count = len(times_ns)
    if count == 0:
        return None
    ordered = np.sort(times_ns) / 1000.0
    wanted = sorted({*USUAL_PERCENTILES, *([extra_percentile] if extra_percentile else [])})
    bins, counts = _histogram(ordered)
    return Distribution(
        count=count,
        avg_us=float(ordered.mean()),
        std_us=float(ordered.std(ddof=1)) if count > 1 else 0.0,
        min_us=float(ordered[0]),
        max_us=float(ordered[-1]),
        percentiles={each: float(ordered[percentile_index(each, count)]) for each in wanted},
        curve_us=_rounded([float(ordered[percentile_index(each, count)]) for each in CURVE]),
        bins_us=bins,
        counts=counts,
    )


def _histogram(ordered: NDArray[np.float64]) -> tuple[tuple[float, ...], tuple[int, ...]]:
    low, high = max(float(ordered[0]), 1.0), max(float(ordered[-1]), 2.0)
    if high <= low * 1.01:
        low, high = low * 0.9, high * 1.1
    edges = np.geomspace(low, high, _BINS + 1)
    counts, _ = np.histogram(np.clip(ordered, edges[0], edges[-1]), edges)
    return _rounded(edges.tolist()), tuple(int(each) for each in counts)


def _rounded(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(round(value, 1) for value in values)


@dataclasses.dataclass(frozen=True, slots=True)
class WindowSummary:
    """The numbers of some windows.

    Attributes:
        requests: Requests that were answered well.
        failed: Requests that were not.
        throughput: Inferences a second: requests times the batch size.
        response_rate: Responses a second.
        latency: From the beginning to the last response; to the first one of decoupled models.
        send_us: Mean time until a request was sent.
        whole_us: Mean time until the last response.
        between: Times between the responses of a request, for streams.
        whole: Times to the last response, for streams.
        gpu: Gauges of the server's GPUs.
    """

    requests: int
    failed: int
    delayed: int
    sequences: int
    responses: int
    duration_s: float
    throughput: float
    response_rate: float
    latency: Distribution | None
    send_us: float = 0.0
    whole_us: float = 0.0
    between: Distribution | None = None
    whole: Distribution | None = None
    server: ServerCounts | None = None
    generator: GeneratorState = dataclasses.field(default_factory=GeneratorState)
    errors: Mapping[str, int] = dataclasses.field(default_factory=dict)
    gpu: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)

    def latency_us(self, percentile: int | None) -> float:
        """The latency that counts: the mean, or a percentile; 0 without any request."""
        if self.latency is None:
            return 0.0
        if percentile is None:
            return self.latency.avg_us
        return self.latency.percentiles[percentile]

    @property
    def delayed_share(self) -> float:
        total = self.requests + self.failed
        return self.delayed / total if total else 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class SummaryRules:
    """How windows are summed up.

    Attributes:
        batch_size: Inferences of a request.
        percentile: One more percentile.
        is_decoupled: The first response counts as latency.
    """

    batch_size: int = 1
    percentile: int | None = None
    is_decoupled: bool = False


def summarise(windows: Sequence[Window], rules: SummaryRules) -> WindowSummary:
    """The numbers of windows, taken together."""
    duration_s = sum(window.duration_s for window in windows)
    every = join([window.records for window in windows])
    good = choose(every, every.ok)
    ends = good.first_ns if rules.is_decoupled else good.last_ns
    responses = int(good.responses.sum())
    return WindowSummary(
        requests=len(good),
        failed=len(every) - len(good),
        delayed=int(every.delayed.sum()),
        sequences=len(np.unique(good.sequence_id[good.sequence_id > 0])),
        responses=responses,
        duration_s=duration_s,
        throughput=len(good) * rules.batch_size / duration_s,
        response_rate=responses / duration_s,
        latency=distribution_of(ends - good.begin_ns, rules.percentile),
        send_us=_mean_us(good.sent_ns - good.begin_ns),
        whole_us=_mean_us(good.last_ns - good.begin_ns),
        between=_between(good),
        whole=distribution_of(good.last_ns - good.begin_ns) if len(good.response_ns) else None,
        server=_server(windows),
        generator=busiest([window.records.generator for window in windows]),
        errors=_errors(windows),
        gpu=_gpu(windows),
    )


def _mean_us(times_ns: NDArray[np.int64]) -> float:
    return float(times_ns.mean()) / 1000 if len(times_ns) else 0.0


def _between(records: Records) -> Distribution | None:
    """Times between responses of the same request."""
    if len(records.response_ns) < 2:
        return None
    gaps = np.diff(records.response_ns)
    starts = np.cumsum(records.responses)[:-1]  # where the responses of the next request begin
    inside = np.ones(len(gaps), np.bool_)
    inside[starts[(starts > 0) & (starts <= len(gaps))] - 1] = False
    return distribution_of(gaps[inside])


def _server(windows: Sequence[Window]) -> ServerCounts | None:
    total: ServerCounts | None = None
    for window in windows:
        if window.server is None:
            return None
        total = window.server if total is None else total + window.server
    return total


def _errors(windows: Sequence[Window]) -> dict[str, int]:
    errors: Counter[str] = Counter()
    for window in windows:
        errors.update(window.records.errors)
    return dict(errors.most_common())


def _gpu(windows: Sequence[Window]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, list[float]]] = {}
    for window in windows:
        for gauge, by_gpu in window.gpu.items():
            for gpu, value in by_gpu.items():
                found.setdefault(gauge, {}).setdefault(gpu, []).append(value)
    return {
        gauge: {gpu: float(np.mean(values)) for gpu, values in by_gpu.items()}
        for gauge, by_gpu in found.items()
    }
