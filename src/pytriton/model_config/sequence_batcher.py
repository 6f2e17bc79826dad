# SPDX-License-Identifier: Apache-2.0
"""The users' settings of sequences, and how they are written to and read from a ModelConfig."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.base import dtypes
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config.tensor import triton_datatype
from pytriton.utils.checks import check_type


class ControlKind(enum.Enum):
    """What a control input tells a sequence model."""

    START = "CONTROL_SEQUENCE_START"
    READY = "CONTROL_SEQUENCE_READY"
    END = "CONTROL_SEQUENCE_END"
    CORRID = "CONTROL_SEQUENCE_CORRID"


@dataclasses.dataclass
class SequenceControl:
    """An input that the server adds to each request of a sequence; clients do not send it.

    It has the shape (1,), and (rows, 1) in a batch.

    Args:
        kind: what it tells: whether a request is the first or the last of its sequence, whether a
            row of the batch has a request at all, or the id of the sequence.
        name: name of the input; by default START, READY, END or CORRID.
        dtype: type of the input; bool (the default), int32 or float32 for flags, and for the id
            uint64 (the default), int64, uint32, int32, or bytes for ids that are texts.
        false_true: the values of a flag.
    """

    kind: ControlKind
    name: str = ""
    dtype: Any = None
    false_true: tuple[float, float] = (0, 1)

    def __post_init__(self) -> None:
        check_type(self.kind, "kind of a control", ControlKind)
        check_type(self.name, "name of a control", str)
        self.name = self.name or self.kind.name
        if self.dtype is None:
            self.dtype = np.uint64 if self.kind is ControlKind.CORRID else np.bool_


@dataclasses.dataclass
class SequenceState:
    """A state: what a request returns as output is an input of the sequence's next request.

    It stays in the server. Clients get the output only if it is also one of the model's outputs.

    Args:
        input_name: name of the input with the state.
        output_name: name of the output with the next state.
        dtype: type of the elements, as in `Tensor`.
        shape: dimensions without the batch dimension; -1 is a dimension of any size.
        initial: state of the first request of a sequence, without the batch dimension; by default
            zeros, with 1 for a dimension of any size.
        use_same_buffer_for_input_output: accepted; a hint for compiled backends.
        use_growable_memory: accepted; a hint for compiled backends. Every state with a dimension of
            any size may grow.
    """

    input_name: str
    output_name: str
    dtype: Any
    shape: Sequence[int]
    initial: NDArray[Any] | None = dataclasses.field(default=None, compare=False)
    use_same_buffer_for_input_output: bool = False
    use_growable_memory: bool = False

    def __post_init__(self) -> None:
        check_type(self.input_name, "input_name of a state", str)
        check_type(self.output_name, "output_name of a state", str)
        check_type(self.shape, f"shape of the state '{self.input_name}'", tuple, list)


@dataclasses.dataclass
class DirectStrategy:
    """Each sequence has a row of the batch of one instance, from its start to its end.

    Args:
        max_queue_delay_microseconds: how long a request may wait for others to join it.
        minimum_slot_utilization: share of the rows that must have a request before a batch runs,
            unless the delay is over; between 0 and 1.
    """

    max_queue_delay_microseconds: int = 0
    minimum_slot_utilization: float = 0.0


@dataclasses.dataclass
class OldestStrategy:
    """The requests of different sequences, the oldest first, are combined as they come.

    Args:
        max_candidate_sequences: number of sequences of an instance that may have requests running;
            0 means as many as a batch has rows.
        preferred_batch_size: sizes at which a batch does not wait any longer.
        max_queue_delay_microseconds: how long a request may wait for others to join it.
        preserve_ordering: whether responses are sent in the order in which requests arrived.
    """

    max_candidate_sequences: int = 0
    preferred_batch_size: list[int] | None = None
    max_queue_delay_microseconds: int = 0
    preserve_ordering: bool = False


@dataclasses.dataclass
class SequenceBatcher:
    """How the server keeps the requests of a sequence together and passes on their state.

    All requests of a sequence are executed by the same instance, one after the other.

    Args:
        strategy: how requests of different sequences are combined.
        max_sequence_idle_microseconds: a sequence without a request for this time ends.
        controls: inputs that the server adds to each request.
        states: states that requests of a sequence pass on.
        max_queue_size: number of sequences that may wait for a place; 0 means no limit.
        generate_ids: whether a request without a sequence id is a sequence of its own.
    """

    strategy: DirectStrategy | OldestStrategy = dataclasses.field(default_factory=DirectStrategy)
    max_sequence_idle_microseconds: int = 1_000_000
    controls: Sequence[SequenceControl] = ()
    states: Sequence[SequenceState] = ()
    max_queue_size: int = 0
    generate_ids: bool = False

    def __post_init__(self) -> None:
        check_type(self.strategy, "strategy of sequences", DirectStrategy, OldestStrategy)
        for control in self.controls:
            check_type(control, "control of sequences", SequenceControl)
        for state in self.states:
            check_type(state, "state of sequences", SequenceState)


_MAX_QUEUE_SIZE = "sequence_max_queue_size"
_GENERATE_IDS = "sequence_generate_ids"
_PAIRS = {
    dtypes.INT32: ("int32_false_true", int),
    dtypes.FP32: ("fp32_false_true", float),
    dtypes.BOOL: ("bool_false_true", bool),
}
_IDS: tuple[dtypes.DataType, ...]
_IDS = (dtypes.UINT64, dtypes.INT64, dtypes.UINT32, dtypes.INT32, dtypes.BYTES)


def sequence_message(batcher: SequenceBatcher) -> dict[str, Any]:
    """Returns the `sequence_batching` of the message.

    Raises:
        PyTritonBadParameterError: if a type or an initial state is not possible.
    """
    message: dict[str, Any] = {
        "max_sequence_idle_microseconds": batcher.max_sequence_idle_microseconds
    }
    strategy = batcher.strategy
    values = {name: value for name, value in vars(strategy).items() if value}
    message["oldest" if isinstance(strategy, OldestStrategy) else "direct"] = values
    if batcher.controls:
        message["control_input"] = [_control_message(control) for control in batcher.controls]
    if batcher.states:
        message["state"] = [_state_message(state) for state in batcher.states]
    return message


def sequence_parameters(batcher: SequenceBatcher) -> dict[str, str]:
    """Returns the settings that the message has no fields for, as parameters of the model."""
    parameters = {}
    if batcher.max_queue_size:
        parameters[_MAX_QUEUE_SIZE] = str(batcher.max_queue_size)
    if batcher.generate_ids:
        parameters[_GENERATE_IDS] = "true"
    return parameters


def initial_states(batcher: SequenceBatcher | None) -> dict[str, bytes]:
    """Returns the initial states that are not zeros, by input, in the protocol's layout."""
    if batcher is None:
        return {}
    return {
        state.input_name: data
        for state in batcher.states
        if state.initial is not None and any(data := _initial_bytes(state, state.initial))
    }


