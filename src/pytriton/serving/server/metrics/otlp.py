# SPDX-License-Identifier: Apache-2.0
"""Sends metrics to a collector of OpenTelemetry, over OTLP/HTTP.

What is sent is the page for Prometheus, read by this module: so both show the same numbers.
OpenTelemetry is optional, and only the export imports it. Summaries are left out, as OpenTelemetry
has none of its own.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from pytriton.base.background_tasks import BackgroundTasks, call_driver

logger = logging.getLogger(__name__)

SCOPE = "triton-server"
_SERVICE_NAME = "triton-inference-server"  # Triton's default
# The name is that of the family, with an ending for parts of a histogram.
_LINE = re.compile(r"[\w:]+?(_bucket|_count|_sum)?(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED = {r"\n": "\n", r"\"": '"', r"\\": "\\"}
_TIMEOUT_MS = 10_000

Labels = tuple[tuple[str, str], ...]


@dataclasses.dataclass(slots=True)
class HistogramPoint:
    """A histogram with one set of labels."""

    bounds: list[float] = dataclasses.field(default_factory=list)
    counts: list[int] = dataclasses.field(default_factory=list)  # of each bucket alone
    total: float = 0.0


@dataclasses.dataclass(slots=True)
class Family:
    """A family of the page: its numbers, or its histograms, by labels."""

    name: str
    kind: str
    help: str
    numbers: dict[Labels, float] = dataclasses.field(default_factory=dict)
    histograms: dict[Labels, HistogramPoint] = dataclasses.field(default_factory=dict)


def read_page(text: str) -> Iterator[Family]:
    """Yields the families of a page in the text format, but for summaries."""
    help_text, family = "", Family("", "summary", "")
    for line in text.split("\n")[:-1]:  # label values may have other line breaks
        if line.startswith("# HELP "):
            help_text = line.split(" ", 3)[3]
        elif line.startswith("# TYPE "):
            if family.kind != "summary":
                yield family
            _, _, name, kind = line.split(" ")
            family = Family(name, kind, help_text)
        elif family.kind != "summary":
            _add(family, line)
    if family.kind != "summary":
        yield family


def _add(family: Family, line: str) -> None:
    found = _LINE.fullmatch(line)
    assert found is not None, f"expected a line of the page, got {line!r}"
    labels = dict(_LABEL.findall(found[2] or ""))
    bound = labels.pop("le", "")
    key = tuple((name, re.sub(r"\\.", _unescaped, value)) for name, value in labels.items())
    value = float(found[3])
    if family.kind != "histogram":
        family.numbers[key] = value
        return
    point = family.histograms.setdefault(key, HistogramPoint())
    if found[1] == "_sum":
        point.total = value
    elif found[1] == "_bucket":
        point.counts.append(int(value) - sum(point.counts))
        if bound != "+Inf":
            point.bounds.append(float(bound))


def _unescaped(found: re.Match[str]) -> str:
    return _ESCAPED[found[0]]


class MetricsPush:
    """Sends the metrics again and again, from the event loop's thread.

    Args:
        url: Where to.
        interval_s: How often.
        page: Returns the page in the text format.
        loop: The event loop.

    Raises:
        ImportError: OpenTelemetry is not installed.
    """

    def __init__(
        self,
        url: str,
        interval_s: float,
        page: Callable[[], Awaitable[bytes]],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import (  # noqa: PLC0415  optional
            OTLPMetricExporter,
        )

        self._exporter = OTLPMetricExporter(url)
        self._url = url
        self._interval_s = interval_s
        self._page = page
        self._loop = loop
        self._tasks = BackgroundTasks(loop)
        self._timer: asyncio.TimerHandle | None = None
        self._began_ns = time.time_ns()
        self._has_failed = False

    def start(self) -> None:
        """Send after the interval, and after each that follows."""
        self._timer = self._loop.call_later(self._interval_s, self._on_timer)

    def stop(self) -> None:
        """Send no more; what is being sent may end."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._tasks.start(self._push())

    async def _push(self) -> None:
        try:
            text = (await self._page()).decode()
            is_sent = await call_driver(functools.partial(self._send, text))
            self._report(is_sent=is_sent)
        except Exception:
            logger.exception("metrics could not be sent to %s", self._url)
        if self._timer is not None:
            self.start()

    def _report(self, *, is_sent: bool) -> None:
        """Say once that the collector does not take metrics, until it does again."""
        if not is_sent and not self._has_failed:
            logger.warning("metrics could not be sent to %s; they will be sent again", self._url)
        self._has_failed = not is_sent

    # In a thread

    def _send(self, text: str) -> bool:
        from opentelemetry.sdk.metrics.export import MetricExportResult  # noqa: PLC0415  optional

        data = metrics_data(read_page(text), self._began_ns, time.time_ns())
        result: Any = self._exporter.export(data, timeout_millis=_TIMEOUT_MS)
        return bool(result is MetricExportResult.SUCCESS)


def metrics_data(families: Iterator[Family], began_ns: int, now_ns: int) -> Any:
    """Returns the families as OpenTelemetry's exporter takes them."""
    from opentelemetry.sdk.metrics import export  # noqa: PLC0415  optional
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource  # noqa: PLC0415  optional
    from opentelemetry.sdk.util.instrumentation import (  # noqa: PLC0415  optional
        InstrumentationScope,
    )

    resource = Resource.create()  # also reads OpenTelemetry's environment variables
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: _SERVICE_NAME}))
    metrics = [_metric(export, each, began_ns, now_ns) for each in families]
    scope = export.ScopeMetrics(InstrumentationScope(SCOPE), metrics, "")
    return export.MetricsData([export.ResourceMetrics(resource, [scope], "")])


def _metric(export: Any, family: Family, began_ns: int, now_ns: int) -> Any:
    cumulative = export.AggregationTemporality.CUMULATIVE
    if family.kind == "histogram":
        histograms = [
            export.HistogramDataPoint(
                dict(labels),
                began_ns,
                now_ns,
                sum(point.counts),
                point.total,
                point.counts,
                point.bounds,
                None,  # the smallest value is not known
                None,  # nor the largest
            )
            for labels, point in family.histograms.items()
        ]
        data = export.Histogram(histograms, cumulative)
    else:
        numbers = [
            export.NumberDataPoint(dict(labels), began_ns, now_ns, value)
            for labels, value in family.numbers.items()
        ]
        is_sum = family.kind == "counter"
        data = export.Sum(numbers, cumulative, True) if is_sum else export.Gauge(numbers)
    return export.Metric(family.name, family.help, "", data)
