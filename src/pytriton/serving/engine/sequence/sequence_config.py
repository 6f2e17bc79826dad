# SPDX-License-Identifier: Apache-2.0
"""Settings of the sequence batcher in a configuration, and their rules with Triton's messages.

What makes Triton hang, crash or read foreign memory later is refused here in words of our own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from pytriton.base import dtypes
from pytriton.base.dtypes import BY_NUMBER, DataType
from pytriton.base.errors import InvalidArgumentError
from pytriton.base.model_spec import ControlSpec, SequenceControlKind, SequenceSpec, StateSpec
from pytriton.base.protos import model_config_pb2

# Settings that Triton's message has no fields for are parameters of the model.
MAX_QUEUE_SIZE = "sequence_max_queue_size"
GENERATE_IDS = "sequence_generate_ids"
_TRUTHS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False, "": False}


def sequence_spec(config: Any, initial_states: Mapping[str, bytes]) -> SequenceSpec:
    """Returns the sequence batcher's settings."""
    batching = config.sequence_batching
    is_oldest = batching.HasField("oldest")
    strategy = batching.oldest if is_oldest else batching.direct
    return SequenceSpec(
        idle_us=batching.max_sequence_idle_microseconds,
        controls=tuple(
            _control(control_input.name, control)
            for control_input in batching.control_input
            for control in control_input.control
        ),
        states=tuple(
            _state(state, initial_states.get(state.input_name)) for state in batching.state
        ),
        max_candidates=_candidates(config) if is_oldest else None,
        preferred_batch_sizes=tuple(strategy.preferred_batch_size) if is_oldest else (),
        max_queue_delay_us=strategy.max_queue_delay_microseconds,
        preserve_ordering=is_oldest and strategy.preserve_ordering,
        minimum_slot_utilization=0.0 if is_oldest else strategy.minimum_slot_utilization,
        max_queue_size=_queue_size(config),
        generates_ids=_generates_ids(config),
    )


def _candidates(config: Any) -> int:
    # With no candidate Triton never answers, so this is a batch of them.
    candidates: int = config.sequence_batching.oldest.max_candidate_sequences
    return candidates if candidates > 0 else max(1, config.max_batch_size)


def _control(name: str, control: Any) -> ControlSpec:
    kind = SequenceControlKind(control.kind)
    if kind is SequenceControlKind.CORRID:
        return ControlSpec(name=name, kind=kind, dtype=BY_NUMBER[control.data_type])
    for pair, dtype in (
        (control.int32_false_true, dtypes.INT32),
        (control.fp32_false_true, dtypes.FP32),
        (control.bool_false_true, dtypes.BOOL),
    ):
        if len(pair):
            values = (float(pair[0]), float(pair[1]))
            return ControlSpec(name=name, kind=kind, dtype=dtype, false_true=values)
    raise AssertionError(f"control {name} has no values: the configuration was not validated")


def _state(state: Any, content: bytes | None) -> StateSpec:
    dtype = BY_NUMBER[state.data_type]
    # Without an initial state, Triton takes 1 for a variable dimension.
    dims = tuple(1 if dim < 0 else dim for dim in state.dims)
    initial = None
    if len(state.initial_state):
        setting = state.initial_state[0]
        dims = tuple(setting.dims)
        if setting.WhichOneof("state_data") == "data_file":
            initial = _initial_data(setting.data_file, content, dtype, math.prod(dims))
    return StateSpec(
        input_name=state.input_name,
        output_name=state.output_name,
        dtype=dtype,
        dims=tuple(state.dims),
        initial=initial,
        initial_dims=dims,
    )


def _initial_data(file: str, content: bytes | None, dtype: DataType, count: int) -> bytes:
    """Returns the data of an initial state; a file may have more bytes than needed."""
    content = content or b""
    if dtype is dtypes.BYTES:
        walk = dtypes.walk_bytes(content, count)
        if walk.found != count or walk.end > len(content):
            raise InvalidArgumentError(
                f"initial_state setting expects {count} elements with their lengths, but the data "
                f"provided from {file} has {len(content)} bytes"
            )
        return content[: walk.end]
    size = count * dtype.itemsize
    if len(content) < size:
        raise InvalidArgumentError(  # the missing space is Triton's
            f"initial_state setting expects {size} bytes, but the data provided from {file}only "
            f"has {len(content)} bytes."
        )
    return content[:size]


def _queue_size(config: Any) -> int:
    text = _parameter(config, MAX_QUEUE_SIZE)
    if not text.isdecimal() and text:
        raise InvalidArgumentError(
            f"expected parameter '{MAX_QUEUE_SIZE}' of model '{config.name}' to be a number of "
            f"sequences, got '{text}'"
        )
    return int(text or 0)


def _generates_ids(config: Any) -> bool:
    text = _parameter(config, GENERATE_IDS).lower()
    if text not in _TRUTHS:
        raise InvalidArgumentError(
            f"expected parameter '{GENERATE_IDS}' of model '{config.name}' to be true or false, "
            f"got '{text}'"
        )
    return _TRUTHS[text]


def _parameter(config: Any, name: str) -> str:
    return config.parameters[name].string_value.strip() if name in config.parameters else ""


_CONTROL = model_config_pb2.ModelSequenceBatching.Control
_CORRID = _CONTROL.CONTROL_SEQUENCE_CORRID
_PAIRS = ("int32_false_true", "fp32_false_true", "bool_false_true")
_CORRID_TYPES = frozenset(
    getattr(model_config_pb2, f"TYPE_{name}")
    for name in ("UINT64", "INT64", "UINT32", "INT32", "STRING")
)


