# SPDX-License-Identifier: Apache-2.0
"""Writes the settings of sequences into the server's ModelConfig, and reads them from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.base import dtypes
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config.sequence_batcher import (
    ControlKind,
    DirectStrategy,
    OldestStrategy,
    SequenceBatcher,
    SequenceControl,
    SequenceState,
)
from pytriton.model_config.tensor import triton_datatype

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
