# SPDX-License-Identifier: Apache-2.0
"""Every family of metrics: names, labels, helps and values."""

from __future__ import annotations

import http.client
import re

import numpy as np

from tests.e2e.waiting import DEADLINE_S, eventually
from tests.operations_differential.asking import int32_request, metrics, over_grpc, over_http
from tests.operations_differential.command_line import ended
from tests.operations_differential.metrics_models import (
    heads,
    page,
    series,
    without_values,
    write_observed,
)
from tests.operations_differential.models import write_mirror
from tests.operations_differential.server import Observation, Server
from tests.operations_differential.surface import Case, Setup, Surface
from tests.python_backend_differential.clients import infer_over_stream

COUNTS = ("nv_inference_request_success", "nv_inference_count", "nv_inference_exec_count")
FAILURES = "nv_inference_request_failure"


def ask_model(server: Server, model: str, values: tuple[int, ...] = (1, 2, 3)) -> Observation:
    return over_http(server, *int32_request(model, values))["status"]


def answered_as(server: Server, path: str, method: str = "GET") -> Observation:
    """The status and the type of an answer of the metrics port, and whether it has a body."""
    connection = http.client.HTTPConnection(
        "127.0.0.1", server.ports["metrics"], timeout=DEADLINE_S
    )
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return [answer.status, answer.getheader("Content-Type"), bool(answer.read())]
    finally:
        connection.close()


def successes(server: Server) -> Observation:
    over_http(server, *int32_request())
    return metrics(server, "nv_inference_request_success")


def counter_heads(server: Server) -> Observation:
    return heads(server, "counter")


def gauge_heads(server: Server) -> Observation:
    return heads(server, "gauge")


def histogram_heads(server: Server) -> Observation:
    return heads(server, "histogram")


def kinds_in_order(server: Server) -> Observation:
    return list(dict.fromkeys(line.split()[3] for line in page(server) if "# TYPE" in line))


def labels_of_a_model(server: Server) -> Observation:
    return without_values(sorted(line for line in page(server) if 'model="pair"' in line))


def rows_of_a_batch(server: Server) -> Observation:
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [3, 2], "data": [1, 2, 3, 4, 5, 6]}
    over_http(server, "/v2/models/batched/infer", {"inputs": [tensor]})
    return series(server, *COUNTS, model="batched")


def model_that_answers_with_an_error(server: Server) -> Observation:
    return [ask_model(server, "failing"), series(server, *COUNTS, FAILURES, model="failing")]


def model_that_raises(server: Server) -> Observation:
    return [ask_model(server, "raising"), series(server, *COUNTS, FAILURES, model="raising")]


def refused_request(server: Server) -> Observation:
    tensor = {"name": "WRONG", "datatype": "INT32", "shape": [1], "data": [1]}
    answer = over_http(server, "/v2/models/texts/infer", {"inputs": [tensor]})
    return [answer["status"], series(server, *COUNTS, FAILURES, model="texts")]


def unknown_model(server: Server) -> Observation:
    status = ask_model(server, "nobody")
    return [status, [line for line in page(server) if 'model="nobody"' in line]]


def tags(server: Server) -> Observation:
    ask_model(server, "tagged")
    return series(server, *COUNTS, FAILURES, model="tagged")


def every_version(server: Server) -> Observation:
    ask_model(server, "versions/versions/1")
    ask_model(server, "versions")
    return series(server, "nv_inference_request_success", model="versions")


def ensemble(server: Server) -> Observation:
    ask_model(server, "ensemble")
    return [
        series(server, *COUNTS, FAILURES, model=name) for name in ("ensemble", "pair_of_ensemble")
    ]


def broken_ensemble(server: Server) -> Observation:
    status = ask_model(server, "broken_ensemble")
    return [status, series(server, *COUNTS, FAILURES, model="broken_ensemble")]


