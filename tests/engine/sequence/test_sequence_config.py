# SPDX-License-Identifier: Apache-2.0
"""The sequence batcher in a configuration; refusals were compared with Triton's own answers."""

from __future__ import annotations

import pytest

from pytriton.base import dtypes
from pytriton.base.errors import InvalidArgumentError
from pytriton.base.model_spec import SequenceControlKind
from pytriton.base.sent_specs import decode_spec, encode_spec
from pytriton.serving.engine.config import (
    config_from_text,
    normalise_config,
    spec_from_config,
    validate_config,
)
from pytriton.serving.engine.config_rules import validate_model

MODEL = 'name: "m" backend: "python" input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]'
START = "kind: CONTROL_SEQUENCE_START"
CORRID = "kind: CONTROL_SEQUENCE_CORRID"
STATE = 'state [ { input_name: "IN" output_name: "OUT" data_type: TYPE_INT32 dims: [ 2 ] %s } ]'
INITIAL = 'initial_state { name: "i" data_type: TYPE_INT32 dims: [ 2 ] %s }'
ONE_OF = "'int32_false_true', 'fp32_false_true' or 'bool_false_true'"


def normal(batching, *, max_batch_size=4, more=""):
    text = f"{MODEL} max_batch_size: {max_batch_size} sequence_batching {{ {batching} }} {more}"
    return normalise_config(config_from_text(text, "config.pbtxt"))


def sequence(batching, initial_states=None, **model):
    config = normal(batching, **model)
    validate_config(config)
    spec = spec_from_config(config, 1, None, initial_states)
    assert decode_spec(encode_spec(spec)) == spec
    return spec.sequence


def control(*controls, name="C"):
    inner = " ".join(f"control {{ {each} }}" for each in controls)
    return f'control_input {{ name: "{name}" {inner} }} '


def test_sequences_are_direct_by_default():
    spec = sequence("")

    assert spec.max_candidates is None
    assert spec.idle_us == 1_000_000
    assert (spec.controls, spec.states) == ((), ())
    assert (spec.max_queue_size, spec.generates_ids) == (0, False)


def test_direct_strategy_is_read():
    spec = sequence(
        "max_sequence_idle_microseconds: 7 "
        "direct { max_queue_delay_microseconds: 9 minimum_slot_utilization: 0.5 }"
    )

    assert (spec.idle_us, spec.max_queue_delay_us, spec.minimum_slot_utilization) == (7, 9, 0.5)


def test_oldest_strategy_is_read():
    spec = sequence(
        "oldest { max_candidate_sequences: 9 preferred_batch_size: [ 2, 3 ] "
        "max_queue_delay_microseconds: 5 preserve_ordering: true }"
    )

    assert (spec.max_candidates, spec.preferred_batch_sizes) == (9, (2, 3))
    assert (spec.max_queue_delay_us, spec.preserve_ordering) == (5, True)


@pytest.mark.parametrize("count,batch,expected", [(0, 4, 4), (-1, 4, 4), (0, 0, 1), (2, 0, 2)])
def test_oldest_strategy_has_at_least_one_candidate(count, batch, expected):
    spec = sequence(f"oldest {{ max_candidate_sequences: {count} }}", max_batch_size=batch)

    assert spec.max_candidates == expected


def test_controls_are_read():
    spec = sequence(
        control(f"{START} int32_false_true: [ 3, 9 ]", name="S")
        + control("kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0.5, 1 ]", name="E")
        + control("kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ]", name="R")
        + control(f"{CORRID} data_type: TYPE_STRING", name="C")
    )

    assert [(each.name, each.kind, each.dtype, each.false_true) for each in spec.controls] == [
        ("S", SequenceControlKind.START, dtypes.INT32, (3, 9)),
        ("E", SequenceControlKind.END, dtypes.FP32, (0.5, 1)),
        ("R", SequenceControlKind.READY, dtypes.BOOL, (0, 1)),
        ("C", SequenceControlKind.CORRID, dtypes.BYTES, (0, 1)),
    ]


