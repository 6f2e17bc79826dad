# SPDX-License-Identifier: Apache-2.0
"""The sequences that wait for a slot, in order, with the timeouts of their requests."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from pytriton.serving.engine.batcher import DeadlineHeap

if TYPE_CHECKING:
    from pytriton.runtime.executor.inference import Inference
    from pytriton.serving.engine.sequence.live_sequence import LiveSequence


class Backlog:
    """Sequences in the order of their arrival. A request may limit how long its sequence waits."""

    def __init__(self) -> None:
        # Each with the tokens of its deadlines.
        self._sequences: OrderedDict[LiveSequence, list[int]] = OrderedDict()
        self._deadlines = DeadlineHeap()

    def append(self, sequence: LiveSequence) -> None:
        """Add a sequence as the last one."""
        self._sequences[sequence] = []

    def limit(self, sequence: LiveSequence, inference: Inference, now_ns: int) -> None:
        """Apply the timeout of a request that was added to a sequence in this backlog."""
        inference.deadline_ns = now_ns + 1000 * inference.request.timeout_us
        self._sequences[sequence].append(self._deadlines.add(inference))

    def pop_first(self) -> LiveSequence:
        """Remove and return the sequence that has waited for longest."""
        sequence = next(iter(self._sequences))
        self.remove(sequence)
        return sequence

    def remove(self, sequence: LiveSequence) -> None:
        """Remove a sequence; the timeouts of its requests do not count any more."""
        for token in self._sequences.pop(sequence):
            self._deadlines.discard(token)
        for inference in sequence.waiting:
            inference.deadline_ns = 0

    def pop_expired(self, now_ns: int) -> list[Inference]:
        """Returns the requests whose timeout is over; the caller removes their sequences."""
        return self._deadlines.pop_expired(now_ns)

    def earliest_ns(self) -> int:
        """Returns the time at which the next timeout is over; 0 if there is none."""
        return self._deadlines.earliest_ns()

    def __len__(self) -> int:
        return len(self._sequences)

    def __repr__(self) -> str:
        return f"<Backlog {len(self)} sequences, {len(self._deadlines)} timeouts>"
