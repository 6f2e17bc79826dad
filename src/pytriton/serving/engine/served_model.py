# SPDX-License-Identifier: Apache-2.0
"""The interfaces of a model version: to its callers, and to those that load, watch and stop it.

`pytriton.serving.engine.model.Model` implements both with a queue and instances, and
`serving.engine.ensemble.ensemble_model.EnsembleModel` with the models of its steps. A front end in
another process has `RemoteModel`, which only takes requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

import msgspec

from pytriton.runtime.executor.inference import Inference, InferenceOwner

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from collections.abc import Set as AbstractSet

    from pytriton.base.model_spec import ModelSpec
    from pytriton.runtime.executor.inference import Instance
    from pytriton.serving.engine.costs import ModelCosts
    from pytriton.serving.engine.hidden_exceptions import HiddenExceptions
    from pytriton.serving.engine.model_state import VersionState
    from pytriton.serving.engine.quotas import ModelQuotas
    from pytriton.serving.engine.rate_limiter import Pool
    from pytriton.serving.engine.stats import ModelStatistics


class ServedModel(InferenceOwner, Protocol):
    """One version of a model, as its callers see it: they read what it is, and submit requests.

    No member loads, changes or stops the model.
    """

    on_changed: Callable[[], None]  # called after its state or readiness has changed

    @property
    def quotas(self) -> ModelQuotas | None:
        """What principals may ask of it; None: there are no limits, or another process has them.

        Those who submit requests of clients ask it first.
        """

    @property
    def spec(self) -> ModelSpec:
        """The specification by which requests are validated."""

    @property
    def is_bound(self) -> bool:
        """True for a model that a process has bound, False for one of a repository."""

    @property
    def config_json(self) -> bytes:
        """Its configuration as clients read it."""

    @property
    def state(self) -> VersionState:
        """Its state between loading and unloading."""

    @property
    def reason(self) -> str:
        """Why it is in this state; empty if there is no special reason."""

    @property
    def is_ready(self) -> bool:
        """Whether it serves with all its instances."""

    @property
    def is_withdrawn(self) -> bool:
        """Whether it was unloaded on purpose, so that readiness does not wait for it."""

    @property
    def has_ready_check(self) -> bool:
        """Whether readiness also depends on `check_ready`."""

    async def check_ready(self) -> bool:
        """Returns the result of the model's own readiness check."""

    def body_memory(self, size: int, header_bytes: int) -> memoryview | None:
        """Allocate memory for a request body, and the header before its tensors.

        Instances can read this memory. Returns None if no block is free, or if the model has no
        such memory.
        """

    def submit(self, inference: Inference, now_ns: int, *, is_alone: bool = False) -> None:
        """Accept a validated request; raises ServerError if it is refused.

        `is_alone` says that no more requests come in this iteration of the event loop.
        """

    @property
    def takes_columns(self) -> bool:
        """Whether `submit_chunk` may be used; not for decoupled and iterative models.

        The members of a chunk for a model with sequences have a request record each.
        """

    @property
    def prefers_columns(self) -> bool:
        """Whether a single small request should be a chunk, too, because that costs less."""

    def submit_chunk(
        self, inferences: Sequence[Inference], now_ns: int, *, is_complete: bool = False
    ) -> None:
        """Accept the members of a chunk.

        The chunk's sink hears of refusals and of cached responses before this returns.

        The requests were validated, and are not traced. `runtime.executor.columns` says how such
        members are made. `inferences` are all members of the chunk that were not refused before,
        in the order of their indices.
        `is_complete` says that the caller has gathered what came in this iteration of the event
        loop: a free instance then starts at once, not at the end of the iteration.
        """

    def is_start_due(self, count: int) -> bool:
        """Returns whether a batch would start at once if `count` more requests were submitted.

        A caller that gathers requests into a chunk should then submit it.
        """


class ManagedModel(ServedModel, Protocol):
    """One version of a model in the engine's process: its lifecycle, its load, its statistics."""

    costs: ModelCosts | None  # those of its statistics; None: they are not counted
    gave_up_requests: bool  # whether it was stopped before its requests were finished
    hidden: HiddenExceptions | None  # what clients get of its exceptions; None: their texts

    @property
    def statistics(self) -> ModelStatistics:
        """Counts and durations since it was loaded."""

    @property
    def instances(self) -> Sequence[Instance]:
        """The instances that execute batches; an ensemble has none."""

    @property
    def missing_instances(self) -> int:
        """The number of instances that have ended and will be replaced."""

    @property
    def is_busy(self) -> bool:
        """Whether requests are queued or running."""

    @property
    def running_count(self) -> int:
        """The number of requests that are being executed."""

    @property
    def resource_pools(self) -> AbstractSet[Pool]:
        """The resources of the rate limiter that its instances need; none without a limiter."""

    def set_quotas(self, quotas: ModelQuotas | None) -> None:
        """Limit principals from now on, and share what they have to wait for by their weights."""

    def become(self, state: VersionState, reason: str = "") -> None:
        """Change the state."""

    async def drain(self, timeout_s: float | None = None) -> None:
        """Wait until no request is queued or running, at most for `timeout_s`."""

    def stop(self) -> None:
        """Stop it; waiting requests get an error."""


class WaitsFor(msgspec.Struct, gc=False):
    """The reasons why a request is not executed yet: instances, or requests of an ensemble."""

    instances: Sequence[Instance] = ()  # a free slot of one of these
    more_follow: bool = False  # instances that are being replaced
    requests: Collection[Inference] = ()  # answers to these requests, the steps of an ensemble


class QueueOwner(InferenceOwner, Protocol):
    """An owner of requests in the engine's process: it knows what each of them waits for.

    Calls between models, which could wait for one another in a cycle, need this.
    """

    def waits_for(self, inference: Inference) -> WaitsFor | None:
        """Returns the reasons why a request waits; None if it is unknown or waits for nothing."""

    def call_when_dispatched(self, inference: Inference, callback: Callable[[], None]) -> None:
        """Call back once the next model or instance has the request; never if it ends before."""


def queue_owner(inference: Inference) -> QueueOwner | None:
    """Returns the owner of a request of the engine's process; None if none has accepted it."""
    return cast("QueueOwner | None", inference.owner)


class InstanceSupervisor(Protocol):
    """Starts a model's instances, and may restart them."""

    @property
    def has_ready_check(self) -> bool:
        """Whether the model has its own readiness check."""

    async def check_ready(self) -> bool:
        """Returns the result of that check."""

    def replaces(self, instance: Instance, reason: str) -> bool:
        """Returns whether an instance that died will be replaced."""

    def on_retired(self, instance: Instance) -> None:
        """Called when an instance has ended that was to be ended."""
