# SPDX-License-Identifier: Apache-2.0
"""The interface between a model and its scheduler: events, decisions and refusals.

A scheduler only decides: it has no clock, no timers and no I/O. `Model` reports events to it and
asks for decisions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

import msgspec

from pytriton.base.errors import ServerError
from pytriton.runtime.executor.inference import Inference, Instance, Outcome, RunningBatch
from pytriton.serving.engine.fairness import FairShares
from pytriton.serving.engine.stats import FailureReason

# The error of a request that asks for another execution of a model that is not iterative.
NOT_ITERATIVE = (
    "Failed to release request: Request is released with "
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle such a "
    "flag."
)


class Dispatch(msgspec.Struct, gc=False):
    """Requests that left the queue, and the instance that executes them."""

    instance: Instance
    inferences: list[Inference]
    null_count: int = 0  # how many of them only fill slots of a batch: no client has sent them


# The requests to run now, or the time in ns at which to call `next` again, or None: call it after
# the next change.
Decision = Dispatch | int | None


class QueueRefusal(msgspec.Struct, gc=False):
    """A request that left the queue without an execution, and the error that it is answered."""

    inference: Inference
    error: ServerError
    reason: FailureReason


def refuse_each(
    inferences: Iterable[Inference], error: ServerError, reason: FailureReason
) -> list[QueueRefusal]:
    """Returns refusals of requests, with the same error for all."""
    return [QueueRefusal(inference, error, reason) for inference in inferences]


class Scheduler(Protocol):
    """The queue of a model, and the rule by which its requests go to instances."""

    def add_instance(self, instance: Instance) -> None:
        """Begin to use an instance."""

    def retire_instance(self, instance: Instance) -> None:
        """Give an instance nothing new; it may be among the free ones while it `holds` anything."""

    def holds(self, instance: Instance) -> bool:
        """Returns whether requests may come that no other instance can execute."""

    def remove_instance(self, instance: Instance) -> list[QueueRefusal]:
        """Forget an instance that ends; returns the waiting requests that no other may execute.

        It may be called twice for an instance. The requests that it executes are reported to
        `finished` before or after this.
        """

    def add(self, inference: Inference, now_ns: int) -> None:
        """Queue a request and set its `queued_ns` and `deadline_ns`.

        Raises UnavailableError if the queue is full, and InvalidArgumentError if the request does
        not belong to a sequence that is known.
        """

    def add_all(self, inferences: Sequence[Inference], now_ns: int) -> dict[Inference, ServerError]:
        """Queue requests like `add`; returns those that were refused, each with its error."""

    def share(self, shares: FairShares | None) -> None:
        """Let principals share the queue from now on; None: the order of arrival decides."""

    def remove(self, inference: Inference) -> Sequence[Inference]:
        """Remove a cancelled request and those that cannot be executed without it.

        Returns all removed requests; none if the request is not in the queue.
        """

    def expire(self, now_ns: int) -> list[QueueRefusal]:
        """Remove the requests that have waited for too long; the caller rejects them."""

    def next(self, now_ns: int, free: Collection[Instance]) -> Decision:
        """Decide what happens now. The caller repeats the call until nothing is dispatched.

        `free` has the instances that can take a batch, at least one. The one to prefer is first:
        that which had no batch for longest.
        """

    def finished(self, batch: RunningBatch, outcomes: list[Outcome], now_ns: int) -> list[Outcome]:
        """Handle outcomes of a batch; returns those to pass on to the clients.

        If the model asked for other executions, the requests of the others were queued again.
        Otherwise the others are answers to requests that no client has sent.
        """

    def next_deadline_ns(self) -> int:
        """Returns the time at which to call `expire`; 0: never."""

    def take_all(self) -> list[Inference]:
        """Empty the queue of a model that will not run again; the caller answers the requests."""

    def check_integrity(self) -> None:
        """Check the invariants, for tests: raises AssertionError with what is broken.

        Each waiting request is in one place, and all counts and deadlines are those of the waiting
        requests. It takes time for each of them, and changes nothing.
        """

    def __len__(self) -> int:
        """Returns the number of waiting requests."""
