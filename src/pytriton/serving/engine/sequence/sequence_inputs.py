# SPDX-License-Identifier: Apache-2.0
"""The inputs that the server adds to the requests of sequence models: control inputs and states.

What a request leaves in a state's output is the state's input of the next request of its sequence.
It stays in the memory where the instance has written it. In an iterative model each request is a
sequence of its own, and keeps its states between its executions as inputs.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pytriton.base import dtypes
from pytriton.base.errors import InternalError
from pytriton.base.messages import InferRequest, InferResponse, InferTensor
from pytriton.base.model_spec import ControlSpec, ModelSpec, SequenceControlKind, StateSpec
from pytriton.runtime.transport.payload import unshareable
from pytriton.serving.engine.validation import fits

if TYPE_CHECKING:
    from pytriton.base.dtypes import DataType

# Smaller states are copied: they would keep the message alive that they came in.
_SMALL_STATE_BYTES = 32 << 10


class SequenceStates:
    """The state of a sequence that the server keeps between its requests.

    Attributes:
        tensors: The states, by input.
        key: The shapes of those states whose shapes vary. Requests share a batch only if theirs
            are equal.
        wanted: The outputs that the client of the last request wants; None for all.
        correlation_id: The input with the id of the sequence, if the model has one.
    """

    __slots__ = ("correlation_id", "key", "tensors", "wanted")

    def __init__(self, tensors: dict[str, InferTensor], key: tuple[tuple[int, ...], ...]) -> None:
        self.tensors = tensors
        self.key = key
        self.wanted: tuple[str, ...] | None = None
        self.correlation_id: InferTensor | None = None


class SequenceInputs:
    """Adds control inputs and states to the requests of one model.

    Attributes:
        names: The inputs that it adds, in the order in which instances get them.
        later_flags: The flags of a request that is neither the first nor the last.
    """

    def __init__(self, spec: ModelSpec) -> None:
        assert spec.sequence is not None, f"model {spec.name} has no sequences"
        self.names = added_input_names(spec)
        self._name = spec.name
        self._is_batched = spec.max_batch_size > 0
        self._outputs = spec.outputs
        sequence = spec.sequence
        self._shape = (1, 1) if self._is_batched else (1,)  # of a control input
        # By START + 2 * END, as the flags of a request have them.
        self._flags = [
            self._flag_tensors(sequence.controls, flags, is_ready=True) for flags in range(4)
        ]
        # What changes after the first request; its id stays.
        self.later_flags = {
            control.name: self._flags[0][control.name]
            for control in sequence.controls
            if control.kind is not SequenceControlKind.CORRID
        }
        self._null_flags = self._flag_tensors(sequence.controls, 0, is_ready=False)
        self._correlation = next(
            (each for each in sequence.controls if each.kind is SequenceControlKind.CORRID), None
        )
        self._states = {state.output_name: state for state in sequence.states}
        self._state_shapes = {
            state.output_name: (1, *state.dims) if self._is_batched else state.dims
            for state in sequence.states
        }
        self._initial = {state.input_name: self._initial_tensor(state) for state in sequence.states}
        self._varying = tuple(state.input_name for state in sequence.states if -1 in state.dims)
        self._initial_key = tuple(self._initial[name].shape for name in self._varying)
        self._null_inputs: dict[str, InferTensor] = {}  # of the last null request

    def new_states(self) -> SequenceStates:
        return SequenceStates(self._initial.copy(), self._initial_key)

    def states_of(self, request: InferRequest) -> SequenceStates:
        """Returns the states that were added to a request."""
        inputs = request.inputs
        states = SequenceStates(
            {name: inputs[name] for name in self._initial},
            tuple(inputs[name].shape for name in self._varying),
        )
        states.wanted = request.outputs
        return states

    def add(
        self, request: InferRequest, states: SequenceStates, *, is_start: bool, is_end: bool
    ) -> None:
        """Add control inputs and states to a request that will run now.

        With `is_start`, the states of the sequence are set back to the initial ones.
        """
        inputs = request.inputs
        inputs.update(self._flags[is_start + 2 * is_end])
        control = self._correlation
        if control is not None:
            tensor = states.correlation_id
            if tensor is None or is_start:
                tensor = self._correlation_tensor(control, request.fields.correlation_id)
                states.correlation_id = tensor
            inputs[control.name] = tensor
        if self._initial:
            if is_start:
                states.tensors = self._initial.copy()
                states.key = self._initial_key
            inputs.update(states.tensors)
            states.wanted = request.outputs

    def null_request(self, like: InferRequest) -> InferRequest:
        """Returns the request for a slot of a batch that has none, with zeros in all inputs.

        `like` is a request of the same batch, to which `add` has added the inputs.
        """
        before = self._null_inputs
        inputs = {}
        for name, tensor in like.inputs.items():
            zeros = before.get(name)
            if zeros is None or zeros.shape != tensor.shape:
                zeros = _zeros(name, tensor.dtype, tensor.shape)
            inputs[name] = zeros
        self._null_inputs = inputs.copy()
        inputs.update(self._null_flags)
        return InferRequest(
            like.model_name,
            inputs,
            like.model_version,
            outputs=like.outputs,
            rows=like.rows,
            batch_key=like.batch_key,
        )

    def take(self, states: SequenceStates, response: InferResponse, rows: int = 1) -> None:
        """Move the states in a response to those of its sequence, for the next request.

        The response keeps the outputs that its client wants. A state that it does not have stays as
        it was. Raises InternalError if a state has another type or shape than configured; then all
        states of the sequence stay as they were.
        """
        if not self._states:
            return
        wanted = states.wanted
        passed_on = []
        taken = {}
        for output in response.outputs:
            state = self._states.get(output.name)
            if state is not None:
                taken[state.input_name] = self._state_tensor(state, output, rows)
                if not self._is_wanted(output.name, wanted):
                    continue
                # The reader of the output must not write to the memory of the state.
                output.data = unshareable(output.data)
            passed_on.append(output)
        states.tensors.update(taken)
        if self._varying:
            states.key = tuple(states.tensors[name].shape for name in self._varying)
        response.outputs = passed_on

    def _is_wanted(self, name: str, wanted: tuple[str, ...] | None) -> bool:
        return name in self._outputs and (wanted is None or name in wanted)

    def _state_tensor(self, state: StateSpec, output: InferTensor, rows: int) -> InferTensor:
        shape = output.shape
        expected = self._state_shapes[state.output_name]
        if rows != 1 and self._is_batched:
            expected = (rows, *state.dims)
        if output.dtype is not state.dtype:
            raise InternalError(
                f"state '{state.output_name}' of model '{self._name}' has data-type "
                f"'{output.dtype.name}', expected '{state.dtype.name}'"
            )
        if shape != expected and not fits(shape, expected):
            raise InternalError(
                f"state '{state.output_name}' of model '{self._name}' has shape "
                f"{list(shape)}, expected {list(expected)}"
            )
        data = output.data
        if len(data) <= _SMALL_STATE_BYTES:
            data = bytes(data)
        return InferTensor(state.input_name, state.dtype, shape, data)

    def _initial_tensor(self, state: StateSpec) -> InferTensor:
        shape = (1, *state.initial_dims) if self._is_batched else state.initial_dims
        tensor = _zeros(state.input_name, state.dtype, shape)
        if state.initial is not None:
            tensor.data = state.initial
        return tensor

    def _flag_tensors(
        self, controls: tuple[ControlSpec, ...], flags: int, *, is_ready: bool
    ) -> dict[str, InferTensor]:
        """Returns all control inputs but the correlation id, which has a value of zero or ""."""
        values = {
            SequenceControlKind.START: flags & 1,
            SequenceControlKind.END: flags >> 1,
            SequenceControlKind.READY: is_ready,
        }
        tensors = {}
        for control in controls:
            if control.kind is SequenceControlKind.CORRID:
                tensors[control.name] = _zeros(control.name, control.dtype, self._shape)
                continue
            value = control.false_true[values[control.kind]]
            data = np.array(value, control.dtype.numpy).tobytes()
            tensors[control.name] = InferTensor(control.name, control.dtype, self._shape, data)
        return tensors

    def _correlation_tensor(self, control: ControlSpec, correlation_id: int | str) -> InferTensor:
        dtype = control.dtype
        if dtype is dtypes.BYTES:  # a number is one that the server has generated
            data = dtypes.encode_bytes([str(correlation_id).encode()])
        else:  # the lower bytes, as in Triton, if the number is too large for the type
            assert isinstance(correlation_id, int), "validation refuses texts"
            data = (correlation_id & (2**64 - 1)).to_bytes(8, "little")[: dtype.itemsize]
        return InferTensor(control.name, dtype, self._shape, data)


def added_input_names(spec: ModelSpec) -> list[str]:
    """Returns the names of the inputs that the server adds, in order."""
    if spec.sequence is None:
        return []
    names = [control.name for control in spec.sequence.controls]
    names += [state.input_name for state in spec.sequence.states]
    # Several controls may have one tensor, which may be an input of the model as well.
    return [name for name in dict.fromkeys(names) if name not in spec.inputs]


def state_output_names(spec: ModelSpec) -> list[str]:
    return [state.output_name for state in spec.sequence.states] if spec.sequence else []


def _zeros(name: str, dtype: DataType, shape: tuple[int, ...]) -> InferTensor:
    # The bytes of an empty BYTES element are its length.
    return InferTensor(name, dtype, shape, bytes(math.prod(shape) * (dtype.itemsize or 4)))


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
        """Move the states in a response to the inputs of the request."""
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
