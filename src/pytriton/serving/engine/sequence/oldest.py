# SPDX-License-Identifier: Apache-2.0
"""The oldest strategy: a dynamic batcher joins the requests of several sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.base.model_spec import BatcherSpec
from pytriton.serving.engine.batcher import make_dynamic_batcher
from pytriton.serving.engine.sequence.scheduler import FULL

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytriton.base.model_spec import SequenceSpec
    from pytriton.runtime.executor.base import Instance
    from pytriton.serving.engine.sequence.scheduler import Choice, LiveSequence


class OldestSlots:
    """The candidates of one instance. A batch has at most one request of each, and no empty slot.

    Args:
        instance: The instance that executes the batches.
        spec: The settings: the number of candidates, preferred sizes, delay and order.
        max_batch_size: That of the model.
    """

    def __init__(self, instance: Instance, spec: SequenceSpec, max_batch_size: int) -> None:
        self.instance = instance
        self._max_candidates = spec.max_candidates or max(1, max_batch_size)
        # One batch after the other: their answers come in the order of their requests.
        self._is_exclusive = spec.preserve_ordering
        self._candidates: dict[LiveSequence, None] = {}
        self._batcher = make_dynamic_batcher(
            BatcherSpec(
                preferred_batch_sizes=spec.preferred_batch_sizes,
                max_queue_delay_us=spec.max_queue_delay_us,
            ),
            max_batch_size,
        )

    @property
    def rank(self) -> int:
        """The number of candidates: new ones go to the instance with the fewest."""
        count = len(self._candidates)
        return count if count < self._max_candidates else FULL

    @property
    def sequences(self) -> Iterable[LiveSequence]:
        """The candidates."""
        return self._candidates

    def take(self, sequence: LiveSequence) -> None:
        """Make a sequence a candidate."""
        self._candidates[sequence] = None

    def release(self, sequence: LiveSequence) -> None:
        """Forget a sequence."""
        del self._candidates[sequence]

    def add_ready(self, sequence: LiveSequence) -> None:
        """Give the batcher the first waiting request of a sequence."""
        first = sequence.waiting[0]
        self._batcher.add(first, first.queued_ns)  # its age counts from its arrival

    def remove_ready(self, sequence: LiveSequence) -> None:
        """Undo `add_ready`."""
        self._batcher.remove(sequence.waiting[0])

    def next(self, now_ns: int) -> Choice:
        """Choose as the batcher does."""
        if self._is_exclusive and not self.instance.is_idle:
            return None
        return self._batcher.next(now_ns)

    def __repr__(self) -> str:
        return (
            f"<OldestSlots of {self.instance.name}: {len(self._candidates)} of "
            f"{self._max_candidates} candidates, {len(self._batcher)} ready>"
        )