@pytest.mark.parametrize(
    "setting,content,initial",
    [
        ("", None, None),
        (INITIAL % "zero_data: true", None, None),
        (INITIAL % 'data_file: "f"', b"12345678", b"12345678"),
        (INITIAL % 'data_file: "f"', b"12345678more", b"12345678"),
        ("use_same_buffer_for_input_output: true", None, None),
        ("use_growable_memory: true", None, None),
    ],
)
def test_states_are_read(setting, content, initial):
    (state,) = sequence(STATE % setting, {} if content is None else {"IN": content}).states

    assert (state.input_name, state.output_name) == ("IN", "OUT")
    assert (state.dtype, state.dims) == (dtypes.INT32, (2,))
    assert (state.initial, state.initial_dims) == (initial, (2,))


def test_a_state_of_any_size_begins_with_its_initial_dimensions():
    state = 'state { input_name: "I" output_name: "O" data_type: TYPE_STRING dims: [ -1, 3 ] %s }'
    initial = 'initial_state { name: "i" data_type: TYPE_STRING dims: [ 0, 3 ] zero_data: true }'

    assert sequence(state % "").states[0].initial_dims == (1, 3)
    assert sequence(state % initial).states[0].initial_dims == (0, 3)


def test_a_file_of_strings_may_have_more_than_needed():
    state = 'state { input_name: "I" output_name: "O" data_type: TYPE_STRING dims: [ 1 ] %s }'
    initial = 'initial_state { name: "i" data_type: TYPE_STRING dims: [ 1 ] data_file: "f" }'
    data = dtypes.encode_bytes([b"ab"])

    (read,) = sequence(state % initial, {"I": data + b"more"}).states

    assert read.initial == data
    with pytest.raises(InvalidArgumentError, match="1 elements with their lengths"):
        sequence(state % initial, {"I": data[:-1]})


def test_a_file_that_is_too_short_is_refused():
    with pytest.raises(InvalidArgumentError) as caught:
        sequence(STATE % (INITIAL % 'data_file: "f"'), {"IN": b"1234"})

    assert caught.value.message == (
        "initial_state setting expects 8 bytes, but the data provided from fonly has 4 bytes."
    )


def test_what_the_message_has_no_field_for_is_a_parameter():
    parameter = 'parameters {{ key: "{}" value {{ string_value: "{}" }} }}'
    size = parameter.format("sequence_max_queue_size", "16")
    ids = parameter.format("sequence_generate_ids", "True")

    spec = sequence("", more=size + ids)

    assert (spec.max_queue_size, spec.generates_ids) == (16, True)
    for name in ("sequence_max_queue_size", "sequence_generate_ids"):
        with pytest.raises(InvalidArgumentError, match=f"'{name}' of model 'm'.*got 'maybe'"):
            sequence("", more=parameter.format(name, "maybe"))


def test_an_iterative_model_has_its_controls_too():
    config = normal("iterative_sequence: true " + control(f"{CORRID} data_type: TYPE_UINT64"))
    validate_config(config)
    spec = spec_from_config(config, 1)

    assert spec.iterative
    assert spec.batcher is not None
    assert [each.name for each in spec.sequence.controls] == ["C"]


@pytest.mark.parametrize(
    "batching,expected",
    [
        (control(name=""), "control tensor must have a name"),
        (
            control(f"{START} int32_false_true: [ 0, 1 ]") + control(),
            "control tensor 'C' is specified for multiple control kinds",
        ),
        (
            control(f"{START} int32_false_true: [ 0, 1 ]")
            + control(f"{START} int32_false_true: [ 0, 1 ]", name="D"),
            "specifies multiple CONTROL_SEQUENCE_START tensors",
        ),
        (control(START), f"must specify either {ONE_OF} for CONTROL_SEQUENCE_START"),
        (
            control(f"{START} int32_false_true: [ 0, 1 ] fp32_false_true: [ 0, 1 ]"),
            (
                "specifies more than one from 'int32_false_true', 'fp32_false_true' and "
                "'bool_false_true' for CONTROL_SEQUENCE_START"
            ),
        ),
        (
            control(f"{START} bool_false_true: [ true ]"),
            "control 'bool_false_true' must have exactly 2 entries for CONTROL_SEQUENCE_START",
        ),
        (
            control(f"{CORRID} int32_false_true: [ 0, 1 ] data_type: TYPE_UINT64"),
            f"must not specify either {ONE_OF} for CONTROL_SEQUENCE_CORRID",
        ),
        ("oldest { preferred_batch_size: [ 0 ] }", "preferred batch size must be positive"),
        (
            "oldest { preferred_batch_size: [ 5 ] }",
            "preferred batch size must be <= max batch size",
        ),
        (
            "direct { minimum_slot_utilization: 1.5 }",
            "minimum slot utilization must be in range (0.0, 1.0]",
        ),
        (
            "direct { minimum_slot_utilization: -0.5 }",
            "minimum slot utilization must be in range (0.0, 1.0]",
        ),
    ],
)
def test_rules_of_strategies_and_controls(batching, expected):
    with pytest.raises(InvalidArgumentError) as caught:
        validate_model(normal(batching))

    assert caught.value.message == f"sequence batching {expected} for m"


