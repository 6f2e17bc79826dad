# SPDX-License-Identifier: Apache-2.0
"""Whether a call between models can ever be answered, or waits for itself in a circle.

An instance whose only thread waits for a call takes no other batch until the call is answered. The
graph knows who waits for which request; where a request is, queued or running, it reads from the
request. What it cannot know, such as a thread that a model started, counts as something that moves:
a call is refused only where it would certainly wait for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytriton.executor.base import Instance
    from pytriton.messages import InferRequest


class WaitGraph:
    """Which instances wait for which requests."""

    def __init__(self) -> None:
        # With the batch in whose `execute` the instance waits. One request as a rule, more where
        # processes that the model forked call, too.
        self._waits: dict[Instance, dict[InferRequest, int]] = {}

    def add(self, instance: Instance, batch_id: int, request: InferRequest) -> None:
        """An instance waits for a request that the engine has taken."""
        self._waits.setdefault(instance, {})[request] = batch_id

    def discard(self, instance: Instance, request: InferRequest) -> None:
        """It does not wait for that request any more."""
        requests = self._waits.get(instance)
        if requests is None:
            return
        requests.pop(request, None)
        if not requests:
            del self._waits[instance]

    def is_stuck(self, request: InferRequest) -> bool:
        """Whether nothing that `request` waits for can move before it is answered itself."""
        seen = {request}
        pending = [request]
        while pending:
            behind = self._behind(pending.pop())
            if behind is None:
                return False
            fresh = [each for each in behind if each not in seen]
            seen.update(fresh)
            pending += fresh
        return True

    def _behind(self, request: InferRequest) -> list[InferRequest] | None:
        """Requests of which one must be answered before `request` moves; None: it moves anyway."""
        if request.instance is not None:
            waits = self._waits.get(request.instance, {})
            # A batch before the one that waits has left `execute`; others of its threads answer it.
            behind = [each for each, batch_id in waits.items() if batch_id <= request.batch_id]
            return behind or None
        if request.deadline_ns or request.model.missing_instances:
            return None
        behind = []
        for instance in request.model.instances:
            if instance not in self._waits:
                return None
            behind += self._waits[instance]
        return behind

    def __len__(self) -> int:
        return len(self._waits)

    def __repr__(self) -> str:
        return f"<WaitGraph {len(self)} instances wait>"
