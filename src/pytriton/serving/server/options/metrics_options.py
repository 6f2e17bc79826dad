# SPDX-License-Identifier: Apache-2.0
"""The settings of metrics."""

from __future__ import annotations

import logging
import math
import re

import msgspec

from pytriton.serving.engine.config_rules import are_bounds
from pytriton.serving.engine.latencies import (
    DEFAULT_BATCH_SIZE_BUCKETS,
    DEFAULT_LATENCY_BUCKETS_S,
    DEFAULT_SLOW_S,
    LatencyPlan,
    Quantile,
)
from pytriton.serving.server.options.flags import FlagError, Flags, bad_value

logger = logging.getLogger(__name__)

# The prefix of a text that C++'s `stod` accepts, with which Triton reads numbers.
_NUMBER = re.compile(r"\s*[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")

DEFAULT_QUANTILES = (
    Quantile(0.5, 0.05),
    Quantile(0.9, 0.01),
    Quantile(0.95, 0.001),
    Quantile(0.99, 0.001),
    Quantile(0.999, 0.001),
)
_FLAG = "metrics_config"
_SETTINGS = (
    "counter_latencies",
    "summary_latencies",
    "summary_quantiles",
    "histogram_latencies",
    "latency_histograms",
    "latency_buckets",
    "batch_size_buckets",
    "slow_request_seconds",
    "costs",
    "opentelemetry_url",
    "opentelemetry_interval",
)
_PUSH_INTERVAL_S = 60.0  # OpenTelemetry's own default


class MetricsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The metrics that are served, and the maximum age of those of the machine."""

    cpu: bool = True
    gpu: bool = True
    interval_ms: float = 2000.0
    counter_latencies: bool = True
    costs: bool = True
    push_url: str = ""  # of a collector of OpenTelemetry, which gets the metrics; "": none does
    push_interval_s: float = _PUSH_INTERVAL_S
    pinned_memory_pool_bytes: int = 256 << 20
    latencies: LatencyPlan = LatencyPlan()


def read_metrics_options(flags: Flags) -> MetricsOptions:
    """Read the settings of metrics; raises PyTritonValidationError for a bad value."""
    settings = Flags(_read_settings(flags))
    latencies = LatencyPlan(
        histograms=settings.boolean("latency_histograms") is not False,
        latency_buckets_s=_buckets(settings, "latency_buckets", DEFAULT_LATENCY_BUCKETS_S),
        batch_size_buckets=_buckets(settings, "batch_size_buckets", DEFAULT_BATCH_SIZE_BUCKETS),
        first_responses=bool(settings.boolean("histogram_latencies")),
        quantiles=_quantiles(settings),
        slow_s=_seconds(settings, "slow_request_seconds", DEFAULT_SLOW_S),
    )
    return MetricsOptions(
        **flags.record("metrics_options"),
        counter_latencies=settings.boolean("counter_latencies") is not False,
        costs=settings.boolean("costs") is not False,
        push_url=settings.text("opentelemetry_url") or "",
        push_interval_s=_seconds(settings, "opentelemetry_interval", _PUSH_INTERVAL_S),
        latencies=latencies,
    )


def _read_settings(flags: Flags) -> dict[str, str]:
    settings = {}
    for text in flags.value(_FLAG):
        name, _, value = text.partition("=")
        if not (name and value) or "," in name:
            raise FlagError(
                _FLAG, f"--metrics-config option format is <setting>=<value>. Got {text}"
            )
        settings[name] = value
        if name not in _SETTINGS:  # it may be one of another version of Triton
            known = ", ".join(_SETTINGS)
            logger.warning("--metrics-config %s has no effect; known are %s", name, known)
    return settings


def _buckets(settings: Flags, name: str, default: tuple[float, ...]) -> tuple[float, ...]:
    text = settings.text(name)
    if text is None:
        return default
    try:
        bounds = tuple(float(bound) for bound in text.split(","))
    except ValueError:
        bounds = ()
    if not bounds or not are_bounds(bounds) or bounds[0] <= 0:
        raise bad_value(_FLAG, f"{name}=<ascending numbers with commas between>", text)
    return bounds


def _seconds(settings: Flags, name: str, default: float) -> float:
    text = settings.text(name)
    if text is None:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise bad_value(_FLAG, f"{name}=<a positive number>", text)
    return seconds


def _quantiles(settings: Flags) -> tuple[Quantile, ...]:
    is_wanted = settings.boolean("summary_latencies")
    text = settings.text("summary_quantiles")
    quantiles = [] if text is None else [_quantile(option) for option in text.split(",")]
    valid = tuple(quantile for quantile in quantiles if quantile is not None)
    return (valid or DEFAULT_QUANTILES) if is_wanted else ()


def _quantile(option: str) -> Quantile | None:
    """Read `<quantile>:<error>`. What is not valid is logged and left out, as in Triton."""
    rank, delimiter, error = option.partition(":")
    if not delimiter:
        logger.error(
            "Invalid option: [%s]. No ':' delimiter found. Expected format is <quantile>:<error>",
            option,
        )
        return None
    numbers = [_NUMBER.match(text) for text in (rank, error)]
    if not all(numbers):
        logger.error("Invalid option: [%s]. Expected two numbers", option)
        return None
    quantile = Quantile(*(float(number[0]) for number in numbers if number is not None))
    if any(number is not None and number.end() < len(number.string) for number in numbers):
        read = f"{quantile.rank:g}:{quantile.error:g}"
        logger.warning("The option [%s] is read as %s, which it begins with", option, read)
    if not 0 <= quantile.rank <= 1:
        logger.error("Invalid option: [%s]. Expected a quantile from 0 to 1", option)
        return None
    return quantile
