# SPDX-License-Identifier: Apache-2.0
"""The strategies of sequence models: direct slots, or a batcher for the oldest requests."""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING

from pytriton.base.model_spec import BatcherSpec, ModelSpec, SequenceSpec
from pytriton.serving.engine.batcher import make_dynamic_batcher
from pytriton.serving.engine.sequence.live_sequence import (
    FULL,
    Choice,
    InstanceSlots,
    LiveSequence,
    SequencePhase,
)
from pytriton.serving.engine.sequence.scheduler import SequenceScheduler
from pytriton.serving.engine.sequence.sequence_inputs import SequenceInputs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytriton.runtime.executor.inference import Inference, Instance


class DirectSlots:
    """As many slots as a batch has rows. A batch goes from slot 0 to the last that is ready.

    Null requests fill the slots between that have no request. A request with another shape than
    the others waits for a later batch, in which it is the oldest.
    If it is exclusive, a batch has to end before the next one begins.
    """

    def __init__(
        self, instance: Instance, spec: SequenceSpec, slot_count: int, *, is_exclusive: bool
    ) -> None:
        self.instance = instance
        self._slot_count = slot_count
        # The configuration has a float of 32 bits: 0.3 of 10 slots are a little more than 3.
        share = spec.minimum_slot_utilization - 1e-6
        self._min_ready = math.ceil(share * slot_count)
        self._delay_ns = 1000 * spec.max_queue_delay_us
        self._is_exclusive = is_exclusive
        self._occupied: dict[int, LiveSequence] = {}
        self._ready: dict[int, LiveSequence] = {}
        self._unused = 0  # no sequence has had this slot or a later one
        self._freed: list[int] = []  # a heap of the free slots before it

    @property
    def rank(self) -> int:
        """The lowest free slot."""
        if self._freed:
            return self._freed[0]
        return self._unused if self._unused < self._slot_count else FULL

    @property
    def sequences(self) -> Iterable[LiveSequence]:
        return self._occupied.values()

    def take(self, sequence: LiveSequence) -> None:
        """Give a sequence the lowest free slot."""
        if self._freed:
            slot = heapq.heappop(self._freed)
        else:
            slot = self._unused
            self._unused += 1
        sequence.slot = slot
        self._occupied[slot] = sequence

    def release(self, sequence: LiveSequence) -> None:
        del self._occupied[sequence.slot]
        heapq.heappush(self._freed, sequence.slot)

    def add_ready(self, sequence: LiveSequence) -> None:
        """Note that the first waiting request of a sequence may be executed."""
        self._ready[sequence.slot] = sequence

    def remove_ready(self, sequence: LiveSequence) -> None:
        """Undo `add_ready`."""
        del self._ready[sequence.slot]

    def next(self, now_ns: int) -> Choice:
        """Choose all slots that are ready, if there are enough of them or the delay is over."""
        ready = self._ready
        if not ready or (self._is_exclusive and not self.instance.is_idle):
            return None
        if len(ready) < self._min_ready and self._delay_ns:
            oldest_ns = min(each.waiting[0].queued_ns for each in ready.values())
            if now_ns < oldest_ns + self._delay_ns:
                return oldest_ns + self._delay_ns
        chosen = {slot: sequence.waiting[0] for slot, sequence in ready.items()}
        if len(chosen) == 1 or _have_one_key(chosen.values()):
            ready.clear()
        else:
            oldest = min(chosen.values(), key=lambda each: each.queued_ns)
            key = oldest.request.batch_key
            chosen = {slot: one for slot, one in chosen.items() if one.request.batch_key == key}
            for slot in chosen:
                del ready[slot]
        return [chosen.get(slot) for slot in range(max(chosen) + 1)]

    def check_integrity(self) -> None:
        taken, free = set(self._occupied), set(self._freed)
        assert len(free) == len(self._freed), f"{self} has a free slot twice"
        assert taken.isdisjoint(free), f"{self} has a slot that is free and occupied"
        assert taken | free == set(range(self._unused)), f"{self} has lost a slot"
        assert self._unused <= self._slot_count, f"{self} has too many slots"
        for slot, sequence in self._occupied.items():
            assert sequence.slot == slot, f"{sequence} is in slot {slot}"
            is_ready = self._ready.get(slot) is sequence
            assert is_ready is (sequence.state is SequencePhase.READY), f"{sequence} is not ready"

    def __repr__(self) -> str:
        return (
            f"<DirectSlots of {self.instance.name}: {len(self._occupied)} of {self._slot_count} "
            f"occupied, {len(self._ready)} ready>"
        )


def _have_one_key(inferences: Iterable[Inference]) -> bool:
    keys = [each.request.batch_key for each in inferences]
    return keys.count(keys[0]) == len(keys)


class OldestSlots:
    """The candidates of one instance; a batch has at most one request of each, no empty slot."""

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
            keeps_order=True,
        )

    @property
    def rank(self) -> int:
        """The number of candidates: new ones go to the instance with the fewest."""
        count = len(self._candidates)
        return count if count < self._max_candidates else FULL

    @property
    def sequences(self) -> Iterable[LiveSequence]:
        return self._candidates

    def take(self, sequence: LiveSequence) -> None:
        """Make a sequence a candidate."""
        self._candidates[sequence] = None

    def release(self, sequence: LiveSequence) -> None:
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

    def check_integrity(self) -> None:
        self._batcher.check_integrity()
        count = len(self._candidates)
        assert count <= self._max_candidates, f"{self} has too many candidates"
        ready = [each for each in self._candidates if each.state is SequencePhase.READY]
        assert len(self._batcher) == len(ready), f"{self} has {len(ready)} ready sequences"

    def __repr__(self) -> str:
        return (
            f"<OldestSlots of {self.instance.name}: {len(self._candidates)} of "
            f"{self._max_candidates} candidates, {len(self._batcher)} ready>"
        )


def make_sequence_scheduler(spec: ModelSpec) -> SequenceScheduler:
    """Returns the scheduler that the configuration of a sequence model asks for."""
    assert spec.sequence is not None, f"model {spec.name} has no sequences"
    settings = spec.sequence

    def direct(instance: Instance) -> InstanceSlots:
        slot_count = max(1, spec.max_batch_size)
        # While a decoupled model answers some slots for long, the others go on.
        return DirectSlots(instance, settings, slot_count, is_exclusive=not spec.decoupled)

    def oldest(instance: Instance) -> InstanceSlots:
        return OldestSlots(instance, settings, spec.max_batch_size)

    make_slots = direct if settings.max_candidates is None else oldest
    return SequenceScheduler(spec, SequenceInputs(spec), make_slots)
