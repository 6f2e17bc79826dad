# SPDX-License-Identifier: Apache-2.0
"""Rates, averages and percentiles of each model, from two samples; no I/O."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pytriton.tools.commands.top.samples import InstancePlace, Key, MetricsSample, ModelCounts

HISTORY = 60  # of samples, for sparklines
_BLOCKS = "▁▂▃▄▅▆▇█"


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One version of a model in the time between two samples; None where nothing is known."""

    name: str
    version: str
    state: str = ""
    reason: str = ""
    requests_s: float | None = None
    inferences_s: float | None = None
    errors_s: float | None = None
    pending: float | None = None
    running: float | None = None
    instances: int | None = None
    missing: int = 0
    places: tuple[InstancePlace, ...] = ()  # of its instances on a cluster
    batch: float | None = None
    average_ms: float | None = None
    queue_ms: float | None = None
    compute_ms: float | None = None
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    cache_hits: float | None = None  # their share, from 0 to 1
    succeeded: float | None = None  # since the model was loaded
    failed: float | None = None
    gpu_memory: float | None = None  # in bytes
    # How many requests came to the model by each path in the last interval.
    paths: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def key(self) -> Key:
        return self.name, self.version

    @property
    def is_served(self) -> bool:
        """Whether it is ready, and has an instance where it is known that it should have one."""
        return self.state == "READY" and bool(self.instances or not self.missing)

    @property
    def latency_ms(self) -> float | None:
        """The latency of slow requests where it is known, and the average otherwise."""
        return self.average_ms if self.p99_ms is None else self.p99_ms


class RowOrder(enum.Enum):
    """What rows are sorted by; the value is the word on the screen."""

    NAME = "name"
    REQUESTS = "requests/s"
    ERRORS = "errors/s"
    QUEUE = "queue"
    LATENCY = "latency"


_FIELDS = {
    RowOrder.REQUESTS: "requests_s",
    RowOrder.ERRORS: "errors_s",
    RowOrder.QUEUE: "pending",
    RowOrder.LATENCY: "latency_ms",
}


def rows_of(
    before: MetricsSample | None, after: MetricsSample, states: Mapping[Key, tuple[str, str]]
) -> list[Row]:
    """Compare two samples.

    Args:
        before: the earlier sample; None if there is only one, which gives no rates.
        after: the later sample.
        states: state and reason of versions; also of those that are not served.

    Returns:
        A row for each version, by name.
    """
    rows = []
    for key in sorted({*after.models, *states}):
        counts = after.models.get(key, ModelCounts())
        earlier = before.models.get(key) if before else None
        seconds = after.at_s - before.at_s if before else 0.0
        state, reason = states.get(key, ("", ""))
        rows.append(_row(key, earlier, counts, seconds, state, reason))
    return rows


_AT_LOAD = ModelCounts(
    succeeded=0.0,
    failed=0.0,
    cancelled=0.0,
    refused=0.0,
    inferences=0.0,
    executions=0.0,
    rows=0.0,
    request_us=0.0,
    queue_us=0.0,
    compute_us=0.0,
    cache_hits=0.0,
    cache_misses=0.0,
)


def _row(
    key: Key,
    before: ModelCounts | None,
    after: ModelCounts,
    seconds: float,
    state: str,
    reason: str,
) -> Row:
    row = Row(
        *key,
        state=state,
        reason=reason,
        pending=after.pending,
        running=after.running,
        instances=after.instances,
        missing=after.missing,
        places=tuple(after.places),
        succeeded=after.succeeded,
        failed=after.failed,
        gpu_memory=after.gpu_memory,
    )
    if before is None or seconds <= 0:
        return row
    if _grown(before.succeeded, after.succeeded) is None and after.succeeded is not None:
        before = _AT_LOAD  # it was loaded again and counts from zero
    done = _grown(before.succeeded, after.succeeded)
    failed = _grown(before.failed, after.failed)
    refused = _grown(before.refused, after.refused) or 0.0
    cancelled = _grown(before.cancelled, after.cancelled) or 0.0
    errors = None if failed is None else failed - cancelled + refused
    inferences = _grown(before.inferences, after.inferences)
    rows = _grown(before.rows, after.rows)
    runs = _grown(before.executions, after.executions)
    latencies = {
        bound: count - before.latencies.get(bound, 0.0) for bound, count in after.latencies.items()
    }
    hits = _grown(before.cache_hits, after.cache_hits)
    misses = _grown(before.cache_misses, after.cache_misses)
    lookups = None if hits is None or misses is None else hits + misses
    paths = {path: count - before.paths.get(path, 0.0) for path, count in after.paths.items()}
    return dataclasses.replace(
        row,
        paths=paths,
        requests_s=_per(None if done is None else done + (failed or 0.0) + refused, seconds),
        inferences_s=_per(inferences, seconds),
        errors_s=_per(errors, seconds),
        # Without the rows of executions: those of requests that failed are not known.
        batch=_per(rows if rows is not None or failed else inferences, runs),
        average_ms=_ms_per(_grown(before.request_us, after.request_us), done),
        queue_ms=_ms_per(_grown(before.queue_us, after.queue_us), done),
        compute_ms=_ms_per(_grown(before.compute_us, after.compute_us), done),
        p50_ms=_milliseconds(quantile(latencies, 0.50)),
        p95_ms=_milliseconds(quantile(latencies, 0.95)),
        p99_ms=_milliseconds(quantile(latencies, 0.99)),
        cache_hits=_per(hits, lookups),
    )


