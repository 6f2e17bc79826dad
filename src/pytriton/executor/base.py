# SPDX-License-Identifier: Apache-2.0
"""What the engine knows of an instance: it executes batches, and events come back.

A bound callable's thread, a model's own process or a test's fake all look like this; the engine
never knows which.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Collection

    from pytriton.errors import ServerError
    from pytriton.executor.inference import Inference
    from pytriton.messages import InferResponse


class RunningBatch(msgspec.Struct, eq=False):
    """Requests that an instance executes together."""

    id: int
    inferences: list[Inference]
    started_ns: int  # when the engine handed it over
    open_positions: set[int]  # requests that wait for their final response
    is_traced: bool = False  # at least one of the requests is
    is_rescheduled: bool = False  # its model asked to execute at least one of them once more


class Outcome(msgspec.Struct, gc=False):
    """A response to one request of a batch, or the error or bare end in its place."""

    position: int
    response: InferResponse | None = None
    error: ServerError | None = None
    is_final: bool = True
    is_rescheduled: bool = False  # no answer: the request is to be executed once more


class InstanceEvents(Protocol):
    """What an instance tells its owner, always on the event loop."""

    def on_outcomes(
        self,
        instance: Instance,
        batch: RunningBatch,
        outcomes: list[Outcome],
        times_ns: tuple[int, int],
    ) -> None:
        """Responses came; `times_ns` is when the model began and ended to compute them."""

    def on_unavailable(self, instance: Instance) -> None:
        """The instance takes no more batches. `on_died` follows, when the reason is known."""

    def on_died(self, instance: Instance, reason: str) -> None:
        """The instance is gone; its open requests were failed before."""


class Instance(Protocol):
    """Something that executes batches."""

    name: str

    @property
    def free_slots(self) -> int:
        """How many more batches it takes now."""

    @property
    def is_idle(self) -> bool:
        """Whether it runs nothing."""

    @property
    def executing_batches(self) -> Collection[int]:
        """The ids of the batches that take its slots."""

    def start(self) -> None:
        """Begin to report events."""

    def execute(self, inferences: list[Inference], now_ns: int) -> None:
        """Run requests together; outcomes come later as events."""

    def cancel(self, inference: Inference) -> None:
        """Tell the model that nobody waits for this request any more."""

    def grant(self, inference: Inference, count: int) -> None:
        """Let a decoupled model send so many more responses to this request."""

    def stop(self) -> None:
        """End it; open requests are failed."""


class WorkerInstance(Instance, Protocol):
    """An instance with a process of its own, which may crash and be replaced."""

    has_ready_check: bool  # the model has a word of its own on whether it is ready
    ended: asyncio.Future[None]  # done when the process is gone

    @property
    def is_to_blame(self) -> bool:
        """Whether its end, if it ended, says something about its model."""

    async def check_ready(self) -> bool:
        """Whether it lives and its model, where it has a word to say, is ready."""

    def hand_over(self, events: InstanceEvents) -> None:
        """Report to somebody else from now on."""
