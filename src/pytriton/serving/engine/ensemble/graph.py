# SPDX-License-Identifier: Apache-2.0
"""The steps of an ensemble and the tensors between them, read once from the configurations.

A plan has what the requests for certain outputs have in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pytriton.serving.engine.ensemble.ensemble_rules import version_text


@dataclass(frozen=True, slots=True)
class StepInput:
    """An input of a step's model, and the tensor of the ensemble that it reads."""

    name: str
    tensor: str
    rank: int  # its number of dimensions in the configuration: without a batch dimension


@dataclass(frozen=True, slots=True)
class Step:
    """One step: a model, and the tensors that it reads and writes."""

    index: int
    model_name: str  # by which the engine finds it
    version: str  # as requests name it; empty: the newest
    inputs: tuple[StepInput, ...]  # in the order of the model
    outputs: dict[str, str]  # the tensor that an output of the model writes
    batches: bool  # whether the model has a batch dimension
    decoupled: bool


@dataclass(frozen=True)
class EnsembleGraph:
    """The steps of an ensemble, all checked by `ensemble_rules` and `step_rules`."""

    name: str
    batches: bool
    steps: tuple[Step, ...]
    inputs: frozenset[str]
    outputs: dict[str, int]  # their ranks, in the order of the configuration
    max_inflight: int = 0  # requests of a step at a time, after a decoupled one; 0: any number

    @cached_property
    def readers(self) -> dict[str, tuple[int, ...]]:
        """The steps that read each tensor."""
        readers: dict[str, tuple[int, ...]] = {}
        for step in self.steps:
            for tensor in dict.fromkeys(each.tensor for each in step.inputs):
                readers[tensor] = (*readers.get(tensor, ()), step.index)
        return readers

    @cached_property
    def writers(self) -> dict[str, int]:
        """The step that writes each tensor; inputs of the ensemble have none."""
        return {
            tensor: step.index
            for step in self.steps
            for tensor in step.outputs.values()
            if tensor not in self.inputs
        }

    @cached_property
    def decoupled(self) -> bool:
        """Whether a step may send any number of responses, and so the ensemble."""
        return any(step.decoupled for step in self.steps)

    def needed_steps(self, outputs: Iterable[str]) -> frozenset[int]:
        """Returns the steps without which these outputs cannot be written."""
        needed: set[int] = set()
        pending = list(outputs)
        while pending:
            index = self.writers.get(pending.pop())
            if index is not None and index not in needed:
                needed.add(index)
                pending += [each.tensor for each in self.steps[index].inputs]
        return frozenset(needed)

    def has_batch_dimension(self, tensor: str) -> bool:
        """Returns whether the first dimension of a tensor is a batch dimension."""
        index = self.writers.get(tensor)
        return self.batches if index is None else self.steps[index].batches

    def depth(self, tensor: str) -> int:
        """Returns how many decoupled steps a tensor depends on, one after the other."""
        index = self.writers.get(tensor)
        if index is None:
            return 0
        step = self.steps[index]  # all its inputs have the same depth
        return self.depth(step.inputs[0].tensor) + step.decoupled


def make_graph(
    config: Any, models: Mapping[str, Any], identifiers: Mapping[str, str] | None = None
) -> EnsembleGraph:
    """Read the graph of an ensemble.

    `identifiers` are the names by which the engine finds the models, where these differ.
    """
    scheduling = config.ensemble_scheduling
    return EnsembleGraph(
        name=config.name,
        batches=config.max_batch_size > 0,
        steps=tuple(
            _step(index, step, models[step.model_name], identifiers or {})
            for index, step in enumerate(scheduling.step)
        ),
        inputs=frozenset(tensor.name for tensor in config.input),
        outputs={tensor.name: len(tensor.dims) for tensor in config.output},
        max_inflight=scheduling.max_inflight_requests,
    )


def _step(index: int, step: Any, model: Any, identifiers: Mapping[str, str]) -> Step:
    return Step(
        index=index,
        model_name=identifiers.get(step.model_name, step.model_name),
        version=version_text(step.model_version),
        inputs=tuple(
            StepInput(tensor.name, step.input_map[tensor.name], len(tensor.dims))
            for tensor in model.input
            if tensor.name in step.input_map
        ),
        outputs=dict(step.output_map),
        batches=model.max_batch_size > 0,
        decoupled=model.model_transaction_policy.decoupled,
    )


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
