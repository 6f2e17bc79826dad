# SPDX-License-Identifier: Apache-2.0
"""Decides whether a cluster has room for an instance, and on which node. Does no I/O.

Instances of a model are spread over nodes; Ray's own strategy for this does not know which actors
belong to one model. The caller has the clock.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from pytriton.runtime.executor.remote.starter import NodeStatus
    from pytriton.runtime.executor.worker import Placement

_NAMED_NODES = 4
_ROUNDING = 1e-6  # Ray counts in steps of 0.0001
# Ray finds only after a while that a node is gone. Until then, no instance should be sent to a node
# that has just lost one, if there is another.
_DOUBT_S = 30.0


def wanted_resources(placement: Placement) -> dict[str, float]:
    """Returns what one process takes of its node, by Ray's names."""
    wanted = {"CPU": placement.num_cpus, "GPU": placement.num_gpus, **placement.resources}
    return {name: amount for name, amount in wanted.items() if amount > 0}


def has_room(processes: Sequence[Mapping[str, float]], nodes: Sequence[NodeStatus]) -> bool:
    """Returns whether all these processes fit on the nodes side by side, as far as is known.

    Each takes the first node that fits, so the answer may be False where another order would do.
    """
    free = [dict(node.available or node.total) for node in nodes]
    for wanted in processes:
        fitting = next((node for node in free if fits(wanted, node)), None)
        if fitting is None:
            return False
        for name, amount in wanted.items():
            fitting[name] -= amount
    return True


def describe_wait(wanted: Mapping[str, float], count: int, nodes: Sequence[NodeStatus]) -> str:
    """Returns as text why an instance waits: the wanted resources, and those of the nodes."""
    asked = describe(wanted)
    if count > 1:
        asked = f"{count} times {asked}"
    if not nodes:
        return f"it needs {asked}, and the cluster has no nodes"
    able = [node for node in nodes if fits(wanted, node.total)]
    if not able:
        most = {name: max(node.total.get(name, 0.0) for node in nodes) for name in wanted}
        return f"it needs {asked}, and no node has that, used or not: the most is {describe(most)}"
    named = "; ".join(_describe_node(node, wanted) for node in able[:_NAMED_NODES])
    if len(able) > _NAMED_NODES:
        named += f"; and {len(able) - _NAMED_NODES} more"
    lack = "no node has that free" if count == 1 else "there is no room for all of them"
    if count == 1 and any(fits(wanted, node.available) for node in able):
        lack = "others that are being started take what is free"
    return f"it needs {asked}, and {lack}: {named}"


def describe(resources: Mapping[str, float]) -> str:
    """Returns resources as text, as `1 CPU, 0.5 GPU`."""
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items()) or "nothing"


def _describe_node(node: NodeStatus, wanted: Mapping[str, float]) -> str:
    if not node.available:
        return f"{node.name} has {describe({name: node.total[name] for name in wanted})} in all"
    free = ", ".join(
        f"{node.available.get(name, 0.0):g} of {node.total[name]:g} {name}" for name in wanted
    )
    return f"{node.name} has {free} free"


def fits(wanted: Mapping[str, float], free: Mapping[str, float]) -> bool:
    """Returns whether there is room for one process."""
    return all(free.get(name, 0.0) + _ROUNDING >= amount for name, amount in wanted.items())


class Spreading:
    """The nodes of the instances of each model."""

    def __init__(self) -> None:
        self._places: dict[str, tuple[Hashable, str]] = {}  # model and node, by start
        self._lost_s: dict[str, float] = {}  # when a node has lost an instance, by its id

    def choose(
        self,
        model: Hashable,
        wanted: Mapping[str, float],
        nodes: Sequence[NodeStatus],
        now_s: float,
    ) -> str:
        """Returns the id of the node for the next instance of a model; "" if none has room."""
        here = Counter(node for key, node in self._places.values() if key == model)
        all_here = Counter(node for _, node in self._places.values())
        fitting = [node.node_id for node in nodes if fits(wanted, node.available or node.total)]
        return min(
            fitting,
            key=lambda node: (self._is_doubtful(node, now_s), here[node], all_here[node]),
            default="",
        )

    def add(self, start: str, model: Hashable, node_id: str) -> None:
        """Count an instance that is on its way to a node, or there."""
        self._places[start] = (model, node_id)

    def remove(self, start: str, now_s: float, *, is_lost: bool) -> None:
        """Forget an instance; `is_lost` says that its node may be the cause of its end."""
        _, node_id = self._places.pop(start, ("", ""))
        if is_lost and node_id:
            self._lost_s[node_id] = now_s

    def _is_doubtful(self, node_id: str, now_s: float) -> bool:
        return now_s - self._lost_s.get(node_id, -_DOUBT_S) < _DOUBT_S
