# SPDX-License-Identifier: Apache-2.0
"""The metric families of a cluster, on which instances run; Triton has none of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from pytriton.serving.server.api.cluster_view import ModelKey, cluster_view
from pytriton.serving.server.metrics.exposition import MetricSample, Number, SampleFamily, gauge

if TYPE_CHECKING:
    from pytriton.runtime.executor.remote.starter import ClusterStatus
    from pytriton.serving.engine.served_model import ManagedModel
    from pytriton.serving.engine.stats import ModelStatistics
    from pytriton.serving.server.api.cluster_view import ClusterView, NodeRow

INSTANCES = "nv_model_instance_count"
NODES = "nv_cluster_node_count"
LAUNCHER = "nv_cluster_launcher_up"
UNREACHABLE = "nv_cluster_unreachable_seconds"
LAUNCHER_RESTARTS = "nv_cluster_launcher_restart_count"
NODE_ACTORS = "nv_cluster_node_actor_count"
NODE_TOTAL = "nv_cluster_node_resource_total"
NODE_AVAILABLE = "nv_cluster_node_resource_available"
_COUNTERS: dict[str, tuple[str, Callable[[ModelStatistics], int]]] = {
    "nv_model_instance_loss_count": (
        "Number of instances that ended although nobody stopped them",
        lambda statistics: statistics.lost_instances,
    ),
    "nv_model_instance_scale_up_count": (
        "Number of instances that were started because of the load",
        lambda statistics: statistics.scale_ups,
    ),
    "nv_model_instance_scale_down_count": (
        "Number of instances that were ended because of the load",
        lambda statistics: statistics.scale_downs,
    ),
    "nv_inference_requeue_count": (
        "Number of requests that were queued again because their instance was lost",
        lambda statistics: statistics.requeued_requests,
    ),
}
CLUSTER_NAMES = (
    INSTANCES,
    NODES,
    LAUNCHER,
    UNREACHABLE,
    LAUNCHER_RESTARTS,
    NODE_ACTORS,
    NODE_TOTAL,
    NODE_AVAILABLE,
    *_COUNTERS,
)


def cluster_families(
    status: ClusterStatus | None, models: Iterable[ManagedModel]
) -> Iterator[SampleFamily]:
    """Yields the families of a cluster; none for a server without one."""
    if status is None:
        return
    models = list(models)
    view = cluster_view(status, models)
    for name, (help_text, read) in _COUNTERS.items():
        samples = [
            MetricSample(read(each.statistics), _model_labels(_key(each))) for each in models
        ]
        yield SampleFamily(name, "counter", help_text, samples)
    yield SampleFamily(
        LAUNCHER_RESTARTS,
        "counter",
        "Number of times that the process which starts instances was started again",
        [MetricSample(status.launcher_restarts, {})],
    )
    yield _instances(view)
    yield gauge(
        LAUNCHER,
        "Whether the process that starts instances is connected to the cluster (1) or not (0)",
        int(status.is_connected),
    )
    yield gauge(
        UNREACHABLE,
        "Seconds since the cluster answered last, 0 while it does; its nodes are those of then",
        round(status.unreachable_s, 1),
    )
    yield gauge(NODES, "Number of nodes of the cluster", len(status.nodes))
    yield from _node_families(view.nodes)


def _instances(view: ClusterView) -> SampleFamily:
    counts = Counter((row.model, row.node, row.state) for row in view.instances)
    samples = [
        MetricSample(count, {**_model_labels(model), "node": node, "state": state})
        for (model, node, state), count in sorted(counts.items())
    ]
    return SampleFamily(
        INSTANCES,
        "gauge",
        "Number of instances per-model by node and state; node is empty outside of the cluster",
        samples,
    )


def _node_families(nodes: Iterable[NodeRow]) -> Iterator[SampleFamily]:
    nodes = list(nodes)
    actors = [MetricSample(node.actor_count, {"node": node.name}) for node in nodes]
    yield SampleFamily(NODE_ACTORS, "gauge", "Number of processes of instances on a node", actors)
    total = [sample for node in nodes for sample in _resources(node.name, node.total)]
    yield SampleFamily(NODE_TOTAL, "gauge", "Resources of a node", total)
    free = [sample for node in nodes for sample in _resources(node.name, node.available)]
    yield SampleFamily(NODE_AVAILABLE, "gauge", "Resources of a node that are free", free)


def _resources(node: str, amounts: Mapping[str, Number]) -> list[MetricSample]:
    return [
        MetricSample(amount, {"node": node, "resource": name})
        for name, amount in sorted(amounts.items())
    ]


def _key(model: ManagedModel) -> ModelKey:
    return ModelKey(model.spec.namespace, model.spec.name, model.spec.version)


def _model_labels(model: ModelKey) -> dict[str, str]:
    labels = {"model": model.name, "version": str(model.version)}
    return labels | {"namespace": model.namespace} if model.namespace else labels
