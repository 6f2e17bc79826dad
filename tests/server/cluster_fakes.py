# SPDX-License-Identifier: Apache-2.0
"""A cluster of two nodes with a model on it, as the server would know it."""

from __future__ import annotations

from dataclasses import dataclass, field

from pytriton.base.model_spec import ModelSpec
from pytriton.runtime.executor.remote.starter import (
    ActorState,
    ActorStatus,
    ClusterStatus,
    NodeStatus,
)
from pytriton.serving.engine.config import config_from_text, normalise_config, spec_from_config
from pytriton.serving.engine.model_state import VersionState
from pytriton.serving.engine.stats import ModelStatistics


@dataclass
class FakeInstance:
    name: str
    node: str = ""
    pid: int = 1


class BoundInstance:
    """One of a user's process: it tells neither node nor process."""

    name = "instance 0"


@dataclass
class FakeModel:
    spec: ModelSpec
    instances: list[FakeInstance | BoundInstance] = field(default_factory=list)
    missing_instances: int = 0
    running_count: int = 0
    statistics: ModelStatistics = field(default_factory=ModelStatistics)
    state: VersionState = VersionState.READY


def model(name: str, *instances: FakeInstance | BoundInstance, missing: int = 0) -> FakeModel:
    config = normalise_config(config_from_text(f'name: "{name}" backend: "python"', "config.pbtxt"))
    return FakeModel(spec_from_config(config, 1), list(instances), missing)


def actor(instance: str, node: str = "", pid: int = 0, *, rank: int = 0) -> ActorStatus:
    state = ActorState.STARTING if pid else ActorState.PENDING
    name = f"{instance}-{pid:04x}"
    model_name = instance.partition("_")[0]
    return ActorStatus(
        name, instance, model_name, 1, node=node, node_id=f"id-{node}", pid=pid, rank=rank,
        state=state,
    )  # fmt: skip


def node(name: str, *, gpus: int = 1, is_known: bool = True) -> NodeStatus:
    total = {"CPU": 8.0, "GPU": float(gpus), "memory": 1e9, f"node:{name}": 1.0}
    free = {"CPU": 5.0, "GPU": 0.5} if is_known else {}
    return NodeStatus(f"id-{name}", name, total, free)


def cluster(*actors: ActorStatus, nodes: tuple[str, ...] = ("alpha", "beta")) -> ClusterStatus:
    return ClusterStatus(
        is_connected=True,
        address="10.0.0.1:6379",
        nodes=tuple(node(name) for name in nodes),
        actors=actors,
    )
