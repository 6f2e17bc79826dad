# SPDX-License-Identifier: Apache-2.0
"""A whole run as a document, and comparisons of two.

Plots, pages and comparisons are made of documents, and `--json` writes them.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence

import msgspec

from pytriton.tools.perf.errors import PerfError
from pytriton.tools.perf.measuring.results import LevelResult, LevelStatus, number_text
from pytriton.tools.perf.measuring.summary import Distribution
from pytriton.tools.perf.server_state import Counted

FORMAT = "pytriton-perf/1"


@dataclasses.dataclass(frozen=True, slots=True)
class LevelRecord:
    """A level as a document has it; times are microseconds.

    Attributes:
        server_us: Mean times of a request at the server by part; empty if it did not say.
        busy_share: How busy the load generator was, and whether it was the limit.
    """

    value: float
    status: str
    requests: int
    failed: int
    throughput: float
    response_rate: float
    duration_s: float
    latency: Distribution | None
    between: Distribution | None = None
    whole: Distribution | None = None
    send_us: float = 0.0
    server_us: Mapping[str, float] = dataclasses.field(default_factory=dict)
    executions: int = 0
    inferences: int = 0
    rows: int = 0
    busy_share: float = 0.0
    is_generator_limit: bool = False
    errors: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def is_sure(self) -> bool:
        return self.status in {LevelStatus.STABLE.value, LevelStatus.COUNTED.value}

    @property
    def batch(self) -> float:
        """The mean number of rows that the server ran at once; 0 if it did not say.

        Inferences leave out those that failed, but older runs and some servers have no rows.
        """
        return (self.rows or self.inferences) / self.executions if self.executions else 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class ServerRun:
    """The levels of one server.

    Attributes:
        label: Its name in legends and tables.
        server: Its name and version, as it says.
    """

    label: str
    url: str
    protocol: str
    server: str
    model: str
    levels: Sequence[LevelRecord]


@dataclasses.dataclass(frozen=True, slots=True)
class RunDocument:
    """A run: one server, or several that were measured side by side."""

    when: str
    mode: str
    percentile: int | None
    is_decoupled: bool
    runs: Sequence[ServerRun]
    latency_limit_ms: int = 0
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def load_name(self) -> str:
        return "requests per second" if self.mode != "concurrency" else "concurrency"

    def latency_us(self, level: LevelRecord) -> float:
        """The latency that counts in this run."""
        if level.latency is None:
            return 0.0
        if self.percentile is None:
            return level.latency.avg_us
        return level.latency.percentiles.get(self.percentile, level.latency.avg_us)

    def to_json(self) -> str:
        document = {"format": FORMAT, **msgspec.to_builtins(self, str_keys=True)}
        return json.dumps(document, indent=1)


def level_record(result: LevelResult) -> LevelRecord:
    summary = result.summary
    counted = summary.server.model if summary.server is not None else Counted()
    return LevelRecord(
        value=result.value,
        status=result.status.value,
        requests=summary.requests,
        failed=summary.failed,
        throughput=summary.throughput,
        response_rate=summary.response_rate,
        duration_s=summary.duration_s,
        latency=summary.latency,
        between=summary.between,
        whole=summary.whole,
        send_us=summary.send_us,
        server_us=_server_us(counted),
        executions=counted.executions,
        inferences=counted.inferences,
        rows=counted.rows,
        busy_share=summary.generator.cpu_share,
        is_generator_limit=summary.generator.is_limit,
        errors=dict(summary.errors),
    )


def _server_us(counted: Counted) -> dict[str, float]:
    if not counted.requests:
        return {}
    parts = {
        "queue": counted.queue_ns,
        "compute input": counted.input_ns,
        "compute infer": counted.infer_ns,
        "compute output": counted.output_ns,
        "cache": counted.cache_ns,
        "request": counted.request_ns,
    }
    return {name: round(ns / counted.requests / 1000, 1) for name, ns in parts.items()}


def read_run(path: pathlib.Path) -> RunDocument:
    """Read a run that was written before.

    Raises:
        PerfError: The file is not such a run.
    """
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise PerfError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise PerfError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise PerfError(
            f"{path} is not a saved run, expected a file of pytriton perf --json with the format "
            f"{FORMAT}"
        )
    try:
        return msgspec.convert(document, RunDocument, str_keys=True)
    except msgspec.ValidationError as error:
        raise PerfError(f"{path} is not a whole run: {error!r}") from error


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """A level that both have.

    Attributes:
        first: The level of the run that is looked at.
        other: That of the one it is compared with.
    """

    first: LevelRecord
    other: LevelRecord

    @property
    def throughput_ratio(self) -> float:
        return _ratio(self.first.throughput, self.other.throughput)

    def latency_ratio(self, percentile: int) -> float:
        """The other's latency by the first's: above 1, the first one is quicker."""
        return _ratio(latency_us(self.other, percentile), latency_us(self.first, percentile))


def latency_us(level: LevelRecord, percentile: int) -> float:
    return level.latency.percentiles.get(percentile, 0.0) if level.latency is not None else 0.0


def _ratio(one: float, other: float) -> float:
    return one / other if other else 0.0


def pairs_of(first: ServerRun, other: ServerRun) -> list[Pair]:
    """The levels that both have."""
    theirs = {level.value: level for level in other.levels}
    return [
        Pair(level, theirs[level.value])
        for level in first.levels
        if level.value in theirs and level.latency is not None
    ]


def table_rows(pairs: Sequence[Pair]) -> tuple[list[str], list[list[str]]]:
    """The heading and the rows of a comparison."""
    heading = ["load", "infer/s", "other", "ratio", "p50 µs", "other", "ratio", "p99 µs", "other",
               "ratio"]  # fmt: skip
    rows = []
    for pair in pairs:
        row = [
            number_text(pair.first.value),
            f"{pair.first.throughput:.0f}",
            f"{pair.other.throughput:.0f}",
            f"{pair.throughput_ratio:.2f}x",
        ]
        for percentile in (50, 99):
            row += [
                f"{latency_us(pair.first, percentile):.0f}",
                f"{latency_us(pair.other, percentile):.0f}",
                f"{pair.latency_ratio(percentile):.2f}x",
            ]
        rows.append(row)
    return heading, rows


def comparison_text(first: ServerRun, other: ServerRun) -> str:
    """The comparison as text."""
    pairs = pairs_of(first, other)
    lines = [f"{first.label} compared with {other.label}"]
    if not pairs:
        return f"{lines[0]}: they have no load in common"
    heading, rows = table_rows(pairs)
    widths = [max(len(row[at]) for row in [heading, *rows]) for at in range(len(heading))]
    for row in [heading, *rows]:
        cells = (text.rjust(width) for text, width in zip(row, widths, strict=True))
        lines.append(f"  {'  '.join(cells)}")
    lines.append("  A ratio above 1 is in favour of the first: more throughput, less latency.")
    return "\n".join(lines)
