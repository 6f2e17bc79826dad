# SPDX-License-Identifier: Apache-2.0
"""Metrics of the application, which all servers of the process show, and reports of servers."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable
from typing import Any

from pytriton.base.errors import InvalidArgumentError
from pytriton.runtime.native_backend.callbacks import export
from pytriton.runtime.native_backend.memory import Handles, Kept, put_word
from pytriton.serving.repository.services.custom_metrics import CustomMetrics, WorkerMetrics
from pytriton.serving.server.metrics.exposition import SampleFamily
from pytriton.serving.server.metrics.families import custom_families, server_family_names

_PROMETHEUS = 0


class ProcessMetrics:
    """The application's metrics. A lock keeps them whole while a server reads them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shared = CustomMetrics(server_family_names)
        self._own = WorkerMetrics(self._shared)

    def perform(self, action: str, **arguments: Any) -> Any:
        """Perform an action of `WorkerMetrics`; raises ServerError if it is refused."""
        with self._lock:
            return getattr(self._own, action)(**arguments)

    def families(self) -> Iterable[SampleFamily]:
        """Returns the families as a server shows them."""
        with self._lock:
            return list(custom_families(self._shared))


@dataclasses.dataclass(slots=True)
class _Report:
    data: bytes
    address: int
    kept: Kept


class MetricReports:
    """TRITONSERVER_Metrics: the metrics that servers have reported to the application."""

    def __init__(self) -> None:
        self._reports: Handles[_Report] = Handles("metrics")

    def new(self, text: str) -> int:
        """Returns the handle of a report."""
        kept, data = Kept(), text.encode()
        return self._reports.add(_Report(data, kept.string(data), kept))

    @export("TRITONSERVER_MetricsDelete")
    def _delete(self, handle: int) -> None:
        self._reports.pop(handle)

    @export("TRITONSERVER_MetricsFormatted")
    def _format(self, handle: int, number: int, base: int, size: int) -> None:
        report = self._reports.get(handle)
        if number != _PROMETHEUS:
            raise InvalidArgumentError(f"unknown metrics format '{number}'")
        put_word(base, report.address)
        put_word(size, len(report.data))
