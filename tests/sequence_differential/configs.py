# SPDX-License-Identifier: Apache-2.0
"""Configurations of the sequence scenarios, put together from parts."""

from __future__ import annotations

CONTROL_PAIRS = {"int32": "0, 1", "fp32": "0, 1", "bool": "false, true"}


def flag(name: str, kind: str, pair: str = "int32", values: str = "") -> str:
    """A control input that tells a flag."""
    values = values or CONTROL_PAIRS[pair]
    return (
        f'control_input [ {{ name: "{name}" control [ {{ kind: CONTROL_SEQUENCE_{kind}'
        f" {pair}_false_true: [ {values} ] }} ] }} ]\n"
    )


def corrid(dtype: str = "UINT64", name: str = "CORRID") -> str:
    """The control input of the correlation id."""
    return (
        f'control_input [ {{ name: "{name}" control [ {{ kind: CONTROL_SEQUENCE_CORRID'
        f" data_type: TYPE_{dtype} }} ] }} ]\n"
    )


START, READY, END = flag("START", "START"), flag("READY", "READY"), flag("END", "END")
CONTROLS = START + READY + END
EVERY_CONTROL = CONTROLS + corrid()


def config(
    strategy: str = "",
    *,
    batch: int = 4,
    controls: str = EVERY_CONTROL,
    idle_us: int = 60_000_000,
    count: int = 1,
    extra: str = "",
    outputs: str = "",
    sequence: str | None = None,
    dims: str = "1",
    version_policy: str = "",
) -> str:
    """A whole configuration."""
    inside = sequence
    if inside is None:
        inside = f"max_sequence_idle_microseconds: {idle_us}\n{controls}{strategy}"
    return (
        f'backend: "python"\nmax_batch_size: {batch}\n'
        f'input [ {{ name: "VALUE" data_type: TYPE_INT32 dims: [ {dims} ] }} ]\n'
        'output [ { name: "SUM" data_type: TYPE_INT32 dims: [ 1 ] },'
        ' { name: "INSTANCE" data_type: TYPE_STRING dims: [ 1 ] }'
        f"{outputs} ]\n"
        f"instance_group [ {{ kind: KIND_CPU count: {count} }} ]\n"
        f"sequence_batching {{\n{inside}}}\n{extra}"
    )


def state(dtype: str, dims: str, initial: str = "", extra: str = "") -> str:
    """An implicit state S_IN and S_OUT."""
    if initial:
        initial = f'initial_state: {{ name: "first" data_type: TYPE_{dtype} {initial} }}'
    return (
        'state [ { input_name: "S_IN" output_name: "S_OUT"'
        f" data_type: TYPE_{dtype} dims: [ {dims} ] {initial} {extra} }} ]\n"
    )