def only_request_inputs(batcher: SequenceBatcher, rows: int) -> dict[str, NDArray[Any]]:
    """Returns controls and states of a request that is a whole sequence, for warm-ups.

    Args:
        batcher: settings of sequences.
        rows: number of rows; 0 leaves the batch dimension out.
    """
    lead = (rows,) if rows else ()
    arrays = {}
    for control in batcher.controls:
        datatype = triton_datatype(control.dtype)
        value: Any = control.false_true[1]
        if control.kind is ControlKind.CORRID:
            value = b"1" if datatype is dtypes.BYTES else 1
        arrays[control.name] = np.full((*lead, 1), value, datatype.numpy)
    for state in batcher.states:
        datatype, initial = triton_datatype(state.dtype), state.initial
        if initial is None:
            shape = [1 if size < 0 else size for size in state.shape]
            initial = np.full(shape, b"" if datatype is dtypes.BYTES else 0, datatype.numpy)
        array = np.asarray(initial).astype(datatype.numpy)
        arrays[state.input_name] = np.broadcast_to(array, (*lead, *array.shape)).copy()
    return arrays


def sequence_batcher(message: Mapping[str, Any], parameters: dict[str, str]) -> SequenceBatcher:
    """Read the `sequence_batching` of a message; removes its parameters from `parameters`.

    The contents of files with initial states are not known here.
    """
    strategy: DirectStrategy | OldestStrategy
    if (oldest := message.get("oldest")) is not None:
        strategy = OldestStrategy(
            max_candidate_sequences=int(oldest.get("max_candidate_sequences", 0)),
            preferred_batch_size=[int(size) for size in oldest.get("preferred_batch_size", ())]
            or None,
            max_queue_delay_microseconds=int(oldest.get("max_queue_delay_microseconds", 0)),
            preserve_ordering=bool(oldest.get("preserve_ordering", False)),
        )
    else:
        direct = message.get("direct", {})
        strategy = DirectStrategy(
            max_queue_delay_microseconds=int(direct.get("max_queue_delay_microseconds", 0)),
            minimum_slot_utilization=float(direct.get("minimum_slot_utilization", 0.0)),
        )
    return SequenceBatcher(
        strategy=strategy,
        max_sequence_idle_microseconds=int(message.get("max_sequence_idle_microseconds", 0))
        or SequenceBatcher.max_sequence_idle_microseconds,
        controls=[
            _control(item.get("name", ""), control)
            for item in message.get("control_input", ())
            for control in item.get("control", ())
        ],
        states=[_state(item) for item in message.get("state", ())],
        max_queue_size=int(parameters.pop(_MAX_QUEUE_SIZE, "") or 0),
        generate_ids=parameters.pop(_GENERATE_IDS, "").lower() in ("true", "1", "yes"),
    )


