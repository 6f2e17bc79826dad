# SPDX-License-Identifier: Apache-2.0
"""The metric families of models: Triton's, and beyond them histograms and costs."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from pytriton.base.messages import RequestPath
from pytriton.runtime.executor.device_blocks import SHARED
from pytriton.serving.engine import latencies as names
from pytriton.serving.engine.latencies import (
    Exemplar,
    Histogram,
    Latencies,
    LatencyPlan,
    QuantileSummary,
    count_within,
)
from pytriton.serving.engine.served_model import ManagedModel
from pytriton.serving.engine.stats import FailureReason, InferenceDurations
from pytriton.serving.server.metrics.exposition import (
    Number,
    exemplar_text,
    histogram_lines,
    labels_text,
    number_text,
    open_histogram_lines,
    summary_lines,
)
from pytriton.serving.server.options.metrics_options import MetricsOptions

if TYPE_CHECKING:
    from pytriton.serving.engine.costs import ModelCosts
    from pytriton.serving.engine.quotas import Account

ANONYMOUS = ""  # the principal of a request whose client has no identity
GPU_COPIES = "nv_inference_gpu_copy_bytes"
GPU_TENSORS = "nv_inference_gpu_tensors_total"
SLOW_REQUESTS = "nv_inference_slow_requests_total"

_WITH_CACHED = "(includes cached requests)"
_WITHOUT_CACHED = "(does not include cached requests)"
_COMPUTE_HELP = {
    "input": f"Cumulative compute input duration in microseconds {_WITHOUT_CACHED}",
    "infer": f"Cumulative compute inference duration in microseconds {_WITHOUT_CACHED}",
    "output": f"Cumulative inference compute output duration in microseconds {_WITHOUT_CACHED}",
}


@dataclass(frozen=True, slots=True)
class ModelReading:
    """One model version, with what several families read."""

    model: ManagedModel
    labels: str
    durations: InferenceDurations
    latencies: Latencies | None
    is_open: bool = False  # its lines are in OpenMetrics

    @classmethod
    def of(
        cls, model: ManagedModel, gpu_uuids: Mapping[int, str], *, is_open: bool = False
    ) -> ModelReading:
        """Read a model; its labels have the device if all its instances are on one GPU."""
        spec = model.spec
        labels = {f"_{tag}": value for tag, value in spec.metric_tags.items()}
        labels |= {"model": spec.name, "version": str(spec.version)}
        if spec.namespace:
            labels["namespace"] = spec.namespace
        if spec.gpu is not None and spec.gpu in gpu_uuids:
            labels["gpu_uuid"] = gpu_uuids[spec.gpu]
        statistics = model.statistics
        durations = statistics.inference_durations()
        return cls(model, labels_text(labels), durations, statistics.latencies, is_open)


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """A family; `lines` returns those of one model, which may be none."""

    name: str
    kind: str
    help: str
    lines: Callable[[ModelReading], str]


_Read = Callable[[ModelReading], Number]


def _counter(name: str, help_text: str, read: _Read, kind: str = "counter") -> ModelFamily:
    def lines(reading: ModelReading) -> str:
        return f"{name}{{{reading.labels}}} {number_text(read(reading))}\n"

    return ModelFamily(name, kind, help_text, lines)


_gauge = functools.partial(_counter, kind="gauge")


def _cache_counter(name: str, help_text: str, read: _Read) -> ModelFamily:
    family = _counter(name, help_text, read)

    def lines(reading: ModelReading) -> str:
        return family.lines(reading) if reading.model.spec.response_cache else ""

    return ModelFamily(name, family.kind, help_text, lines)


def _failures(reading: ModelReading) -> str:
    failures = reading.model.statistics.failures
    counts = [(reason.value, failures[reason]) for reason in FailureReason]
    return _labelled("nv_inference_request_failure", reading.labels, "reason", counts)


def _paths(reading: ModelReading) -> str:
    paths = reading.model.statistics.paths
    counts = [(path.name.lower(), paths[path]) for path in RequestPath if path and paths[path]]
    return _labelled("nv_inference_path_count", reading.labels, "path", counts)


def _labelled(name: str, labels: str, label: str, counts: Iterable[tuple[str, int | str]]) -> str:
    """Returns the lines of a family with one more label."""
    # `version` is the last label, and the other one comes right before it.
    at = labels.rindex("version=")
    head = f"{name}{{{labels[:at]}{label}="
    return "".join([f'{head}"{value}",{labels[at:]}}} {count}\n' for value, count in counts])


def _histogram(
    name: str,
    help_text: str,
    histogram: Callable[[Latencies], Histogram | None],
    total: _Read,
) -> ModelFamily:
    def lines(reading: ModelReading) -> str:
        counted = None if reading.latencies is None else histogram(reading.latencies)
        if counted is None:
            return ""
        counts, whole = counted.cumulative(), total(reading)
        if not reading.is_open:
            return histogram_lines(name, reading.labels, counted.bounds, counts, whole)
        unit = 1e9 if name.endswith("_seconds") else 1e6
        exemplars = [_exemplar(each, unit) for each in counted.exemplars]
        return open_histogram_lines(name, reading.labels, counted.bounds, counts, whole, exemplars)

    return ModelFamily(name, "histogram", help_text, lines)


def _exemplar(exemplar: Exemplar | None, unit_ns: float = 1e9) -> str:
    if exemplar is None:
        return ""
    at_s = (time.time_ns() - time.monotonic_ns() + exemplar.at_ns) / 1e9
    labels = {"trace_id": exemplar.trace_id, "request_id": exemplar.request_id}
    return exemplar_text(labels, exemplar.ns / unit_ns, at_s)


def _slow_requests(reading: ModelReading) -> str:
    """Returns a counter for each slot with a request, which is its exemplar.

    The text format has no exemplars, and this family would say nothing there.
    """
    if not reading.is_open or reading.latencies is None:
        return ""
    slow = reading.latencies.slow
    at = reading.labels.rindex("version=")
    head = f"{SLOW_REQUESTS}{{{reading.labels[:at]}slot="
    return "".join(
        [
            f'{head}"{slot}",{reading.labels[at:]}}} {count}{_exemplar(exemplar)}\n'
            for slot, count, exemplar in slow.readings()
        ]
    )


def _batch_sizes(reading: ModelReading) -> str:
    if reading.latencies is None or not reading.latencies.batch_sizes:
        return ""
    bounds, statistics = reading.latencies.batch_sizes, reading.model.statistics
    counts = count_within(statistics.batch_sizes(), bounds)
    lines = open_histogram_lines if reading.is_open else histogram_lines
    return lines(names.BATCH_SIZE, reading.labels, bounds, counts, statistics.batch_rows)


def _microseconds(field: str) -> _Read:
    """Returns a function that reads one of the durations."""
    duration = attrgetter(f"durations.{field}.ns")
    return lambda reading: duration(reading) // 1000


def _summary(name: str, help_text: str, field: str, duration: str) -> ModelFamily:
    """Returns the family of a field of `Summaries` and of one of `InferenceDurations`."""
    total = _microseconds(duration)

    def lines(reading: ModelReading) -> str:
        latencies = reading.latencies
        if latencies is None or latencies.summaries is None:
            return ""
        counted: QuantileSummary | None = getattr(latencies.summaries, field)
        if counted is None:
            return ""
        ranks = [quantile.rank for quantile in latencies.summaries.quantiles]
        values = counted.values_at(ranks, latencies.time_slice())
        lines = summary_lines(name, reading.labels, ranks, values, counted.count, total(reading))
        if reading.is_open:  # the quantiles come first
            count, whole, *quantiles = lines.splitlines(keepends=True)
            return "".join([*quantiles, count, whole])
        return lines

    return ModelFamily(name, "summary", help_text, lines)


COUNTS = (
    _counter(
        "nv_inference_request_success",
        "Number of successful inference requests, all batch sizes",
        attrgetter("durations.success.count"),
    ),
    ModelFamily(
        "nv_inference_request_failure",
        "counter",
        "Number of failed inference requests, all batch sizes",
        _failures,
    ),
    ModelFamily(
        "nv_inference_path_count",
        "counter",
        "Number of inference requests by how they came to the model: in columns, or why not",
        _paths,
    ),
    _counter(
        "nv_inference_count",
        f"Number of inferences performed {_WITHOUT_CACHED}",
        attrgetter("model.statistics.inference_count"),
    ),
    _counter(
        "nv_inference_exec_count",
        f"Number of model executions performed {_WITHOUT_CACHED}",
        attrgetter("model.statistics.execution_count"),
    ),
)
# The name in families, the field of `InferenceDurations`, and the help of counter and summary.
_LATENCIES = (
    (
        "request",
        "success",
        f"Cumulative inference request duration in microseconds {_WITH_CACHED}",
        f"Summary of inference request duration in microseconds {_WITH_CACHED}",
    ),
    (
        "queue",
        "queue",
        f"Cumulative inference queuing duration in microseconds {_WITH_CACHED}",
        f"Summary of inference queuing duration in microseconds {_WITH_CACHED}",
    ),
    *((f"compute_{part}", f"compute_{part}", text, text) for part, text in _COMPUTE_HELP.items()),
)
LATENCY_COUNTERS = tuple(
    _counter(f"nv_inference_{name}_duration_us", text, _microseconds(field))
    for name, field, text, _ in _LATENCIES
)


def _costs(
    name: str, help_text: str, label: str, parts: Mapping[str, Callable[[ModelCosts], Number]]
) -> ModelFamily:
    """Returns a family with a line for each part, such as that of the server."""

    def lines(reading: ModelReading) -> str:
        costs = reading.model.statistics.costs
        read_parts = [(value, read(costs)) for value, read in parts.items()]
        values = [(value, number_text(number)) for value, number in read_parts if number]
        # Nobody has an identity yet: the label has its place, so that series keep their form.
        return _labelled(name, reading.labels, f'principal="{ANONYMOUS}",{label}', values)

    return ModelFamily(name, "counter", help_text, lines)


def _gpu_copies(reading: ModelReading) -> str:
    costs = reading.model.statistics.costs
    counts = [("to_gpu", costs.to_gpu_bytes), ("to_host", costs.to_host_bytes)]
    some = [(direction, count) for direction, count in counts if count]
    return _labelled(GPU_COPIES, reading.labels, "direction", some)


def _gpu_tensors(reading: ModelReading) -> str:
    counts = reading.model.statistics.costs.gpu_tensors
    copied = sorted((reason, count) for reason, count in counts.items() if reason != SHARED)
    shared = [(SHARED, counts[SHARED])] if counts[SHARED] else []
    return "".join(
        [
            _labelled(GPU_TENSORS, reading.labels, f'way="{way}",reason', some)
            for way, some in (("copied", copied), ("shared", shared))
        ]
    )


COSTS = (
    _costs(
        "nv_inference_processor_seconds",
        "Processor time that requests have cost, of the model's instances (worker) and of the "
        "server, whose time is shared among models by requests and bytes",
        "where",
        {
            "server": lambda costs: costs.server_ns / 1e9,
            "worker": lambda costs: costs.worker_ns / 1e9,
        },
    ),
    _costs(
        "nv_inference_tensor_bytes",
        "Number of bytes of tensors that instances received and returned",
        "direction",
        {"in": attrgetter("bytes_in"), "out": attrgetter("bytes_out")},
    ),
    _costs(
        "nv_inference_tokens",
        "Number of tokens of OpenAI's routes, as models have counted them",
        "direction",
        {"in": attrgetter("tokens_in"), "out": attrgetter("tokens_out")},
    ),
    ModelFamily(
        GPU_COPIES,
        "counter",
        "Number of bytes that the server's own copies have moved between host and GPU in the "
        "processes of instances",
        _gpu_copies,
    ),
    ModelFamily(
        GPU_TENSORS,
        "counter",
        "Tensors in GPU memory between models, by the model that got a shared one or sent a copied "
        "one, and the reason for a copy through the host",
        _gpu_tensors,
    ),
)


def _principals(
    name: str,
    help_text: str,
    read: Callable[[Account], Iterable[tuple[str, Number]]],
    label: str = "",
    kind: str = "counter",
) -> ModelFamily:
    """Returns a family with lines for each principal that has used something of a model.

    There may be thousands of principals, and most of them use few models. `read` returns the values
    of an account, each with that of the other label, if there is one.
    """
    is_counter = kind == "counter"

    def lines(reading: ModelReading) -> str:
        texts = []
        for account in reading.model.statistics.accounts:
            if not account.is_used:
                continue
            principal = labels_text({"principal": account.principal})
            values = [
                (value, number_text(number))
                for value, number in read(account)
                if number or not is_counter
            ]
            if label:
                texts.append(_labelled(name, reading.labels, f"{principal},{label}", values))
            else:
                at = reading.labels.rindex("version=")
                labels = f"{reading.labels[:at]}{principal},{reading.labels[at:]}"
                texts += [f"{name}{{{labels}}} {number}\n" for _, number in values]
        return "".join(texts)

    return ModelFamily(name, kind, help_text, lines)


PRINCIPALS = (
    _principals(
        "nv_principal_request_count",
        "Number of requests of a principal that were admitted",
        lambda account: [("", account.requests)],
    ),
    _principals(
        "nv_principal_refused_count",
        "Number of requests of a principal that were refused, by the limit that it had reached",
        lambda account: [(limit.value, count) for limit, count in account.refused.items()],
        "limit",
    ),
    _principals(
        "nv_principal_queue_duration_us",
        "Cumulative time that requests of a principal waited in the queue in microseconds",
        lambda account: [("", account.queue_ns // 1000)],
    ),
    _principals(
        "nv_principal_tensor_bytes",
        "Number of bytes of tensors of a principal, in its requests and in the answers",
        lambda account: [("in", account.bytes_in), ("out", account.bytes_out)],
        "direction",
    ),
    _principals(
        "nv_principal_tokens",
        "Number of tokens of OpenAI's routes of a principal, as models have counted them",
        lambda account: [("in", account.tokens_in), ("out", account.tokens_out)],
        "direction",
    ),
    _principals(
        "nv_principal_running_request_count",
        "Instantaneous number of requests of a principal that are under way",
        lambda account: [("", account.under_way)],
        kind="gauge",
    ),
)
CACHE = (
    _cache_counter(
        "nv_cache_num_hits_per_model",
        "Number of cache hits per model",
        attrgetter("durations.cache_hit.count"),
    ),
    _cache_counter(
        "nv_cache_hit_duration_per_model",
        "Total cache hit duration per model, in microseconds",
        _microseconds("cache_hit"),
    ),
    _cache_counter(
        "nv_cache_num_misses_per_model",
        "Number of cache misses per model",
        attrgetter("durations.cache_miss.count"),
    ),
    _cache_counter(
        "nv_cache_miss_duration_per_model",
        "Total cache miss (insert+lookup) duration per model, in microseconds",
        _microseconds("cache_miss"),
    ),
)
GAUGES = (
    _gauge(
        "nv_inference_pending_request_count",
        "Instantaneous number of pending requests awaiting execution per-model.",
        attrgetter("model.statistics.pending_count"),
    ),
    _gauge(
        "nv_model_load_duration_secs",
        "Model load time in seconds",
        lambda reading: reading.model.statistics.load_ns / 1e9,
    ),
    _gauge(  # not one of Triton's
        "nv_inference_running_request_count",
        "Instantaneous number of requests that instances work on per-model.",
        attrgetter("model.running_count"),
    ),
)
SLOW = ModelFamily(
    SLOW_REQUESTS,
    "counter",
    "Number of successful requests above the limit of slow_request_seconds, by slot, with the "
    "newest of each slot as exemplar",
    _slow_requests,
)
HISTOGRAMS = (
    _histogram(
        names.FIRST_RESPONSE,
        "Duration from request to first response in milliseconds",
        lambda latencies: latencies.first_response,
        lambda reading: (reading.latencies.first_response_ns if reading.latencies else 0) / 1e6,
    ),
    # Triton has none of those that follow.
    _histogram(
        names.REQUEST,
        f"Duration of successful requests from receipt to response in seconds {_WITH_CACHED}",
        lambda latencies: latencies.request,
        lambda reading: reading.durations.success.ns / 1e9,
    ),
    _histogram(
        names.QUEUE,
        f"Time that successful requests waited in the queue in seconds {_WITHOUT_CACHED}",
        lambda latencies: latencies.queue,
        lambda reading: reading.durations.queue.ns / 1e9,
    ),
    _histogram(
        names.COMPUTE,
        "Time from the start of the execution of successful requests to their outputs in seconds "
        f"{_WITHOUT_CACHED}",
        lambda latencies: latencies.compute,
        lambda reading: (
            (
                reading.durations.compute_input.ns
                + reading.durations.compute_infer.ns
                + reading.durations.compute_output.ns
            )
            / 1e9
        ),
    ),
    _histogram(
        names.STREAM_START,
        "Time from the receipt of requests to the first response of their streams in seconds",
        lambda latencies: latencies.stream_start,
        lambda reading: (reading.latencies.first_response_ns if reading.latencies else 0) / 1e9,
    ),
    _histogram(
        names.RESPONSE_INTERVAL,
        "Time between successive responses of streams in seconds",
        lambda latencies: latencies.response_interval,
        lambda reading: (reading.latencies.response_interval_ns if reading.latencies else 0) / 1e9,
    ),
    ModelFamily(
        names.BATCH_SIZE,
        "histogram",
        "Number of inferences in each model execution",
        _batch_sizes,
    ),
)
SUMMARIES = (
    *(
        _summary(f"nv_inference_{name}_summary_us", text, name, field)
        for name, field, _, text in _LATENCIES
    ),
    *(
        _summary(
            f"nv_{name}_summary_per_model",
            f"Summary of {name.replace('_', ' ')} counts/durations per model, in microseconds.",
            name,
            name,
        )
        for name in ("cache_hit", "cache_miss")
    ),
)
ALL_FAMILIES = (
    *COUNTS,
    *LATENCY_COUNTERS,
    *CACHE,
    *COSTS,
    *PRINCIPALS,
    SLOW,
    *GAUGES,
    *HISTOGRAMS,
    *SUMMARIES,
)


def shown_families(options: MetricsOptions) -> tuple[ModelFamily, ...]:
    """Returns the families of models that the options ask for, in the order of the page."""
    plan: LatencyPlan = options.latencies
    has_histograms = plan.histograms or plan.first_responses
    return (
        *COUNTS,
        *(LATENCY_COUNTERS if options.counter_latencies else ()),
        *CACHE,
        *(COSTS if options.costs else ()),
        *PRINCIPALS,
        SLOW,
        *GAUGES,
        *(HISTOGRAMS if has_histograms else ()),
        *(SUMMARIES if plan.quantiles else ()),
    )
