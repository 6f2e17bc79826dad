# SPDX-License-Identifier: Apache-2.0
"""The settings of metrics."""

from __future__ import annotations

import logging

import msgspec

from pytriton.server.options.flags import Flags, bad_value

logger = logging.getLogger(__name__)

_METRICS_SETTINGS = ("counter_latencies", "summary_latencies", "histogram_latencies")


class MetricsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which metrics are served, and how old those of the machine may be."""

    cpu: bool = True
    gpu: bool = True
    interval_ms: float = 2000.0
    counter_latencies: bool = True
    pinned_memory_pool_bytes: int = 256 << 20


def read_metrics_options(flags: Flags) -> MetricsOptions:
    """Read the settings of metrics; raises PyTritonValidationError for a bad value."""
    given = flags.settings("metrics_config")
    for name in given:
        if name != "summary_quantiles" and name not in _METRICS_SETTINGS:
            raise bad_value("metrics_config", f"one of {', '.join(_METRICS_SETTINGS)}", name)
    settings = Flags(given)
    for name in ("summary_latencies", "histogram_latencies"):
        if settings.boolean(name, default=False):
            logger.warning("--metrics-config %s: this server has only counters of latencies", name)
    return MetricsOptions(
        cpu=flags.boolean("allow_cpu_metrics", default=True),
        gpu=flags.boolean("allow_gpu_metrics", default=True),
        interval_ms=flags.positive_number("metrics_interval_ms", 2000.0),
        counter_latencies=settings.boolean("counter_latencies", default=True),
        pinned_memory_pool_bytes=flags.integer("pinned_memory_pool_byte_size", 256 << 20),
    )
