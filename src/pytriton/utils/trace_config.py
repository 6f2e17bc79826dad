# SPDX-License-Identifier: Apache-2.0
"""Parses `trace_config` and `--trace-config`, for the server and for tracers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

OPENTELEMETRY = "opentelemetry"
TRITON = "triton"
OFF = "OFF"
TIMESTAMPS = "TIMESTAMPS"
TENSORS = "TENSORS"
_URL = "http://localhost:4318/v1/traces"  # Triton's default
INSTALL_HINT = (
    "Tracing needs OpenTelemetry: pip install opentelemetry-api opentelemetry-sdk "
    "opentelemetry-exporter-otlp-proto-http"
)
_PREFIX = f"{OPENTELEMETRY},"
_BATCHING = ("bsp_max_queue_size", "bsp_schedule_delay", "bsp_max_export_batch_size")
KNOWN_SETTINGS = (
    *("mode", "level", "rate", "count", f"{TRITON},file", f"{TRITON},log-frequency"),
    *(f"{_PREFIX}{name}" for name in ("url", "resource", *_BATCHING)),
)
# The levels that Triton accepts, in upper or lower case.
_LEVELS = {
    **dict.fromkeys(("OFF", "FALSE"), OFF),
    **dict.fromkeys(("TIMESTAMPS", "TRUE", "ON", "MIN", "MAX"), TIMESTAMPS),
    TENSORS: TENSORS,
}


@dataclass(frozen=True)
class TraceConfig:
    """Settings of traces."""

    mode: str = ""
    levels: tuple[str, ...] = ()
    rate: int = 1000  # one of this many requests; 0: only those with trace headers
    count: int = -1  # total number of traces; -1: no limit
    options: dict[str, str] = field(default_factory=dict)  # of OpenTelemetry, without resource
    resource: dict[str, str] = field(default_factory=dict)  # resource attributes
    file: str = ""  # of Triton's own mode; empty: none is given
    log_frequency: int = 0  # the number of traces in one file; 0: all are in one

    @property
    def is_opentelemetry(self) -> bool:
        """Whether the mode is OpenTelemetry."""
        return self.mode == OPENTELEMETRY

    @property
    def makes_traces(self) -> bool:
        """Whether traces have a place to go to."""
        return self.is_opentelemetry or bool(self.file)

    @property
    def url(self) -> str:
        """The URL for spans; empty if none is given."""
        return self.options.get("url", "")

    @property
    def endpoint(self) -> str:
        """The URL to which the server sends spans."""
        return self.url or _URL

    @property
    def batching(self) -> dict[str, Any]:
        """The arguments of OpenTelemetry's `BatchSpanProcessor`.

        Raises:
            ValueError: a value that must be a number is not.
        """
        queue_size = self._option("bsp_max_queue_size", 2048)
        batch_size = self._option("bsp_max_export_batch_size", 512)
        return {
            "max_queue_size": queue_size,
            "schedule_delay_millis": self._option("bsp_schedule_delay", 5000),
            "max_export_batch_size": min(batch_size, queue_size),
        }

    def _option(self, name: str, default: int) -> int:
        return _integer(name, self.options.get(name, str(default)))


def read_trace_config(settings: Iterable[str]) -> TraceConfig:
    """Read settings `<name>=<value>` and `<mode>,<name>=<value>`; the last one of a name counts.

    Raises:
        ValueError: a value that must be a number is not, or a level or a mode is unknown.
    """
    values: dict[str, str] = {}
    levels: list[str] = []
    resource: dict[str, str] = {}
    for setting in settings:
        name, _, value = setting.partition("=")
        if name == "level":
            levels.append(_level(value))
        elif name == f"{_PREFIX}resource":
            pairs = (pair.partition("=") for pair in value.split(","))
            resource.update({key: text for key, _, text in pairs})
        else:
            values[name] = value
    options = {
        name.removeprefix(_PREFIX): value
        for name, value in values.items()
        if name.startswith(_PREFIX)
    }
    return TraceConfig(
        mode=_mode(values.get("mode", "")),
        levels=tuple(levels),
        rate=_integer("rate", values.get("rate", str(TraceConfig.rate))),
        count=_integer("count", values.get("count", str(TraceConfig.count)), least=-1),
        options=options,
        resource=resource,
        file=values.get(f"{TRITON},file", ""),
        log_frequency=_integer("log-frequency", values.get(f"{TRITON},log-frequency", "0")),
    )


def _mode(text: str) -> str:
    mode = text.lower()
    if mode not in ("", TRITON, OPENTELEMETRY):
        raise ValueError(
            f"Expected {TRITON} or {OPENTELEMETRY} as trace setting 'mode', got '{text}'"
        )
    return mode


def _level(text: str) -> str:
    level = _LEVELS.get(text.upper())
    if level is None:
        raise ValueError(
            f"Expected OFF, TIMESTAMPS or TENSORS as trace setting 'level', got '{text}'"
        )
    return level


def _integer(name: str, text: str, least: int = 0) -> int:
    try:
        number = int(text)
    except ValueError:
        raise ValueError(f"Expected a number as trace setting '{name}', got '{text}'") from None
    if number < least:
        raise ValueError(
            f"Expected a number from {least} on as trace setting '{name}', got '{text}'"
        )
    return number
