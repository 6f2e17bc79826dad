# SPDX-License-Identifier: Apache-2.0
"""What the options of metrics change, and which values of them are refused."""

from __future__ import annotations

import re

from tests.operations_differential.asking import int32_request, over_http
from tests.operations_differential.command_line import ended
from tests.operations_differential.metrics_models import heads, page, series, without_values
from tests.operations_differential.models import write_mirror
from tests.operations_differential.server import Observation, Server
from tests.operations_differential.surface import Case, Setup

SUMMARY = "nv_inference_request_summary_us"


def write_two(repository):
    write_mirror(repository, "numbers", "INT32")
    write_mirror(repository, "caching", "INT32", more="response_cache { enable: true }")


def started_with(*options: str) -> Setup:
    return Setup(options=options, models=write_two)


SUMMARIES = started_with("--metrics-config=summary_latencies=true")
CHOSEN = started_with(
    "--metrics-config=summary_latencies=true",
    "--metrics-config=summary_quantiles=0.9:0.1,0.25:0.05",
)
WRONG = started_with(
    "--metrics-config=summary_latencies=true", "--metrics-config=summary_quantiles=0.5,0.75:0.1,x:y"
)
NO_QUANTILE = started_with(
    "--metrics-config=summary_latencies=true", "--metrics-config=summary_quantiles=nothing"
)
QUANTILES_ALONE = started_with("--metrics-config=summary_quantiles=0.9:0.1")
NO_COUNTERS = started_with("--metrics-config=counter_latencies=false")
UNKNOWN = started_with("--metrics-config=unknown_setting=1")
NO_CPU = started_with("--allow-cpu-metrics=false")
NO_METRICS = started_with("--allow-metrics=false")
ADDRESS = started_with("--http-address=127.0.0.1", "--metrics-interval-ms=100")


def summary_heads(server: Server) -> Observation:
    return heads(server, "summary")


def empty_summary(server: Server) -> Observation:
    # The real one writes "Nan"; Prometheus reads both.
    return [line.replace("Nan", "NaN") for line in series(server, SUMMARY, model="numbers")]


def summaries_of_a_cached_model(server: Server) -> Observation:
    lines = [re.sub(" [Nn]a[Nn]$", " <number>", line) for line in without_values(page(server))]
    return sorted(line for line in lines if "summary" in line and '"caching"' in line)


def counted_summary(server: Server) -> Observation:
    for _ in range(4):
        over_http(server, *int32_request())
    counts = series(server, f"{SUMMARY}_count", model="numbers")
    (total,) = series(server, f"{SUMMARY}_sum", model="numbers")
    (cumulative,) = series(server, "nv_inference_request_duration_us", model="numbers")
    quantiles = [float(line.split()[-1]) for line in series(server, SUMMARY, model="numbers")]
    return {
        "count": counts,
        "sum is that of the counter": total.split()[-1] == cumulative.split()[-1],
        "quantiles rise": quantiles == sorted(quantiles),
        "quantiles are values": 0 < quantiles[0] <= float(total.split()[-1]),
    }


def order_of_a_summary(server: Server) -> Observation:
    lines = [line for line in page(server) if line.startswith(SUMMARY) and '"numbers"' in line]
    return [line.rpartition(" ")[0] for line in lines]


def quantiles(server: Server) -> Observation:
    return [line.rpartition(" ")[0] for line in page(server) if line.startswith(f"{SUMMARY}{{")]


def counter_names(server: Server) -> Observation:
    return [line for line in heads(server, "counter") if "# TYPE" in line]


def counts_without_counters_of_latencies(server: Server) -> Observation:
    over_http(server, *int32_request())
    return series(server, "nv_inference_request_success", "nv_inference_count", model="numbers")


def gauge_names(server: Server) -> Observation:
    return [line for line in heads(server, "gauge") if "_cpu_" in line or "pinned" in line]


def is_refused(server: Server) -> Observation:
    try:
        return over_http(server, "/metrics", port="metrics")
    except ConnectionRefusedError:
        return "connection refused"


def is_answered(server: Server) -> Observation:
    return [bool(page(server))]


def bad(*options: str):
    return lambda server: ended(server, "--model-repository={models}", *options)


NOT_STARTED = Setup(is_started=False, models=write_two)
BAD_OPTIONS = {
    "setting without a value": "--metrics-config=summary_latencies",
    "empty value": "--metrics-config=summary_quantiles=",
    "empty setting": "--metrics-config==x",
    "setting of a group": "--metrics-config=local,size=3",
    "interval that is no number": "--metrics-interval-ms=often",
    "port that is no number": "--metrics-port=here",
    "allowed that is no boolean": "--allow-metrics=perhaps",
}
OPTION_CASES = (
    Case("summaries: helps and types", summary_heads, SUMMARIES),
    Case("summaries: empty", empty_summary, SUMMARIES),
    Case("summaries: model with cache", summaries_of_a_cached_model, SUMMARIES),
    Case("summaries: order of lines", order_of_a_summary, SUMMARIES),
    Case("summaries: counted", counted_summary, SUMMARIES),
    Case("summaries: chosen quantiles", quantiles, CHOSEN),
    Case("summaries: wrong quantiles", quantiles, WRONG),
    Case("summaries: no valid quantile", quantiles, NO_QUANTILE),
    Case("summaries: quantiles alone", quantiles, QUANTILES_ALONE),
    Case("counters of latencies off", counter_names, NO_COUNTERS),
    Case("counts without latencies", counts_without_counters_of_latencies, NO_COUNTERS),
    Case("unknown setting", counter_names, UNKNOWN),
    Case("no CPU metrics", gauge_names, NO_CPU),
    Case("no metrics", is_refused, NO_METRICS),
    Case("address of HTTP", is_answered, ADDRESS),
    *(Case(f"refused: {name}", bad(option), NOT_STARTED) for name, option in BAD_OPTIONS.items()),
)