@pytest.mark.parametrize("data_type", ["", "data_type: TYPE_FP32", "data_type: TYPE_UINT8"])
def test_correlation_ids_are_numbers_of_some_types_or_text(data_type):
    with pytest.raises(InvalidArgumentError) as caught:
        validate_model(normal(control(f"{CORRID} {data_type}")))

    assert caught.value.message == (
        "unexpected data type for control CONTROL_SEQUENCE_CORRID for m. Allowed data types are "
        "TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
    )


@pytest.mark.parametrize(
    "setting,expected",
    [
        (
            INITIAL % "zero_data: true" + INITIAL % "zero_data: true",
            (
                "initial_state field for state input 'IN' must contain exactly one or zero "
                "element. Found '2' elements."
            ),
        ),
        (
            "initial_state { data_type: TYPE_INT32 dims: [ 2 ] zero_data: true }",
            "Field 'name' must be set when using initial_state for state input 'IN'.",
        ),
        (
            'initial_state { name: "i" data_type: TYPE_FP32 dims: [ 2 ] zero_data: true }',
            (
                "The data type used for 'initial_state' field of state 'IN' does not match the "
                "state data type."
            ),
        ),
        (
            'initial_state { name: "i" data_type: TYPE_INT32 zero_data: true }',
            (
                "Number of dimensions in 'initial_state' doesn't match the size of 'state' "
                "dimensions for state input 'IN'. 0 != 1"
            ),
        ),
        (
            'initial_state { name: "i" data_type: TYPE_INT32 dims: [ -1 ] zero_data: true }',
            "'initial_state' field for state input name 'IN' contains variable dimensions.",
        ),
        (
            'initial_state { name: "i" data_type: TYPE_INT32 dims: [ 3 ] zero_data: true }',
            "'initial_state' dim for input name 'IN' doesn't match 'state' dim description. 3 != 2",
        ),
        (INITIAL % "", "initial_state setting expects state'IN' to have state_data set"),
    ],
)
def test_rules_of_initial_states(setting, expected):
    with pytest.raises(InvalidArgumentError) as caught:
        validate_config(normal(STATE % setting))

    assert caught.value.message == expected


def test_control_input_may_not_hide_an_input_of_clients():
    control = f"control {{ {START} int32_false_true: [ 0, 1 ] }}"
    with pytest.raises(InvalidArgumentError) as caught:
        validate_config(normal(f'control_input {{ name: "x" {control} }}'))

    assert caught.value.message == (
        "sequence batching control tensor 'x' has the name of an input for m"
    )


TYPED = "data_type: TYPE_INT32 dims: [ 1 ]"


@pytest.mark.parametrize(
    "batching,expected",
    [
        (f'state {{ output_name: "O" {TYPED} }}', "must specify 'input_name' and 'output_name'"),
        (f'state {{ input_name: "I" {TYPED} }}', "must specify 'input_name' and 'output_name'"),
        ('state { input_name: "I" output_name: "O" }', "'I' must specify 'data_type'"),
        (
            'state { input_name: "I" output_name: "O" data_type: TYPE_INT32 dims: [ -2 ] }',
            "'I' dimension must be integer >= 0, or -1 to indicate a variable-size dimension",
        ),
        (
            f'state {{ input_name: "x" output_name: "O" {TYPED} }}',
            "'x' has the name of another input",
        ),
        (
            (
                f'state {{ input_name: "I" output_name: "O" {TYPED} }} '
                f'state {{ input_name: "J" output_name: "O" {TYPED} }}'
            ),
            "'J' has the output 'O' of another state",
        ),
    ],
)
def test_states_that_crash_triton_are_refused(batching, expected):
    with pytest.raises(InvalidArgumentError) as caught:
        validate_config(normal(batching))

    assert caught.value.message == f"sequence batching state {expected} for m"
