# SPDX-License-Identifier: Apache-2.0
"""What the requests for certain outputs of an ensemble have in common."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pytriton.engine.ensemble.graph import EnsembleGraph, Step, StepInput


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps that the requested outputs need, and how tensors pass between them."""

    outputs: tuple[str, ...]  # the requested ones, in the order of answers
    output_ranks: dict[str, int]  # of those that gain or lose a batch dimension
    readers: dict[str, tuple[Step, ...]]  # of each tensor
    # Tensors with several readers. A step may write to an input that it gets by reference, so
    # these are copied.
    shared: frozenset[str]
    # The inputs that gain or lose a batch dimension, because the model that wrote their tensor has
    # one and theirs has none, or the reverse.
    converted: frozenset[StepInput]
    depth: int  # the number of decoupled steps before the outputs
    has_steps: bool
    batches: bool  # whether the ensemble has a batch dimension


def make_plan(graph: EnsembleGraph, outputs: Iterable[str] | None) -> Plan:
    """Make the plan for the requested outputs; None: all."""
    requested = set(graph.outputs if outputs is None else outputs)
    # Triton answers in this order, too, as long as its table of outputs has no collisions.
    ordered = tuple(name for name in reversed(graph.outputs) if name in requested)
    needed = graph.needed_steps(ordered)
    readers = {
        tensor: tuple(graph.steps[index] for index in indices if index in needed)
        for tensor, indices in graph.readers.items()
    }
    uses = [each.tensor for index in needed for each in graph.steps[index].inputs]
    uses += ordered
    return Plan(
        outputs=ordered,
        output_ranks={
            name: graph.outputs[name]
            for name in ordered
            if graph.has_batch_dimension(name) != graph.batches
        },
        readers=readers,
        shared=frozenset(tensor for tensor in uses if uses.count(tensor) > 1),
        converted=frozenset(
            each
            for index in needed
            for each in graph.steps[index].inputs
            if graph.has_batch_dimension(each.tensor) != graph.steps[index].batches
        ),
        depth=max((graph.depth(name) for name in ordered), default=0),
        has_steps=bool(needed),
        batches=graph.batches,
    )
