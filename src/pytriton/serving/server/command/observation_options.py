# SPDX-License-Identifier: Apache-2.0
"""The options of `tritonserver` about metrics and traces, and those that are deprecated."""

from __future__ import annotations

from collections.abc import Mapping

from pytriton.serving.server.command.option import Option, Takes, each, integer, switch, text


def _old_trace(name: str, takes: Takes, prefix: str, text: str) -> Option:
    instead = f"--trace-config={prefix}..."
    return Option(name, takes, "", text, instead=instead, becomes=("trace-config", prefix))


OBSERVATION_OPTIONS: Mapping[str, tuple[Option, ...]] = {
    "Metrics": (
        switch("allow-metrics", "true", "Serve metrics."),
        switch("allow-cpu-metrics", "true", "Include metrics of the CPU and memory."),
        switch("allow-gpu-metrics", "true", "Include metrics of GPUs."),
        text("metrics-address", "", "Address to listen on; default: that of HTTP.", "<address>"),
        integer("metrics-port", "8002", "Port to listen on; 0 takes a free one."),
        Option(
            "metrics-interval-ms",
            Takes.NUMBER,
            "2000",
            "Milliseconds between two measurements of CPU and GPU.",
        ),
        each(
            "metrics-config",
            "<setting>=<value>",
            "counter_latencies, summary_latencies, histogram_latencies, latency_histograms (true "
            "or false), summary_quantiles, latency_buckets, batch_size_buckets. May be repeated.",
        ),
    ),
    "Page": (
        switch("allow-page", "true", "Serve the page on the metrics port."),
        text(
            "page-token",
            "",
            "Who has it may read the log, send requests and load models on the page. The variable "
            "PYTRITON_PAGE_TOKEN does the same, unseen by other users of the machine.",
            "<token>",
        ),
    ),
    "Tracing": (
        each(
            "trace-config",
            "[<mode>,]<setting>=<value>",
            "Settings mode (triton or opentelemetry), level, rate and count, and those of a mode, "
            "such as triton,file=<path> and triton,log-frequency=<count>. May be repeated.",
        ),
    ),
    "Deprecated": (
        Option(
            "strict-model-config",
            Takes.BOOLEAN,
            "",
            "true means the same as --disable-auto-complete-config.",
            instead="--disable-auto-complete-config",
        ),
        Option(
            "response-cache-byte-size",
            Takes.INTEGER,
            "",
            "Size of the local response cache.",
            instead="--cache-config=local,size=...",
        ),
        _old_trace("trace-file", Takes.PATH, "triton,file=", "File for traces."),
        _old_trace("trace-level", Takes.TEXT, "level=", "Level of tracing."),
        _old_trace("trace-rate", Takes.INTEGER, "rate=", "One in this many requests is traced."),
        _old_trace("trace-count", Takes.INTEGER, "count=", "Maximum number of traced requests."),
        _old_trace(
            "trace-log-frequency", Takes.INTEGER, "triton,log-frequency=", "Traces per file."
        ),
    ),
}
