# SPDX-License-Identifier: Apache-2.0
"""The run of one request through the steps of an ensemble, without a clock and without I/O.

Tensors are in frames. The first frame has the inputs of the request and what the steps make of
them. Each response of a decoupled step opens a frame of its own, in which the steps after it run
once. The frames behind the last decoupled step have the outputs; they are answered in the order in
which the steps have responded, whatever the order in which they are complete.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pytriton.base.messages import InferTensor
from pytriton.runtime.transport.arena import give_up
from pytriton.runtime.transport.payload import INLINE_TENSOR_BYTES, unshareable

if TYPE_CHECKING:
    from pytriton.serving.engine.ensemble.graph import Plan, Step


class StuckError(Exception):
    """No step can run any more, and an output is missing."""


class Frame:
    """The tensors that exist once for each response of a decoupled step, or for the request."""

    __slots__ = ("children", "depth", "is_closed", "started", "values")

    def __init__(self, depth: int) -> None:
        self.depth = depth
        # By name; None: the client or the model did not give it, and steps run without it.
        self.values: dict[str, InferTensor | None] = {}
        self.started: set[int] = set()  # steps
        self.children: deque[Frame] = deque()  # of its decoupled step, those not answered yet
        self.is_closed = False  # there will be no more of them


class StepCall:
    """One request to the model of a step."""

    __slots__ = ("frame", "inputs", "step")

    def __init__(self, step: Step, frame: Frame, inputs: dict[str, InferTensor]) -> None:
        self.step = step
        self.frame = frame
        self.inputs = inputs


class EnsembleAnswer:
    """A response to the client: its outputs, or None for an end without tensors."""

    __slots__ = ("is_final", "outputs")

    def __init__(self, outputs: list[InferTensor] | None, *, is_final: bool) -> None:
        self.outputs = outputs
        self.is_final = is_final


class EnsembleRun:
    """Decides which steps run next with which inputs, and what the client is told.

    Each call that it returns must be reported by `respond` until it is final.
    """

    __slots__ = ("_first", "_plan", "open_calls")

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._first = Frame(0)
        self.open_calls = 0  # those that have no final response yet

    def start(self, inputs: Mapping[str, InferTensor], names: Iterable[str]) -> list[StepCall]:
        """Begin with the inputs of the request; `names` are those that the ensemble has."""
        return self._add(self._first, {name: inputs.get(name) for name in names})

    def resume(
        self, values: Mapping[str, InferTensor], done: Iterable[Step], names: Iterable[str]
    ) -> list[StepCall]:
        """Begin after some steps, all coupled; `values` are the tensors that are still needed."""
        known: dict[str, InferTensor | None] = dict.fromkeys(names)
        for step in done:
            self._first.started.add(step.index)
            known.update(dict.fromkeys(step.outputs.values()))
        return self._add(self._first, {**known, **values})

    def respond(
        self, call: StepCall, outputs: Iterable[InferTensor] | None, *, is_final: bool
    ) -> list[StepCall]:
        """Take a response to a call; returns the calls to make next.

        `outputs` are those of the model; None: it has ended without a response.
        """
        step, frame = call.step, call.frame
        if is_final:
            self.open_calls -= 1
            if step.decoupled:
                frame.is_closed = True
        if outputs is None:
            return []
        written: dict[str, InferTensor | None] = dict.fromkeys(step.outputs.values())
        for output in outputs:
            tensor = step.outputs.get(output.name)
            if tensor is not None:
                written[tensor] = output
        if step.decoupled:
            child = Frame(frame.depth + 1)
            frame.children.append(child)
            frame = child
        return self._add(frame, written)

    def _add(self, frame: Frame, tensors: Mapping[str, InferTensor | None]) -> list[StepCall]:
        """Add tensors that became known; returns the calls of steps that can run now."""
        values, readers = frame.values, self._plan.readers
        values.update(tensors)
        calls = []
        for tensor in tensors:
            for step in readers.get(tensor, ()):
                if step.index in frame.started:
                    continue
                if all(each.tensor in values for each in step.inputs):
                    frame.started.add(step.index)
                    calls.append(self._call(step, frame))
        self.open_calls += len(calls)
        return calls

    def _call(self, step: Step, frame: Frame) -> StepCall:
        inputs = {}
        plan = self._plan
        for each in step.inputs:
            value = frame.values[each.tensor]
            if value is None:
                continue
            shape, data = value.shape, value.data
            if plan.converted and each in plan.converted:
                shape = _converted(shape, each.rank, batches=step.batches)
            if each.tensor in plan.shared:
                data = unshareable(data)
            else:
                frame.values[each.tensor] = None  # its memory is free after this step
                if len(data) > INLINE_TENSOR_BYTES:
                    give_up(data)
            inputs[each.name] = InferTensor(each.name, value.dtype, shape, data, value.strings)
        return StepCall(step, frame, inputs)

    def take_answers(self) -> list[EnsembleAnswer]:
        """Returns the answers that can be given now; the last of all is final.

        Raises StuckError if all steps have ended and outputs are missing.
        """
        if self.open_calls and not self._plan.depth:
            return []  # without decoupled steps there is one answer, after all steps
        ready: list[list[InferTensor]] = []
        is_complete = self._drain(self._first, ready)
        is_over = self.open_calls == 0
        if is_over and not is_complete:
            raise StuckError
        answers = [EnsembleAnswer(outputs, is_final=False) for outputs in ready]
        if is_over:
            if answers:
                answers[-1].is_final = True
            else:
                answers.append(EnsembleAnswer(None, is_final=True))
        return answers

    def _drain(self, frame: Frame, ready: list[list[InferTensor]]) -> bool:
        """Move the answers of a frame that come next to `ready`; returns whether it has no more."""
        plan = self._plan
        if frame.depth == plan.depth:
            if frame.is_closed or not all(name in frame.values for name in plan.outputs):
                return frame.is_closed
            frame.is_closed = True
            ready.append(self._outputs(frame))
            return True
        while frame.children:
            if not self._drain(frame.children[0], ready):
                return False
            frame.children.popleft()
        return frame.is_closed

    def _outputs(self, frame: Frame) -> list[InferTensor]:
        outputs = []
        plan = self._plan
        for name in plan.outputs:
            value = frame.values[name]
            if value is None:
                continue
            shape = value.shape
            rank = plan.output_ranks.get(name)
            if rank is not None:
                shape = _converted(shape, rank, batches=plan.batches)
            outputs.append(InferTensor(name, value.dtype, shape, value.data))
        frame.values.clear()
        return outputs


def _converted(shape: tuple[int, ...], rank: int, *, batches: bool) -> tuple[int, ...]:
    """Add a batch dimension for a model that has one, or remove one for a model that has none.

    Only a dimension of 1 is removed. A shape that already has the right length stays.
    """
    if batches:
        return (1, *shape) if len(shape) == rank else shape
    return shape[1:] if len(shape) == rank + 1 and shape[0] == 1 else shape