def stream(server: Server) -> Observation:
    infer_over_stream(server, "stream", {"INPUT0": np.array([3], np.int32)})
    infer_over_stream(server, "stream", {"INPUT0": np.array([1], np.int32)})
    # The real one counts a request after its last response was sent.
    eventually(lambda: series(server, COUNTS[0], model="stream")[0].endswith(" 2"))
    return series(server, *COUNTS, FAILURES, model="stream")


def model_that_caches(server: Server) -> Observation:
    return without_values(series(server, "nv_cache_num_hits_per_model", model="caching"))


def model_without_cache(server: Server) -> Observation:
    return [line for line in page(server) if line.startswith("nv_cache") and '"pair"' in line]


def pending(server: Server) -> Observation:
    ask_model(server, "pair_of_ensemble")
    return series(server, "nv_inference_pending_request_count", model="pair_of_ensemble")


def durations(server: Server) -> Observation:
    names = ("request", "queue", "compute_input", "compute_infer", "compute_output")
    families = [f"nv_inference_{name}_duration_us" for name in names]
    ask_model(server, "numbers")
    return without_values(series(server, *families, model="numbers"))


def durations_of_an_unused_model(server: Server) -> Observation:
    return series(server, "nv_inference_request_duration_us", model="pair")


def custom_metrics(server: Server) -> Observation:
    ask_model(server, "custom")
    lines = page(server)
    own = [line for line in lines if "own_" in line]
    is_among_counters = lines.index("# TYPE own_counter counter") < lines.index(
        "# TYPE nv_inference_pending_request_count gauge"
    )
    return [own, is_among_counters]


def pinned_pool(server: Server) -> Observation:
    return without_values(series(server, "nv_pinned_memory_pool_used_bytes"))


def machine(server: Server) -> Observation:
    names = ("nv_cpu_utilization", "nv_cpu_memory_total_bytes", "nv_cpu_memory_used_bytes")
    return without_values(series(server, *names))


def no_gpu(server: Server) -> Observation:
    return series(server, "nv_gpu_utilization", "nv_energy_consumption")


def reload(server: Server) -> Observation:
    ask_model(server, "reloaded")
    before = series(server, *COUNTS, model="reloaded")
    over_http(server, "/v2/repository/models/reloaded/unload", {})
    over_grpc(server, "RepositoryModelLoad", {"model_name": "reloaded"})
    return [before, series(server, *COUNTS, model="reloaded")]


def page_type(server: Server) -> Observation:
    return [answered_as(server, path) for path in ("/metrics", "/metrics/", "/metrics?x=y")]


def other_paths(server: Server) -> Observation:
    return [answered_as(server, path) for path in ("/other", "/metric", "/v2/health/live")]


def other_methods(server: Server) -> Observation:
    return [answered_as(server, "/metrics", method)[0] for method in ("POST", "PUT", "DELETE")]


COUNT_CASES = tuple(
    Case(name, ask)
    for name, ask in {
        "successful requests": successes,
        "helps and types of counters": counter_heads,
        "helps and types of gauges": gauge_heads,
        "helps and types of histograms": histogram_heads,
        "kinds in order": kinds_in_order,
        "series of a model": labels_of_a_model,
        "rows of a batch": rows_of_a_batch,
        "model that answers with an error": model_that_answers_with_an_error,
        "model that raises": model_that_raises,
        "refused request": refused_request,
        "unknown model": unknown_model,
        "tags": tags,
        "every version": every_version,
        "ensemble": ensemble,
        "broken ensemble": broken_ensemble,
        "stream": stream,
        "model that caches": model_that_caches,
        "model without cache": model_without_cache,
        "pending": pending,
        "durations": durations,
        "durations of an unused model": durations_of_an_unused_model,
        "custom metrics": custom_metrics,
        "pinned pool": pinned_pool,
        "machine": machine,
        "no GPU": no_gpu,
        "reload": reload,
        "page type": page_type,
        "other paths": other_paths,
        "other methods": other_methods,
    }.items()
)


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


SURFACE = Surface(
    "metrics",
    cases=(*COUNT_CASES, *OPTION_CASES),
    setup=Setup(models=write_observed, options=("--model-control-mode=explicit", "--load-model=*")),
)
