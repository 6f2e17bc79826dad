# SPDX-License-Identifier: Apache-2.0
"""Gauges of a server's GPUs, read from its metrics while windows run."""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping

_FAMILIES = {
    "nv_gpu_utilization": "utilization",
    "nv_gpu_power_usage": "power",
    "nv_gpu_memory_used_bytes": "memory_used",
    "nv_gpu_memory_total_bytes": "memory_total",
}
_LINE = re.compile(r'^(nv_gpu_\w+)\{[^}]*gpu_uuid="([^"]+)"[^}]*\}\s+(\S+)', re.MULTILINE)
_TIMEOUT_S = 2.0


def read_gauges(page: str) -> dict[str, dict[str, float]]:
    """The gauges of a page for Prometheus, by name and GPU."""
    found: dict[str, dict[str, float]] = {}
    for family, gpu, value in _LINE.findall(page):
        if family in _FAMILIES:
            found.setdefault(_FAMILIES[family], {})[gpu] = float(value)
    return found


def fetch(url: str) -> str:
    """The page; empty if the server does not give it."""
    full = url if "://" in url else f"http://{url}"
    try:
        with urllib.request.urlopen(full, timeout=_TIMEOUT_S) as answer:  # noqa: S310  a person's own URL
            return str(answer.read().decode(errors="replace"))
    except (OSError, urllib.error.URLError):
        return ""


class GpuGauges:
    """Means of gauges over a window, and the most of the memory in use."""

    def __init__(
        self, fetch_page: Callable[[], str], interval_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._fetch = fetch_page
        self._interval_s = interval_s
        self._clock = clock
        self._samples: list[Mapping[str, Mapping[str, float]]] = []
        self._next_s = 0.0

    def begin(self) -> None:
        self._samples = []
        self._next_s = self._clock()
        self.tick()

    def tick(self) -> None:
        if self._clock() >= self._next_s:
            self._samples.append(read_gauges(self._fetch()))
            self._next_s = self._clock() + self._interval_s

    def end(self) -> Mapping[str, Mapping[str, float]]:
        values: dict[str, dict[str, list[float]]] = {}
        for sample in self._samples:
            for gauge, by_gpu in sample.items():
                for gpu, value in by_gpu.items():
                    values.setdefault(gauge, {}).setdefault(gpu, []).append(value)
        return {
            gauge: {
                gpu: max(each) if gauge == "memory_used" else sum(each) / len(each)
                for gpu, each in by_gpu.items()
            }
            for gauge, by_gpu in values.items()
        }
