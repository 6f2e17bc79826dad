# SPDX-License-Identifier: Apache-2.0
"""Reads the sequence batcher's settings from a model configuration.

The rules that it must follow are in `pytriton.serving.engine.sequence.sequence_rules`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pytriton.base import dtypes
from pytriton.base.dtypes import BY_NUMBER, DataType
from pytriton.base.errors import InvalidArgumentError
from pytriton.base.model_spec import ControlKind, ControlSpec, SequenceSpec, StateSpec

# Settings that Triton's message has no fields for are parameters of the model.
MAX_QUEUE_SIZE = "sequence_max_queue_size"
GENERATE_IDS = "sequence_generate_ids"
_TRUTHS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False, "": False}


def sequence_spec(config: Any, initial_states: Mapping[str, bytes]) -> SequenceSpec:
    """Returns the sequence batcher's settings.

    Args:
        config: the normalised and validated ModelConfig message.
        initial_states: the contents of the files of initial states, by the state's input.

    Raises:
        InvalidArgumentError: a parameter or the content of a file is wrong.
    """
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
    kind = ControlKind(control.kind)
    if kind is ControlKind.CORRID:
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
