# SPDX-License-Identifier: Apache-2.0
"""The interface of the strategies: the slots of one instance, and which of them run together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytriton.runtime.executor.base import Instance
    from pytriton.runtime.executor.inference import Inference
    from pytriton.serving.engine.sequence.scheduler import LiveSequence


# The requests of a batch (None: an empty slot, which a null request fills), or the time in ns at
# which to ask again, or None: ask after the next change.
Choice = list["Inference"] | list["Inference | None"] | int | None

FULL = -1


class InstanceSlots(Protocol):
    """The sequences of one instance. Each occupies a slot; the first request of some is ready."""

    instance: Instance

    @property
    def rank(self) -> int:
        """How good its next free slot is, 0 for the best; `FULL` if there is none."""

    @property
    def sequences(self) -> Iterable[LiveSequence]:
        """The sequences that occupy slots."""

    def take(self, sequence: LiveSequence) -> None:
        """Give a sequence a slot."""

    def release(self, sequence: LiveSequence) -> None:
        """Free the slot of a sequence, of which no request is ready."""

    def add_ready(self, sequence: LiveSequence) -> None:
        """Note that the first waiting request of a sequence may be executed."""

    def remove_ready(self, sequence: LiveSequence) -> None:
        """Undo `add_ready`; the request is still the first one that waits."""

    def next(self, now_ns: int) -> Choice:
        """Decide what the instance, which can take a batch, executes now.

        The chosen requests are not ready any more.
        """


def best_slots(all_slots: Iterable[InstanceSlots]) -> InstanceSlots | None:
    """Returns the slots with the best free one; None if all are occupied."""
    best = None
    best_rank = FULL
    for slots in all_slots:
        rank = slots.rank
        if rank != FULL and (best is None or rank < best_rank):
            best, best_rank = slots, rank
    return best
