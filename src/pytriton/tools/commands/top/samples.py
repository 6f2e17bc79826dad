# SPDX-License-Identifier: Apache-2.0
"""What a server counted until one moment, read from its metrics or its statistics; no I/O.

The metrics of a server with a cluster also say on which nodes its instances are.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from pytriton.client.kserve.metrics import series
from pytriton.client.kserve.records import Document

RUNNING = "running"
SERVER = "(server)"  # stands for the server's own machine
WAITING = "(none yet)"  # stands for the node of an instance that has none

_INSTANCES = "nv_model_instance_count"
_LAUNCHER = "nv_cluster_launcher_up"
_UNREACHABLE = "nv_cluster_unreachable_seconds"
_ACTORS = "nv_cluster_node_actor_count"
_TOTAL = "nv_cluster_node_resource_total"
_AVAILABLE = "nv_cluster_node_resource_available"

Key = tuple[str, str]  # name, with its namespace if it has one, and version

_COUNTERS = {
    "nv_inference_request_success": "succeeded",
    "nv_inference_request_failure": "failed",  # one series for each reason
    "nv_inference_count": "inferences",
    "nv_inference_exec_count": "executions",
    "nv_inference_batch_size_sum": "rows",
    "nv_inference_request_duration_us": "request_us",
    "nv_inference_queue_duration_us": "queue_us",
    "nv_inference_compute_infer_duration_us": "compute_us",
    "nv_inference_pending_request_count": "pending",
    "nv_inference_running_request_count": "running",
    "nv_cache_num_hits_per_model": "cache_hits",
    "nv_cache_num_misses_per_model": "cache_misses",
    "nv_model_gpu_memory_bytes": "gpu_memory",  # one series for each device
}
_LATENCIES = "nv_inference_request_latency_seconds_bucket"
_PATHS = "nv_inference_path_count"
_MACHINE = {
    "nv_cpu_utilization": "cpu",
    "nv_cpu_memory_used_bytes": "memory_used",
    "nv_cpu_memory_total_bytes": "memory_total",
}
_GPUS = {
    "nv_gpu_utilization": "utilization",
    "nv_gpu_memory_used_bytes": "memory_used",
    "nv_gpu_memory_total_bytes": "memory_total",
}


@dataclasses.dataclass(frozen=True, slots=True)
class InstancePlace:
    """How many instances of a model are in one state on one node; "" is no node of the cluster."""

    node: str
    state: str
    count: int

    @property
    def where(self) -> str:
        """The node, or what is in its place."""
        return self.node or (SERVER if self.state == RUNNING else WAITING)


@dataclasses.dataclass(slots=True)
class NodeReading:
    """What a node has, and what of it is free."""

    processes: int = 0
    total: dict[str, float] = dataclasses.field(default_factory=dict)
    available: dict[str, float] = dataclasses.field(default_factory=dict)

    def used(self, resource: str) -> float | None:
        """Returns how much of a resource is in use; None if that is not known."""
        if resource not in self.total or not self.available:
            return None
        return max(self.total[resource] - self.available.get(resource, 0.0), 0.0)


@dataclasses.dataclass(slots=True)
class ClusterReading:
    """What the metrics of a server tell of its cluster."""

    launcher_is_up: bool = True
    unreachable_s: float = 0.0
    nodes: dict[str, NodeReading] = dataclasses.field(default_factory=dict)

    def take(self, name: str, labels: Mapping[str, str], value: float) -> None:
        """Take a series that is not about a model."""
        if name == _LAUNCHER:
            self.launcher_is_up = value > 0
        elif name == _UNREACHABLE:
            self.unreachable_s = value
        elif "node" in labels:
            node = self.nodes.setdefault(labels["node"], NodeReading())
            if name == _ACTORS:
                node.processes = int(value)
            elif name == _TOTAL:
                node.total[labels.get("resource", "")] = value
            elif name == _AVAILABLE:
                node.available[labels.get("resource", "")] = value


def place_of(name: str, labels: Mapping[str, str], value: float) -> InstancePlace | None:
    """Returns the instances that a series counts; None if it does not count any."""
    if name != _INSTANCES:
        return None
    return InstancePlace(labels.get("node", ""), labels.get("state", ""), int(value))


def is_of_cluster(name: str) -> bool:
    """Returns whether a series is about a cluster as a whole."""
    return name.startswith("nv_cluster_")


def places_text(places: Iterable[InstancePlace]) -> str:
    """Returns where the instances of a model are: `alpha 2, beta 1; 1 pending`."""
    places = list(places)
    running = [f"{each.where} {each.count}" for each in places if each.state == RUNNING]
    others: Counter[str] = Counter()
    for each in places:
        if each.state != RUNNING:
            others[f"{each.state} on {each.node}" if each.node else each.state] += each.count
    waiting = [f"{count} {what}" for what, count in sorted(others.items())]
    return "; ".join(", ".join(part) for part in (running, waiting) if part)


def cluster_document(cluster: ClusterReading) -> dict[str, Any]:
    """Returns what is known of a cluster as JSON."""
    return dataclasses.asdict(cluster)


@dataclasses.dataclass(slots=True)
class ModelCounts:
    """The counters of one version; None where a server does not have one."""

    succeeded: float | None = None
    failed: float | None = None
    cancelled: float | None = None  # those of them that their clients did not want any more
    refused: float | None = None  # requests that the model has not seen; only our page tells them
    inferences: float | None = None
    executions: float | None = None
    rows: float | None = None  # of all executions; inferences leave out those that failed
    request_us: float | None = None
    queue_us: float | None = None
    compute_us: float | None = None
    pending: float | None = None
    running: float | None = None
    cache_hits: float | None = None
    cache_misses: float | None = None
    gpu_memory: float | None = None  # now, of the processes of its instances
    instances: int | None = None
    missing: int = 0  # instances that crashed and are not back yet, or were not started yet
    places: list[InstancePlace] = dataclasses.field(default_factory=list)  # on a cluster
    # Requests up to each bound in seconds, as a histogram of Prometheus counts them.
    latencies: dict[float, float] = dataclasses.field(default_factory=dict)
    paths: dict[str, float] = dataclasses.field(default_factory=dict)  # requests by path


@dataclasses.dataclass(slots=True)
class GpuUse:
    """How busy a GPU is."""

    utilization: float | None = None  # from 0 to 1
    memory_used: float | None = None
    memory_total: float | None = None


@dataclasses.dataclass(slots=True)
class MetricsSample:
    """Everything that was read at one moment."""

    at_s: float  # on a clock that only goes forward
    models: dict[Key, ModelCounts] = dataclasses.field(default_factory=dict)
    cpu: float | None = None  # from 0 to 1
    memory_used: float | None = None
    memory_total: float | None = None
    gpus: dict[str, GpuUse] = dataclasses.field(default_factory=dict)
    server_memory: float | None = None
    uptime_s: float | None = None
    refused: float = 0.0  # requests that reached no model
    cluster: ClusterReading | None = None

    def model(self, key: Key) -> ModelCounts:
        """Returns the counters of a version, new ones if it has none yet."""
        return self.models.setdefault(key, ModelCounts())


def read_metrics(text: str, at_s: float) -> MetricsSample:
    """Read metrics in the text format of Prometheus; families that are not known are skipped."""
    sample = MetricsSample(at_s)
    for name, labels, value in series(text):
        if name in _COUNTERS and "model" in labels:
            counts = sample.model(_key(labels))
            field = _COUNTERS[name]
            setattr(counts, field, (getattr(counts, field) or 0) + value)
            if labels.get("reason") == "CANCELED":
                counts.cancelled = value
        elif name == _LATENCIES and "le" in labels:
            sample.model(_key(labels)).latencies[float(labels["le"])] = value
        elif name == _PATHS and "path" in labels:
            sample.model(_key(labels)).paths[labels["path"]] = value
        elif name in _MACHINE:
            setattr(sample, _MACHINE[name], value)
        elif name in _GPUS:
            gpu = sample.gpus.setdefault(labels.get("gpu_uuid", ""), GpuUse())
            setattr(gpu, _GPUS[name], value)
        elif is_of_cluster(name):
            sample.cluster = sample.cluster or ClusterReading()
            sample.cluster.take(name, labels, value)
        elif "model" in labels and (place := place_of(name, labels, value)) is not None:
            _add_place(sample.model(_key(labels)), place)
    return sample


def _add_place(counts: ModelCounts, place: InstancePlace) -> None:
    counts.places.append(place)
    is_running = place.state == RUNNING
    counts.instances = (counts.instances or 0) + (place.count if is_running else 0)
    counts.missing += 0 if is_running else place.count


def _key(labels: Mapping[str, str]) -> Key:
    return _name(labels.get("namespace", ""), labels["model"]), labels.get("version", "")


def _name(namespace: str, name: str) -> str:
    return f"{namespace}::{name}" if namespace else name


def read_statistics(models: Iterable[Document], at_s: float) -> MetricsSample:
    """Read the statistics extension, for a server whose metrics are out of reach."""
    sample = MetricsSample(at_s)
    for entry in models:
        stats = entry.get("inference_stats", {})
        counts = sample.model((entry["name"], str(entry.get("version", ""))))
        counts.succeeded = _number(stats, "success", "count")
        counts.failed = _number(stats, "fail", "count")
        counts.request_us = _number(stats, "success", "ns") / 1000
        counts.queue_us = _number(stats, "queue", "ns") / 1000
        counts.compute_us = _number(stats, "compute_infer", "ns") / 1000
        counts.inferences = float(entry.get("inference_count", 0))
        counts.executions = float(entry.get("execution_count", 0))
        if "batch_stats" in entry:
            counts.rows = sum(
                int(each["batch_size"]) * _number(each, "compute_infer", "count")
                for each in entry["batch_stats"]
            )
        if "cache_hit" in stats:
            counts.cache_hits = _number(stats, "cache_hit", "count")
            counts.cache_misses = _number(stats, "cache_miss", "count")
    return sample


def _number(stats: Document, name: str, field: str) -> float:
    return float(stats.get(name, {}).get(field, 0))


def add_page_numbers(sample: MetricsSample, document: Any, now_s: float) -> None:
    """Add what only the page of this server tells: its memory, its age, instances."""
    started = document.get("started")
    if started:
        sample.uptime_s = max(now_s - float(started), 0.0)
    now = document["now"]
    sample.server_memory = now.get("machine", {}).get("server_memory") or None
    sample.refused = float(now.get("refused", 0))
    for entry in now.get("models", ()):
        key = _name(entry.get("namespace", ""), entry["name"]), str(entry["version"])
        if key in sample.models:
            sample.models[key].refused = entry.get("refused")
        if key in sample.models and not sample.models[key].places:
            sample.models[key].instances = entry.get("instances")
            sample.models[key].missing = entry.get("missing", 0)
