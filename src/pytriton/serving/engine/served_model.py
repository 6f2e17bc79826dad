# SPDX-License-Identifier: Apache-2.0
"""The interface of a model version to the engine and the front ends.

`pytriton.serving.engine.model.Model` implements it with a queue and instances,
`serving.engine.ensemble.ensemble_model.EnsembleModel` with the models of its steps. A model in
another server would be another implementation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pytriton.runtime.executor.inference import InferenceOwner

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from collections.abc import Set as AbstractSet

    from pytriton.base.model_spec import ModelSpec
    from pytriton.runtime.executor.base import Instance
    from pytriton.runtime.executor.inference import Inference
    from pytriton.serving.engine.model_state import ModelState
    from pytriton.serving.engine.rate_limiter import Pool
    from pytriton.serving.engine.stats import ModelStatistics


class ServedModel(InferenceOwner, Protocol):
    """One version of a model."""

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
    def statistics(self) -> ModelStatistics:
        """Counts and durations since it was loaded."""

    # Lifecycle

    on_changed: Callable[[], None]  # called after its state or readiness has changed

    @property
    def state(self) -> ModelState:
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
    def is_busy(self) -> bool:
        """Whether requests are queued or running."""

    @property
    def running_count(self) -> int:
        """The number of requests that are being executed."""

    @property
    def resource_pools(self) -> AbstractSet[Pool]:
        """The resources of the rate limiter that its instances need; none without a limiter."""

    @property
    def has_ready_check(self) -> bool:
        """Whether readiness also depends on `check_ready`."""

    async def check_ready(self) -> bool:
        """Returns the result of the model's own readiness check."""

    def become(self, state: ModelState, reason: str = "") -> None:
        """Change the state."""

    async def drain(self, timeout_s: float | None = None) -> None:
        """Wait until no request is queued or running, at most for `timeout_s`."""

    def stop(self) -> None:
        """Stop it; waiting requests get an error."""

    # Requests

    def body_memory(self, size: int, header_bytes: int) -> memoryview | None:
        """Allocate memory for a request body, and the header before its tensors.

        Instances can read this memory. Returns None if no block is free, or if the model has no
        such memory.
        """

    def submit(self, inference: Inference, now_ns: int, *, is_alone: bool = False) -> None:
        """Accept a validated request; raises ServerError if it is refused.

        Args:
            inference: The request.
            now_ns: The time.
            is_alone: Whether no more requests come in this iteration of the event loop.
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
        members are made.

        Args:
            inferences: All members of the chunk, in the order of their indices.
            now_ns: The time.
            is_complete: Whether the caller has gathered what came in this iteration of the event
                loop. A free instance then starts at once, not at the end of the iteration.
        """

    def is_start_due(self, count: int) -> bool:
        """Returns whether a batch would start at once if `count` more requests were submitted.

        A caller that gathers requests into a chunk should then submit it.
        """


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
