# SPDX-License-Identifier: Apache-2.0
"""Instances on the nodes of a cluster, read from metrics; no I/O. Servers without one have none."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

RUNNING = "running"
SERVER = "(server)"  # stands for the server's own machine
WAITING = "(none yet)"  # stands for the node of an instance that has none

_INSTANCES = "nv_model_instance_count"
_LAUNCHER = "nv_cluster_launcher_up"
_UNREACHABLE = "nv_cluster_unreachable_seconds"
_ACTORS = "nv_cluster_node_actor_count"
_TOTAL = "nv_cluster_node_resource_total"
_AVAILABLE = "nv_cluster_node_resource_available"


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
