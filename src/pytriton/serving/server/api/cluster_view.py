# SPDX-License-Identifier: Apache-2.0
"""Instances and nodes as people see them: what the cluster tells, joined with the engine's models.

The cluster knows processes, the engine knows which of them serve. It imports none of the code for
clusters, so that servers without one need not load it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pytriton.runtime.executor.inference import Instance
    from pytriton.runtime.executor.remote.starter import (
        ActorStatus,
        ClusterStatus,
        NodeStatus,
    )
    from pytriton.serving.engine.served_model import ManagedModel

RUNNING = "running"
MISSING = "missing"  # it ended, and its successor is not known to the cluster yet

# Resources that Ray adds itself, and memory that no actor of ours asks for.
_HIDDEN_RESOURCES = ("memory", "object_store_memory")
_HIDDEN_PREFIXES = ("node:", "accelerator_type:")


class ModelKey(NamedTuple):
    """The identity of a model version."""

    namespace: str
    name: str
    version: int


@dataclass(frozen=True, slots=True)
class InstanceRow:
    """One instance of a model.

    Attributes:
        model: Its model version.
        name: The instance; empty for one that is missing.
        node: Where it runs; empty on the server's machine, and while that is not decided.
        pid: Its process there; 0 if it has none yet, or none of its own.
        state: running, starting, pending or missing.
    """

    model: ModelKey
    name: str
    node: str
    pid: int
    state: str


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node: its name, its resources, and the number of processes that it runs for models."""

    name: str
    total: Mapping[str, float]
    available: Mapping[str, float]
    actor_count: int


@dataclass(frozen=True, slots=True)
class ClusterView:
    """A cluster and all instances of a server, those on its own machine included."""

    status: ClusterStatus
    nodes: Sequence[NodeRow]
    instances: Sequence[InstanceRow]


def cluster_view(status: ClusterStatus, models: Iterable[ManagedModel]) -> ClusterView:
    """Join what the cluster tells with the models of the engine."""
    names = _node_names(status.nodes)
    actors = {(actor.node, actor.pid): actor for actor in status.actors if actor.pid}
    rows: list[InstanceRow] = []
    missing: dict[ModelKey, int] = {}
    serving: set[str] = set()  # the names of actors
    for model in models:
        key = ModelKey(model.spec.namespace, model.spec.name, model.spec.version)
        missing[key] = model.missing_instances
        for instance in model.instances:
            node, pid = _place(instance)
            actor = actors.get((node, pid))
            if actor is not None:
                serving.add(actor.name)
                node = names.get(actor.node_id, node)
            rows.append(InstanceRow(key, instance.name, node, pid, RUNNING))
    waiting = [each for each in status.actors if not each.rank and each.name not in serving]
    rows += [_starting(actor, names) for actor in waiting]
    known = Counter(ModelKey(each.namespace, each.model, each.version) for each in waiting)
    for key, count in missing.items():
        rows += [InstanceRow(key, "", "", 0, MISSING)] * (count - known[key])
    return ClusterView(status, _nodes(status, names), sorted(rows, key=_order))


def _place(instance: Instance) -> tuple[str, int]:
    """Returns node and process of an instance; functions of a user's process have neither."""
    return getattr(instance, "node", ""), getattr(instance, "pid", 0)


def _starting(actor: ActorStatus, names: Mapping[str, str]) -> InstanceRow:
    model = ModelKey(actor.namespace, actor.model, actor.version)
    node = names.get(actor.node_id, actor.node)
    return InstanceRow(model, actor.instance, node, actor.pid, actor.state.value)


def _nodes(status: ClusterStatus, names: Mapping[str, str]) -> list[NodeRow]:
    counts = Counter(actor.node_id for actor in status.actors if actor.pid)
    rows = [
        NodeRow(names[node.node_id], _shown(node.total), _available(node), counts[node.node_id])
        for node in status.nodes
    ]
    return sorted(rows, key=lambda row: row.name)


def _shown(amounts: Mapping[str, float]) -> dict[str, float]:
    """Returns the resources that people who place instances care about."""
    return {
        name: amount
        for name, amount in amounts.items()
        if name not in _HIDDEN_RESOURCES and not name.startswith(_HIDDEN_PREFIXES)
    }


def _available(node: NodeStatus) -> dict[str, float]:
    """Returns the free amount of each shown resource; Ray leaves out those that are used up."""
    if not node.available:
        return {}
    return {name: node.available.get(name, 0.0) for name in _shown(node.total)}


def _node_names(nodes: Iterable[NodeStatus]) -> dict[str, str]:
    """Returns the name of each node by its id, with a part of the id where several have one."""
    nodes = list(nodes)
    counts = Counter(node.name for node in nodes)
    return {
        node.node_id: node.name if counts[node.name] == 1 else f"{node.name} {node.node_id[:6]}"
        for node in nodes
    }


def _order(row: InstanceRow) -> tuple[ModelKey, bool, str]:
    return row.model, row.state == MISSING, row.name
