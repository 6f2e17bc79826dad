# SPDX-License-Identifier: Apache-2.0
"""Whether a model version serves: its state, the instances that are missing, its ready check."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.serving.engine.model_state import TRANSITIONS, UNLOADED, ModelState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from collections.abc import Set as AbstractSet

    from pytriton.runtime.executor.base import Instance
    from pytriton.runtime.executor.inference import Inference
    from pytriton.serving.engine.rate_limiter import Pool
    from pytriton.serving.engine.served_model import InstanceSupervisor
    from pytriton.serving.engine.turns import ModelTurns


def _do_nothing() -> None:
    """Report no change: the model is not registered yet."""


class ModelStatus:
    """The part of a model version that the registry and readiness look at.

    Args:
        supervisor: Replaces instances that died; without one, they are not replaced.
        turns: Says when instances may start batches, by resources.
    """

    def __init__(
        self, supervisor: InstanceSupervisor | None, turns: ModelTurns | None = None
    ) -> None:
        self.on_changed: Callable[[], None] = _do_nothing  # the engine's, once it has the model
        self.state = ModelState.LOADING
        self.reason = ""
        self._missing_instances = 0  # those that died and will be replaced
        self._lost_instances: set[Instance] = set()  # those whose death will be reported
        self._supervisor = supervisor
        self._turns = turns

    def become(self, state: ModelState, reason: str = "") -> None:
        """Change the state; a transition that the table does not allow is a bug."""
        assert state in TRANSITIONS[self.state], f"{self.state} -> {state}"
        self.state = state
        self.reason = reason
        self.on_changed()

    def withdraw(self) -> None:
        """Become unavailable because it is unloaded on purpose."""
        if self.state is ModelState.READY:
            self.become(ModelState.UNLOADING)
        if self.state is not ModelState.UNAVAILABLE:
            self.become(ModelState.UNAVAILABLE, UNLOADED)

    def fail(self, reason: str) -> None:
        """Become unavailable because it cannot serve any more, unless it is so already."""
        if self.state in (ModelState.LOADING, ModelState.READY):
            self.become(ModelState.UNAVAILABLE, reason)

    @property
    def missing_instances(self) -> int:
        """The number of instances that have ended and will be replaced."""
        return self._missing_instances

    @missing_instances.setter
    def missing_instances(self, count: int) -> None:
        self._missing_instances = count
        self.on_changed()

    def lose(self, instance: Instance) -> None:
        """Be no longer ready: an instance ended, though it is not known how."""
        self._lost_instances.add(instance)
        self.on_changed()

    def forget(self, instance: Instance) -> None:
        """An instance that was lost died: it takes no turns, and is missing if it is replaced."""
        self._lost_instances.remove(instance)
        if self._turns is not None:
            self._turns.remove(instance)

    @property
    def is_ready(self) -> bool:
        """Whether it serves with all its instances; it accepts requests with fewer, too."""
        is_short = bool(self.missing_instances or self._lost_instances)
        return self.state is ModelState.READY and not is_short

    @property
    def resource_pools(self) -> AbstractSet[Pool]:
        """The resources of the rate limiter that its instances need."""
        return frozenset() if self._turns is None else self._turns.pools

    def steps_of(self, inference: Inference) -> Collection[Inference]:
        """Returns no steps: instances execute the request."""
        return ()

    @property
    def is_withdrawn(self) -> bool:
        """Whether it was unloaded on purpose, so that readiness does not wait for it."""
        return self.state is ModelState.UNLOADING or self.reason == UNLOADED

    @property
    def has_ready_check(self) -> bool:
        """Whether readiness also depends on `check_ready`."""
        return self._supervisor is not None and self._supervisor.has_ready_check

    async def check_ready(self) -> bool:
        """Returns the result of the model's own readiness check; True if it has none."""
        return self._supervisor is None or await self._supervisor.check_ready()
