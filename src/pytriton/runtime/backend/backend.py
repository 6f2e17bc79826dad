# SPDX-License-Identifier: Apache-2.0
"""A backend is five methods: what runs models of one kind, in the process of an instance.

    channel ──► who reads it ──► Backend.run(batch) ──► the user's code
                   │                    │
                   └─► OpenBatches ◄────┴── WorkerBatch: inputs, rows, credit, cancellation,
                       Cancel, Credit       replies, errors ──► outbox ──► channel

Who reads the channel is the `Worker` in a process that runs one model, or a host on a thread of the
user's process; both only know these five methods. A `WorkerBatch` (`batch.py`) is all that a
backend knows of the server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytriton.runtime.backend.batch import WorkerBatch
    from pytriton.runtime.backend.connection import GroupMember
    from pytriton.runtime.backend.flow_control import OpenBatches
    from pytriton.runtime.transport.frames import Initialize, Initialized


class Backend:
    """Runs one instance of a model; all methods but `is_ready` are called by one thread."""

    def complete_config(self, frame: Initialize) -> str:
        """Returns the configuration that the model completed, as JSON; "" if it leaves it.

        No other method but `close` is called then.
        """
        return ""

    def load(self, frame: Initialize, batches: OpenBatches) -> Initialized:
        """Load the model, and say how its responses and errors look: `replies`, `describe`.

        Raises:
            ServerError: The model cannot be loaded, for a reason that clients are told.
            BaseException: Anything that the model raises; it is logged.
        """
        raise NotImplementedError

    def run(self, batch: WorkerBatch) -> None:
        """Call the model with a batch, which is answered now or later, whatever the model does.

        Raises:
            ConnectionError: The connection to the server has ended.
        """
        raise NotImplementedError

    def is_ready(self) -> bool:
        """Ask the model, if it has reported a check; called on a thread of its own."""
        return True

    def close(self) -> None:
        """End the model, if it was loaded."""

    def follow(self, member: GroupMember) -> None:
        """Work in a process of a group that gets no batches, until the model is to be finalized."""
        member.wait_for_end()


class Environment(Protocol):
    """What surrounds the model of a worker.

    Attributes:
        can_infer: Whether it may call other models now.
    """

    can_infer: bool

    def set_batch(self, batch: int, ids: Mapping[int, str] | None = None) -> None:
        """Set the batch that this thread, and tasks that it starts, work for; 0: none."""

    def log_raised(self, error: BaseException, what: str, default_file: str = "") -> None:
        """Write to the log what the model raised, and where, or this file if that is unknown."""
