# SPDX-License-Identifier: Apache-2.0
"""Chooses nodes so that the instances of a model are on different ones. The caller has the clock.

Ray's own strategy for this does not know which actors belong to one model.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pytriton.runtime.cluster.room import fits

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from pytriton.runtime.executor.remote.starter import NodeStatus

# Ray finds only after a while that a node is gone. Until then, no instance should be sent to a node
# that has just lost one, if there is another.
_DOUBT_S = 30.0


class Spreading:
    """Knows on which nodes the instances of each model are."""

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
