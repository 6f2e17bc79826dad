# SPDX-License-Identifier: Apache-2.0
"""Detects deadlocks: calls between models that wait for one another in a cycle.

A model waits for its call in one of two ways. Either a thread is blocked that the instance also
needs for other batches. Or a coroutine awaits the call: other batches continue, but this batch
still counts as one of those that the instance may run at a time. Such a batch counts as waiting
while a call of its coroutines is open, and may continue when one is answered.

A request to an ensemble waits for the requests to the models of its steps.

The graph stores which batch waits for which request; whether a request is queued or running, it
reads from the request. Whatever it cannot know, such as a thread that a model started, counts as
able to continue, and a call then waits without a limit.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytriton.runtime.executor.base import Instance
from pytriton.serving.engine.served_model import queue_owner

if TYPE_CHECKING:
    from pytriton.runtime.executor.inference import Inference
    from pytriton.serving.engine.rate_limiter import Turns


@dataclass(frozen=True, slots=True)
class Wait:
    """The batch that waits for a call.

    If `is_blocking` is set, a thread waits without which neither this batch nor any later one can
    continue; with batch 0, no batch can.
    """

    instance: Instance
    batch_id: int
    is_blocking: bool


class WaitGraph:
    """Which batches of which instances wait for which requests.

    Args:
        turns: The turns of a rate limiter: an instance may also wait for resources.
    """

    def __init__(self, turns: Turns | None = None) -> None:
        self._turns = turns
        self._blocking: dict[Instance, dict[Inference, int]] = {}
        self._awaited: dict[Instance, dict[int, dict[Inference, None]]] = {}

    def add(self, wait: Wait, inference: Inference) -> None:
        """Add a wait for a request that the engine has accepted."""
        if wait.is_blocking:
            self._blocking.setdefault(wait.instance, {})[inference] = wait.batch_id
        else:
            batches = self._awaited.setdefault(wait.instance, {})
            batches.setdefault(wait.batch_id, {})[inference] = None

    def discard(self, wait: Wait, inference: Inference) -> list[Inference]:
        """Remove a wait; returns requests that may be deadlocked from now on.

        Until now the batch could have continued when this request was answered. That has happened,
        and if its coroutines still await other requests, maybe none of these can be answered.
        """
        batches = self._awaited.get(wait.instance, {})
        if wait.is_blocking:
            _remove(self._blocking, wait.instance, inference)
            return [next(iter(inferences)) for inferences in batches.values()]
        _remove(batches, wait.batch_id, inference)
        if not batches:
            self._awaited.pop(wait.instance, None)
        return list(batches.get(wait.batch_id, ()))[:1]

    def is_deadlocked(self, inference: Inference) -> bool:
        """Returns whether all that `inference` waits for can only continue after `inference`."""
        seen = {inference}
        pending = [inference]
        full: set[Instance] = set()  # each is checked once; many requests may wait for it
        while pending:
            blockers = self._blockers(pending.pop(), full)
            if blockers is None:
                return False
            new = [each for each in blockers if each not in seen]
            seen.update(new)
            pending += new
        return True

    def may_block_later(self, instances: Collection[Instance]) -> bool:
        """Returns whether to check a waiting request again when its owner has passed it on.

        It may go to an instance that cannot start it. An owner without instances may pass it on to
        a model that has some.
        """
        if not instances:
            return True
        if not self._blocking:
            return False
        return any(each in self._blocking and each.free_slots for each in instances)

    def _blockers(self, inference: Inference, full: set[Instance]) -> Collection[Inference] | None:
        """Returns requests of which one must be answered before `inference` can continue.

        None means that it can continue in any case. Instances in `full` are skipped.
        """
        if inference.instance is not None:
            return self._batch_blockers(inference.instance, inference.batch_id)
        owner = queue_owner(inference)
        awaited = None if owner is None else owner.waits_for(inference)
        if awaited is None or awaited.more_follow or inference.deadline_ns:
            return None
        if not awaited.instances:
            return awaited.requests or None
        blockers: list[Inference] = []
        for instance in awaited.instances:
            if instance not in full:
                slot_blockers = self._slot_blockers(instance) or self._holders_calls(instance)
                if not slot_blockers:
                    return None
                blockers += slot_blockers
                full.add(instance)
        return blockers

    def _batch_blockers(self, instance: Instance, batch_id: int) -> Collection[Inference] | None:
        """Returns the same for a running batch."""
        blocking = self._blocking.get(instance, {})
        # A batch before the blocking one has returned from `execute`; other threads answer it.
        blockers = [each for each, first in blocking.items() if first <= batch_id]
        return blockers or self._awaited.get(instance, {}).get(batch_id)

    def _slot_blockers(self, instance: Instance) -> Collection[Inference] | None:
        """Returns the same for the next batch that an instance starts."""
        if blocking := self._blocking.get(instance):
            return blocking
        batches = self._awaited.get(instance)
        if batches is None or instance.free_slots:
            return None
        blockers: list[Inference] = []
        for batch_id in instance.executing_batches:
            if batch_id not in batches:
                return None
            blockers += batches[batch_id]
        return blockers or None  # an instance that runs no batch ends and fails its requests

    def _holders_calls(self, instance: Instance) -> Collection[Inference] | None:
        """Returns the same if an instance has a free slot, but batches that wait hold resources."""
        if self._turns is None:
            return None
        calls: list[Inference] = []
        for holder in self._turns.blockers(instance, self._waiting_count):
            calls += self._blocking.get(holder, ())
            for inferences in self._awaited.get(holder, {}).values():
                calls += inferences
        return calls or None

    def _waiting_count(self, instance: Instance) -> int:
        """Returns how many of an instance's batches wait for calls."""
        return sum(
            bool(self._batch_blockers(instance, batch_id))
            for batch_id in instance.executing_batches
        )

    def __len__(self) -> int:
        awaited = (each for batches in self._awaited.values() for each in batches.values())
        return sum(map(len, self._blocking.values())) + sum(map(len, awaited))

    def __repr__(self) -> str:
        return f"<WaitGraph {len(self)} calls wait>"


def _remove(table: dict[Any, dict[Inference, Any]], key: Any, inference: Inference) -> None:
    """Remove a request from one of the table's sets, and the set if it is empty then."""
    inferences = table.get(key)
    if inferences is not None:
        inferences.pop(inference, None)
        if not inferences:
            del table[key]
