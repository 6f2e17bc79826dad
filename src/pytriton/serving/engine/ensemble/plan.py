# SPDX-License-Identifier: Apache-2.0
"""What the requests for certain outputs of an ensemble have in common."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pytriton.serving.engine.ensemble.graph import EnsembleGraph, Step, StepInput


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
    # The steps, if each reads what the one before it writes and all tensors pass unchanged; such a
    # plan serves chunks of requests. Otherwise empty.
    chain: tuple[Step, ...]
    live: tuple[frozenset[str], ...]  # the tensors that are needed after each step of the chain
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
    converted = frozenset(
        each
        for index in needed
        for each in graph.steps[index].inputs
        if graph.has_batch_dimension(each.tensor) != graph.steps[index].batches
    )
    output_ranks = {
        name: graph.outputs[name]
        for name in ordered
        if graph.has_batch_dimension(name) != graph.batches
    }
    chain = () if converted or output_ranks else _chain([graph.steps[index] for index in needed])
    return Plan(
        outputs=ordered,
        output_ranks=output_ranks,
        readers=readers,
        shared=frozenset(tensor for tensor in uses if uses.count(tensor) > 1),
        converted=converted,
        depth=max((graph.depth(name) for name in ordered), default=0),
        has_steps=bool(needed),
        chain=chain,
        live=_live_tensors(chain, ordered),
        batches=graph.batches,
    )


def _chain(steps: list[Step]) -> tuple[Step, ...]:
    """Returns the steps in the order in which they run, if that is the only one; else nothing."""
    chain: list[Step] = []
    written: set[str] = set()
    all_written = {tensor for step in steps for tensor in step.outputs.values()}
    while len(chain) < len(steps):
        ready = [
            step
            for step in steps
            if step not in chain
            and all(
                each.tensor in written or each.tensor not in all_written for each in step.inputs
            )
        ]
        if len(ready) != 1 or ready[0].decoupled:
            return ()
        chain += ready
        written.update(ready[0].outputs.values())
    return tuple(chain)


def _live_tensors(chain: tuple[Step, ...], outputs: tuple[str, ...]) -> tuple[frozenset[str], ...]:
    live = frozenset(outputs)
    sets = []
    for step in reversed(chain):
        sets.append(live)
        live |= {each.tensor for each in step.inputs}
    return tuple(reversed(sets))
