# SPDX-License-Identifier: Apache-2.0
"""Chooses the strategy of a sequence model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.serving.engine.sequence.direct import DirectSlots
from pytriton.serving.engine.sequence.oldest import OldestSlots
from pytriton.serving.engine.sequence.scheduler import SequenceScheduler
from pytriton.serving.engine.sequence.sequence_inputs import SequenceInputs

if TYPE_CHECKING:
    from pytriton.base.model_spec import ModelSpec
    from pytriton.runtime.executor.base import Instance
    from pytriton.serving.engine.sequence.scheduler import InstanceSlots


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
