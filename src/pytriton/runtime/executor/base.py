# SPDX-License-Identifier: Apache-2.0
"""The interface between the engine and instances: batches go in, events come back.

The thread of a bound callable, the process of a model.py and the fakes of tests all implement it;
the engine does not know which one it uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Collection, Sequence

    from pytriton.base.errors import ServerError
    from pytriton.base.messages import InferResponse
    from pytriton.runtime.executor.columns import Run
    from pytriton.runtime.executor.inference import Inference


class RunningBatch(msgspec.Struct, eq=False):
    """Requests that an instance executes together."""

    id: int
    inferences: list[Inference]
    started_ns: int  # when the engine passed it to the instance
    open_positions: set[int]  # positions of the requests that wait for their final response
    is_traced: bool = False  # at least one of the requests is traced
    is_rescheduled: bool = False  # the model asked to execute at least one of the requests again
    rows: int = 0  # of all its requests, if there are runs
    runs: Sequence[Run] = ()  # those of its requests that are members of chunks
    has_others: bool = True  # at least one of the requests is no member
    is_lost: bool = False  # its instance was lost: its last outcomes are errors that say so
    null_rows: int = 0  # of the answers to null requests, which no client has sent
    answered: Sequence[Run] = ()  # the same, if columns answer them; they have no outcomes then


class Outcome(msgspec.Struct, gc=False):
    """A response to one request of a batch, an error in its place, or an end without tensors."""

    position: int
    response: InferResponse | None = None
    error: ServerError | None = None
    is_final: bool = True
    is_rescheduled: bool = False  # there is no response: the request is to be executed again


class InstanceEvents(Protocol):
    """Callbacks from an instance to its owner, always called on the event loop."""

    def on_outcomes(
        self,
        instance: Instance,
        batch: RunningBatch,
        outcomes: list[Outcome],
        times_ns: tuple[int, int],
    ) -> None:
        """Called with responses; `times_ns` is when the model began and finished computing them.

        The runs in `batch.answered` have their responses, too. It never raises: whatever goes wrong
        is logged and answered, because other outcomes must still be reported.
        """

    def on_unavailable(self, instance: Instance) -> None:
        """Called when the instance accepts no more batches; `on_died` follows with the reason."""

    def on_died(self, instance: Instance, reason: str) -> None:
        """Called when the instance has ended, after its open requests were failed."""


class Instance(Protocol):
    """A place where batches of a model run; all calls and events are on the event loop.

    It promises that each request of a batch ends exactly once, by an outcome that is final, also if
    the instance is lost or stopped; that no event comes from within `execute`, `cancel` or `grant`;
    and that a batch whose `execute` raised was not begun. It sets `instance`, `batch_id` and
    `position` of the inferences, and leaves all else of them, their requests and their sinks alone:
    its owner delivers what it reports. It has no queue: who gives it more batches than it has free
    slots breaks its contract.
    """

    name: str

    @property
    def free_slots(self) -> int:
        """The number of batches that the instance accepts now."""

    @property
    def is_idle(self) -> bool:
        """Whether no batch is executing."""

    @property
    def has_requests(self) -> bool:
        """Whether it has requests that are not answered to their end."""

    @property
    def executing_batches(self) -> Collection[int]:
        """The ids of the batches that occupy slots."""

    def start(self) -> None:
        """Begin to report events."""

    def execute(self, inferences: list[Inference], now_ns: int) -> None:
        """Run requests as one batch; outcomes are reported later as events.

        Raises:
            ServerError: There is no memory for their tensors, or the instance has ended.
        """

    def cancel(self, inference: Inference) -> None:
        """Tell the model that this request was cancelled; its final outcome still comes."""

    def grant(self, inference: Inference, count: int) -> None:
        """Allow a decoupled model to send `count` more responses to this request."""

    def stop(self) -> None:
        """Stop the instance and fail its open requests."""


class WorkerInstance(Instance, Protocol):
    """An instance with a process of its own, which may crash and be replaced."""

    @property
    def node(self) -> str:
        """The node of a cluster that it runs on; "" on this machine."""

    @property
    def pid(self) -> int:
        """Its process."""

    has_ready_check: bool  # the model has an `is_ready` method
    ended: asyncio.Future[None]  # done when the process has ended

    @property
    def concurrency(self) -> int:
        """The number of batches that it executes at the same time."""

    @property
    def is_to_blame(self) -> bool:
        """Whether the instance itself is the cause of its end, rather than another process."""

    async def check_ready(self) -> bool:
        """Returns whether the process is alive and the model, if it has a ready check, is ready."""

    def set_events(self, events: InstanceEvents) -> None:
        """Replace the receiver of events."""