def validate_sequence_batching(config: Any) -> None:
    """Check strategies and control inputs, which must be correct before the model is loaded."""
    batching = config.sequence_batching
    if batching.HasField("oldest"):
        for size in batching.oldest.preferred_batch_size:
            if size <= 0:
                raise _refused(config, "preferred batch size must be positive")
            if size > config.max_batch_size:
                raise _refused(config, "preferred batch size must be <= max batch size")
    elif not 0.0 <= batching.direct.minimum_slot_utilization <= 1.0:
        raise _refused(config, "minimum slot utilization must be in range (0.0, 1.0]")
    _check_controls(config, batching.control_input)


def _check_controls(config: Any, control_inputs: Iterable[Any]) -> None:
    names = set()
    kinds = set()
    for control_input in control_inputs:
        name = control_input.name
        if not name:
            raise _refused(config, "control tensor must have a name")
        if name in names:
            problem = f"control tensor '{name}' is specified for multiple control kinds"
            raise _refused(config, problem)
        names.add(name)
        for control in control_input.control:
            if control.kind not in _CONTROL.Kind.values():
                raise _refused(config, f"control tensor '{name}' has unknown kind {control.kind}")
            kind = _CONTROL.Kind.Name(control.kind)
            if kind in kinds:
                raise _refused(config, f"specifies multiple {kind} tensors")
            kinds.add(kind)
            if control.kind == _CORRID:
                _check_correlation_id(config, control)
            else:
                _check_flag(config, kind, control)


def _check_flag(config: Any, kind: str, control: Any) -> None:
    given = [pair for pair in _PAIRS if len(getattr(control, pair))]
    one_of = "'int32_false_true', 'fp32_false_true' {} 'bool_false_true'"
    if not given:
        raise _refused(config, f"must specify either {one_of.format('or')} for {kind}")
    if len(given) > 1:
        raise _refused(config, f"specifies more than one from {one_of.format('and')} for {kind}")
    if len(getattr(control, given[0])) != 2:
        raise _refused(config, f"control '{given[0]}' must have exactly 2 entries for {kind}")


def _check_correlation_id(config: Any, control: Any) -> None:
    if any(len(getattr(control, pair)) for pair in _PAIRS):
        raise _refused(
            config,
            "must not specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' "
            "for CONTROL_SEQUENCE_CORRID",
        )
    if control.data_type not in _CORRID_TYPES:
        raise InvalidArgumentError(
            f"unexpected data type for control CONTROL_SEQUENCE_CORRID for {config.name}. Allowed "
            "data types are TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
        )


def validate_states(config: Any) -> None:
    """Check the names of control inputs, and the implicit states of a sequence model.

    Triton lets a control input replace a client's tensor of the same name, without a word.
    """
    batching = config.sequence_batching
    taken = {tensor.name for tensor in config.input}
    for control in batching.control_input:
        if control.name in taken:
            raise _refused(config, f"control tensor '{control.name}' has the name of an input")
    taken |= {control.name for control in batching.control_input}
    outputs = set()
    for state in batching.state:
        if not state.input_name or not state.output_name:
            raise _refused(config, "state must specify 'input_name' and 'output_name'")
        label = f"state '{state.input_name}'"
        if state.data_type not in BY_NUMBER:
            raise _refused(config, f"{label} must specify 'data_type'")
        if any(dim < -1 for dim in state.dims):
            problem = "dimension must be integer >= 0, or -1 to indicate a variable-size dimension"
            raise _refused(config, f"{label} {problem}")
        if state.input_name in taken:
            raise _refused(config, f"{label} has the name of another input")
        if state.output_name in outputs:
            problem = f"{label} has the output '{state.output_name}' of another state"
            raise _refused(config, problem)
        taken.add(state.input_name)
        outputs.add(state.output_name)
        _check_initial_state(state)


def _check_initial_state(state: Any) -> None:
    name, dims = state.input_name, state.dims
    if not len(state.initial_state):
        return
    if len(state.initial_state) > 1:
        raise InvalidArgumentError(
            f"initial_state field for state input '{name}' must contain exactly one or zero "
            f"element. Found '{len(state.initial_state)}' elements."
        )
    initial = state.initial_state[0]
    if not initial.name:
        raise InvalidArgumentError(
            f"Field 'name' must be set when using initial_state for state input '{name}'."
        )
    if initial.data_type != state.data_type:
        raise InvalidArgumentError(
            f"The data type used for 'initial_state' field of state '{name}' does not match the "
            "state data type."
        )
    if len(initial.dims) != len(dims):
        raise InvalidArgumentError(
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions "
            f"for state input '{name}'. {len(initial.dims)} != {len(dims)}"
        )
    for given, expected in zip(initial.dims, dims, strict=True):
        if given < 0:
            raise InvalidArgumentError(
                f"'initial_state' field for state input name '{name}' contains variable dimensions."
            )
        if expected not in (given, -1):
            raise InvalidArgumentError(
                f"'initial_state' dim for input name '{name}' doesn't match 'state' dim "
                f"description. {given} != {expected}"
            )
    if initial.WhichOneof("state_data") is None:
        raise InvalidArgumentError(
            f"initial_state setting expects state'{name}' to have state_data set"
        )


def _refused(config: Any, problem: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"sequence batching {problem} for {config.name}")