def _grown(before: float | None, after: float | None) -> float | None:
    """Returns by how much a counter grew; None if it is not there or began again."""
    if before is None or after is None or after < before:
        return None
    return after - before


def _per(amount: float | None, of: float | None) -> float | None:
    return amount / of if amount is not None and of else None


def _ms_per(microseconds: float | None, count: float | None) -> float | None:
    return _milliseconds(_per(microseconds, count), 1e-3)


def _milliseconds(value: float | None, factor: float = 1e3) -> float | None:
    return None if value is None else value * factor


def quantile(cumulative: Mapping[float, float], share: float) -> float | None:
    """Estimate a quantile of a histogram, linear within its bucket as Prometheus does.

    `cumulative` says how many values are up to each bound. The last finite bound if the quantile is
    beyond that; None without values.
    """
    bounds = sorted(cumulative)
    if not bounds or cumulative[bounds[-1]] <= 0:
        return None
    rank = share * cumulative[bounds[-1]]
    below_bound, below_count = 0.0, 0.0
    for bound in bounds:
        count = cumulative[bound]
        if count >= rank and count > below_count:
            if math.isinf(bound):
                return below_bound
            return below_bound + (bound - below_bound) * (rank - below_count) / (
                count - below_count
            )
        below_bound, below_count = (below_bound if math.isinf(bound) else bound), count
    return below_bound


def ordered(rows: Iterable[Row], order: RowOrder, name_filter: str = "") -> list[Row]:
    """Returns the rows whose names contain a text, in an order; the largest come first."""
    kept = [row for row in rows if name_filter.lower() in row.name.lower()]
    if order is RowOrder.NAME:
        return sorted(kept, key=lambda row: row.key)
    field = _FIELDS[order]
    return sorted(kept, key=lambda row: (-(getattr(row, field) or 0.0), row.key))


def next_order(order: RowOrder) -> RowOrder:
    """Returns the order after this one, and the first after the last."""
    orders = list(RowOrder)
    return orders[(orders.index(order) + 1) % len(orders)]


@dataclasses.dataclass(slots=True)
class RateHistory:
    """Requests each second of all models and of each one, for sparklines."""

    total: deque[float] = dataclasses.field(default_factory=lambda: deque(maxlen=HISTORY))
    models: dict[Key, deque[float]] = dataclasses.field(default_factory=dict)

    def add(self, rows: Sequence[Row]) -> None:
        """Add the rates of the newest rows, where there are any."""
        if not any(row.requests_s is not None for row in rows):
            return
        self.total.append(total(rows, "requests_s"))
        for row in rows:
            self.models.setdefault(row.key, deque(maxlen=HISTORY)).append(row.requests_s or 0.0)


def total(rows: Iterable[Row], field: str) -> float:
    """Returns the sum of a field over all rows."""
    return sum(getattr(row, field) or 0.0 for row in rows)


def sparkline(values: Iterable[float], width: int) -> str:
    """Returns the last values as small bars; the highest is the largest of them."""
    shown = list(values)[-width:]
    top = max(shown, default=0.0)
    if top <= 0:
        return _BLOCKS[0] * len(shown)
    last = len(_BLOCKS) - 1
    return "".join(_BLOCKS[min(last, math.ceil(value / top * last))] for value in shown)


def row_document(row: Row) -> dict[str, Any]:
    """Returns a row as JSON, rounded to what can be meant."""
    document = dataclasses.asdict(row)
    return {
        name: round(value, 4) if isinstance(value, float) else value
        for name, value in document.items()
    }


def moved(keys: Sequence[Key], selected: Key | None, steps: int) -> Key | None:
    """Returns the key some steps after the selected one; stops at both ends."""
    if not keys:
        return None
    # Without a selection the first row is marked.
    index = (keys.index(selected) if selected in keys else 0) + steps
    return keys[min(max(index, 0), len(keys) - 1)]
