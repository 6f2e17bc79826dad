# SPDX-License-Identifier: Apache-2.0
"""What the engine and the front ends know of a model version, whatever answers its requests.

`pytriton.engine.model.Model` is one, with a queue and instances. An ensemble, or a model that lives
in another server, would be another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pytriton.executor.inference import InferenceOwner

if TYPE_CHECKING:
    from pytriton.engine.model_spec import ModelSpec
    from pytriton.engine.model_state import ModelState
    from pytriton.engine.stats import ModelStatistics
    from pytriton.executor.base import Instance
    from pytriton.executor.inference import Inference


class ServedModel(InferenceOwner, Protocol):
    """One version of a model."""

    @property
    def spec(self) -> ModelSpec:
        """What requests are checked against."""

    @property
    def is_bound(self) -> bool:
        """Whether a process has bound it; otherwise a repository has it."""

    @property
    def config_json(self) -> bytes:
        """Its configuration as clients read it."""

    @property
    def statistics(self) -> ModelStatistics:
        """What it has done so far."""

    # Life

    @property
    def state(self) -> ModelState:
        """Where it stands between loading and unloading."""

    @property
    def reason(self) -> str:
        """Why it is in this state, where there is something to say."""

    @property
    def is_ready(self) -> bool:
        """Whether it serves with all it has."""

    @property
    def is_withdrawn(self) -> bool:
        """Whether it was taken out of service on purpose, so that nobody waits for it."""

    @property
    def is_busy(self) -> bool:
        """Whether requests wait or run."""

    @property
    def running_count(self) -> int:
        """How many requests are being executed."""

    @property
    def has_ready_check(self) -> bool:
        """Whether `check_ready` has to be asked whether it is ready."""

    async def check_ready(self) -> bool:
        """The model's own word on whether it is ready."""

    def become(self, state: ModelState, reason: str = "") -> None:
        """Change the state."""

    async def drain(self, timeout_s: float | None = None) -> None:
        """Wait until no request waits or runs, or until the time is over."""

    def stop(self) -> None:
        """End it; what still waits is answered."""

    # Requests

    def body_memory(self, size: int, header_bytes: int) -> memoryview | None:
        """Memory that instances can read, for a request body and the header before its tensors.

        None if there is none to be had, or if the model has no such memory.
        """

    def submit(self, inference: Inference, now_ns: int) -> None:
        """Take a validated request; ServerError where it cannot be taken."""


class InstanceSupervisor(Protocol):
    """Who starts a model's instances, and may start them again."""

    @property
    def has_ready_check(self) -> bool:
        """Whether the model has a word of its own on whether it is ready."""

    async def check_ready(self) -> bool:
        """That word."""

    def replaces(self, instance: Instance, reason: str) -> bool:
        """Whether another instance comes in the place of one that is gone."""
