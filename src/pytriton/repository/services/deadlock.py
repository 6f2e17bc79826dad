# SPDX-License-Identifier: Apache-2.0
"""Whether a call between models can ever be answered, or waits for itself in a circle.

A call waits in one of two ways. It may block a thread that its instance needs for other batches,
too. Or a coroutine awaits it: other batches go on, but its own keeps its place among those that an
instance runs at a time. A batch counts as waiting while a call of its coroutines is under way, and
moves when one is answered.

The graph knows who waits for which request; where a request is, queued or running, it reads from
the request. What it cannot know, such as a thread that a model started, counts as something that
moves: then a call waits, however long.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytriton.executor.base import Instance

if TYPE_CHECKING:
    from pytriton.executor.inference import Inference


@dataclass(frozen=True, slots=True)
class Wait:
    """What waits for a call.

    `is_blocking` says that the batch waits on a thread without which neither it nor any later one
    goes on; with batch 0, none at all does.
    """

    instance: Instance
    batch_id: int
    is_blocking: bool


class WaitGraph:
    """Which batches of which instances wait for which requests."""

    def __init__(self) -> None:
        self._blocking: dict[Instance, dict[Inference, int]] = {}
        self._awaited: dict[Instance, dict[int, dict[Inference, None]]] = {}

    def add(self, wait: Wait, inference: Inference) -> None:
        """Something waits for a request that the engine has taken."""
        if wait.is_blocking:
            self._blocking.setdefault(wait.instance, {})[inference] = wait.batch_id
        else:
            batches = self._awaited.setdefault(wait.instance, {})
            batches.setdefault(wait.batch_id, {})[inference] = None

    def discard(self, wait: Wait, inference: Inference) -> list[Inference]:
        """It does not wait for that request any more; others that may be stuck from now on.

        Until now the batch could have moved when this request was answered. That has happened, and
        if coroutines of it still await others, maybe nothing can move any more.
        """
        batches = self._awaited.get(wait.instance, {})
        if wait.is_blocking:
            _remove(self._blocking, wait.instance, inference)
            return [next(iter(inferences)) for inferences in batches.values()]
        _remove(batches, wait.batch_id, inference)
        if not batches:
            self._awaited.pop(wait.instance, None)
        return list(batches.get(wait.batch_id, ()))[:1]

    def is_stuck(self, inference: Inference) -> bool:
        """Whether nothing that `request` waits for can move before it is answered itself."""
        seen = {inference}
        pending = [inference]
        full: set[Instance] = set()  # looked at once each: many requests may wait for them
        while pending:
            behind = self._behind(pending.pop(), full)
            if behind is None:
                return False
            fresh = [each for each in behind if each not in seen]
            seen.update(fresh)
            pending += fresh
        return True

    def has_blocked_slot(self, instances: Iterable[Instance]) -> bool:
        """Whether what is queued may go to an instance that cannot begin it."""
        if not self._blocking:
            return False
        return any(each in self._blocking and each.free_slots for each in instances)

    def _behind(self, inference: Inference, full: set[Instance]) -> Collection[Inference] | None:
        """Requests of which one must be answered before `request` moves; None: it moves anyway.

        What instances wait for that are known to be full is left out.
        """
        if inference.instance is not None:
            return self._behind_batch(inference.instance, inference.batch_id)
        owner = inference.owner
        if owner is None or inference.deadline_ns or owner.missing_instances:
            return None
        if not owner.instances:  # it is not executed by instances at all
            return None
        behind: list[Inference] = []
        for instance in owner.instances:
            if instance not in full:
                behind_slot = self._behind_slot(instance)
                if behind_slot is None:
                    return None
                behind += behind_slot
                full.add(instance)
        return behind

    def _behind_batch(self, instance: Instance, batch_id: int) -> Collection[Inference] | None:
        """The same for a batch that runs."""
        blocking = self._blocking.get(instance, {})
        # A batch before the one that blocks has left `execute`; others of its threads answer it.
        behind = [each for each, first in blocking.items() if first <= batch_id]
        return behind or self._awaited.get(instance, {}).get(batch_id)

    def _behind_slot(self, instance: Instance) -> Collection[Inference] | None:
        """The same for the next batch that an instance begins."""
        if blocking := self._blocking.get(instance):
            return blocking
        batches = self._awaited.get(instance)
        if batches is None or instance.free_slots:
            return None
        behind: list[Inference] = []
        for batch_id in instance.executing_batches:
            if batch_id not in batches:
                return None
            behind += batches[batch_id]
        return behind or None  # an instance that executes nothing ends, and fails what it has

    def __len__(self) -> int:
        awaited = (each for batches in self._awaited.values() for each in batches.values())
        return sum(map(len, self._blocking.values())) + sum(map(len, awaited))

    def __repr__(self) -> str:
        return f"<WaitGraph {len(self)} calls wait>"


def _remove(table: dict[Any, dict[Inference, Any]], key: Any, inference: Inference) -> None:
    """Take a request out of one of the table's sets, and the set if it was the last one."""
    inferences = table.get(key)
    if inferences is not None:
        inferences.pop(inference, None)
        if not inferences:
            del table[key]
