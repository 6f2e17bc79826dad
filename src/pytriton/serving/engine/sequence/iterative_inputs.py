# SPDX-License-Identifier: Apache-2.0
"""Control inputs and states of iterative sequences: each request is a sequence of its own.

The request itself keeps its states between its executions, as inputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pytriton.base.messages import InferTensor
from pytriton.serving.engine.sequence.sequence_inputs import SequenceInputs

if TYPE_CHECKING:
    from pytriton.base.messages import InferRequest, InferResponse
    from pytriton.base.model_spec import ModelSpec


class _Key(NamedTuple):
    """A batch key that also tells the shapes of states."""

    request: Any
    states: tuple[tuple[int, ...], ...]


class IterativeInputs:
    """Adds control inputs and states to the requests of one model."""

    def __init__(self, spec: ModelSpec) -> None:
        self._inputs = SequenceInputs(spec)
        self._is_batched = spec.max_batch_size > 0

    def add(self, request: InferRequest) -> None:
        """Add what the first execution of a request gets."""
        first = request.inputs.copy()
        states = self._inputs.new_states()
        self._inputs.add(request, states, is_start=True, is_end=False)
        self._repeat_rows(request, first)
        if states.key:
            request.batch_key = _Key(request.batch_key, states.key)

    def add_again(self, request: InferRequest) -> None:
        """Change the control inputs for a later execution."""
        before = request.inputs.copy()
        request.inputs.update(self._inputs.later_flags)
        self._repeat_rows(request, before)

    def keep(self, request: InferRequest, response: InferResponse) -> None:
        """Move the states in a response to the inputs of the request.

        Raises:
            InternalError: A state has another type or shape than configured.
        """
        states = self._inputs.states_of(request)
        self._inputs.take(states, response, request.rows)
        request.inputs.update(states.tensors)
        if states.key:
            assert isinstance(request.batch_key, _Key)
            request.batch_key = request.batch_key._replace(states=states.key)

    def _repeat_rows(self, request: InferRequest, before: dict[str, InferTensor]) -> None:
        """Repeat what was added for each row of a request, which may have several here."""
        rows = request.rows
        if rows == 1 or not self._is_batched:
            return
        for name, tensor in request.inputs.items():
            if tensor is not before.get(name):
                shape = (rows, *tensor.shape[1:])
                repeated = InferTensor(name, tensor.dtype, shape, bytes(tensor.data) * rows)
                request.inputs[name] = repeated


def make_iterative_inputs(spec: ModelSpec) -> IterativeInputs | None:
    """Returns the inputs that an iterative model's requests get; None if there are none."""
    sequence = spec.sequence
    if sequence is None or not (sequence.controls or sequence.states):
        return None
    return IterativeInputs(spec)