def _control_message(control: SequenceControl) -> dict[str, Any]:
    datatype = triton_datatype(control.dtype)
    message: dict[str, Any] = {"kind": control.kind.value}
    if control.kind is ControlKind.CORRID:
        allowed = _IDS
        message["data_type"] = datatype.config_name
    else:
        allowed = tuple(_PAIRS)
        if datatype in allowed:
            field, convert = _PAIRS[datatype]
            message[field] = [convert(value) for value in control.false_true]
    if datatype not in allowed:
        raise PyTritonBadParameterError(
            f"Expected one of the types {', '.join(each.name for each in allowed)} for control "
            f"`{control.name}`, got {datatype.name}."
        )
    return {"name": control.name, "control": [message]}


def _state_message(state: SequenceState) -> dict[str, Any]:
    data_type = triton_datatype(state.dtype).config_name
    message: dict[str, Any] = {
        "input_name": state.input_name,
        "output_name": state.output_name,
        "data_type": data_type,
        "dims": list(state.shape),
    }
    if state.initial is not None:
        has_content = any(_initial_bytes(state, state.initial))
        source = {"data_file": state.input_name} if has_content else {"zero_data": True}
        dims = list(np.shape(state.initial))
        initial = {"name": state.input_name, "data_type": data_type, "dims": dims, **source}
        message["initial_state"] = [initial]
    for hint in ("use_same_buffer_for_input_output", "use_growable_memory"):
        if getattr(state, hint):
            message[hint] = True
    return message


def _initial_bytes(state: SequenceState, initial: NDArray[Any]) -> bytes:
    """Returns an initial state in the protocol's layout."""
    datatype, array, shape = triton_datatype(state.dtype), np.asarray(initial), tuple(state.shape)
    if len(array.shape) != len(shape) or any(
        size not in (given, -1) for given, size in zip(array.shape, shape, strict=True)
    ):
        raise PyTritonBadParameterError(
            f"Expected an initial value of shape {shape} for state `{state.input_name}`, "
            f"got {array.shape}."
        )
    if datatype is dtypes.BYTES:
        return dtypes.encode_bytes(dtypes.array_to_bytes_elements(array))
    return np.ascontiguousarray(array, datatype.numpy).tobytes()


def _control(name: str, message: Mapping[str, Any]) -> SequenceControl:
    kind = ControlKind(message.get("kind", ControlKind.START.value))
    if kind is ControlKind.CORRID:
        return SequenceControl(kind, name, _numpy_type(message["data_type"]))
    for datatype, (field, convert) in _PAIRS.items():
        pair = message.get(field)
        if pair:
            return SequenceControl(
                kind, name, datatype.numpy.type, (convert(pair[0]), convert(pair[1]))
            )
    return SequenceControl(kind, name)


def _state(message: Mapping[str, Any]) -> SequenceState:
    data_type = message["data_type"]
    initial = None
    for setting in message.get("initial_state", ()):
        if "data_file" not in setting:
            empty = b"" if data_type == dtypes.BYTES.config_name else 0
            dims = [int(size) for size in setting.get("dims", ())]
            initial = np.full(dims, empty, dtypes.BY_CONFIG_NAME[data_type].numpy)
    return SequenceState(
        input_name=message.get("input_name", ""),
        output_name=message.get("output_name", ""),
        dtype=_numpy_type(data_type),
        shape=tuple(int(size) for size in message.get("dims", ())),
        initial=initial,
        use_same_buffer_for_input_output=bool(message.get("use_same_buffer_for_input_output")),
        use_growable_memory=bool(message.get("use_growable_memory")),
    )


def _numpy_type(config_name: str) -> type[Any]:
    datatype = dtypes.BY_CONFIG_NAME[config_name]
    return np.bytes_ if datatype is dtypes.BYTES else datatype.numpy.type
