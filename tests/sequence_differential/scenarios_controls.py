# SPDX-License-Identifier: Apache-2.0
"""What a model sees: control inputs of every kind, correlation ids, states, warm-up."""

from __future__ import annotations

import struct

from tests.recorded_suite import Observation
from tests.sequence_differential.configs import (
    CONTROLS,
    END,
    EVERY_CONTROL,
    READY,
    START,
    config,
    corrid,
    flag,
    state,
)
from tests.sequence_differential.rig import Rig
from tests.sequence_differential.scenario import Scenarios

scenario = Scenarios()
WARM_UP = (
    'model_warmup [ { name: "sample" batch_size: 2 inputs { key: "VALUE"'
    " value: { data_type: TYPE_INT32 dims: [ 1 ] zero_data: true } } } ]\n"
)
FIRST_STATE = {"initial_state/first": struct.pack("<2i", 40, 50)}


def life(rig: Rig, shape: tuple[int, ...] = (1, 1)) -> Observation:
    """A sequence with another beside it."""
    rig.call(7, 1, start=True, shape=shape).wait()
    rig.call(8, 1, start=True, shape=shape).wait()
    rig.call(7, 2, shape=shape).wait()
    rig.call(8, 3, end=True, shape=shape).wait()
    rig.call(7, 3, end=True, shape=shape).wait()
    return {"answers": rig.answers(), "inputs": rig.inputs()}


def first_requests(rig: Rig) -> Observation:
    """The first requests of two sequences; what follows is known to differ with states."""
    rig.call(7, 1, start=True).wait()
    rig.call(8, 1, start=True).wait()
    rig.call(7, 5, start=True).wait()
    return {"answers": rig.answers(), "inputs": rig.inputs()}


@scenario(config(controls=EVERY_CONTROL))
def controls_in_int32(rig: Rig) -> Observation:
    return life(rig)


@scenario(
    config(
        controls=flag("START", "START", "fp32")
        + flag("READY", "READY", "fp32")
        + flag("END", "END", "fp32", "0.5, -2")
    )
)
def controls_in_fp32(rig: Rig) -> Observation:
    return life(rig)


@scenario(
    config(
        controls=flag("START", "START", "bool")
        + flag("READY", "READY", "bool")
        + flag("END", "END", "bool", "true, false")
    )
)
def controls_in_bool(rig: Rig) -> Observation:
    return life(rig)


@scenario(config(controls=flag("START", "START", "int32", "5, 7") + flag("END", "END", "fp32")))
def controls_of_several_kinds(rig: Rig) -> Observation:
    return life(rig)


@scenario(config(controls=""))
def no_controls(rig: Rig) -> Observation:
    return life(rig)


@scenario(config(controls=READY))
def ready_alone(rig: Rig) -> Observation:
    return life(rig)


@scenario(config(controls=EVERY_CONTROL, batch=0, count=2))
def controls_without_a_batch_dimension(rig: Rig) -> Observation:
    seen = life(rig, shape=(1,))
    del seen["answers"]
    return seen


@scenario(config("oldest { max_candidate_sequences: 4 }\n", controls=EVERY_CONTROL))
def controls_of_the_oldest_strategy(rig: Rig) -> Observation:
    return life(rig)


@scenario(
    config(
        controls='control_input [ { name: "BOTH" control [ { kind: CONTROL_SEQUENCE_START'
        " int32_false_true: [ 0, 1 ] }, { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 2 ] }"
        " ] } ]\n"
    )
)
def one_control_input_of_two_kinds(rig: Rig) -> Observation:
    return life(rig)


@scenario(config(controls=START + 'control_input [ { name: "NOTHING" } ]\n' + END))
def a_control_input_without_a_kind(rig: Rig) -> Observation:
    return life(rig)


@scenario(config(controls=corrid("UINT64")))
def correlation_ids_in_uint64(rig: Rig) -> Observation:
    rig.call(2**40, 1, start=True).wait()
    rig.call(-5, 1, start=True).wait()
    return {"answers": rig.answers(), "inputs": rig.inputs()}


@scenario(config(controls=corrid("INT64")))
def correlation_ids_in_int64(rig: Rig) -> Observation:
    rig.call(2**40, 1, start=True).wait()
    return {"answers": rig.answers(), "inputs": rig.inputs()}


@scenario(config(controls=corrid("UINT32")))
def correlation_ids_in_uint32(rig: Rig) -> Observation:
    rig.call(2**31 + 5, 1, start=True).wait()
    return {"answers": rig.answers(), "inputs": rig.inputs()}


@scenario(config(controls=corrid("INT32")))
def correlation_ids_in_int32(rig: Rig) -> Observation:
    rig.call(2**30 + 5, 1, start=True).wait()
    return {"answers": rig.answers(), "inputs": rig.inputs()}


@scenario(config(controls=corrid("INT32")))
def correlation_ids_too_big_for_int32(rig: Rig) -> Observation:
    rig.call(2**33 + 5, 1, start=True).wait()
    return {"answers": rig.answers(), "inputs": rig.inputs()}


@scenario(config(controls=corrid("STRING")))
def correlation_ids_of_128_characters(rig: Rig) -> Observation:
    rig.call("i" * 128, 1, start=True).wait()
    rig.call("i" * 128, 2, end=True).wait()
    rig.call("i" * 129, 1, start=True).wait()
    return {"answers": rig.answers(), "inputs": rig.inputs()}


@scenario(config(controls=corrid("STRING")))
def correlation_ids_as_strings(rig: Rig) -> Observation:
    rig.call("name", 1, start=True).wait()
    rig.call("name", 2, end=True).wait()
    return {"answers": rig.answers(), "inputs": rig.inputs()}


@scenario(config(controls=corrid("UINT64")))
def a_string_for_a_numeric_correlation_id(rig: Rig) -> Observation:
    rig.call("abc", 1, start=True).wait()
    rig.call("abc", 1, end=True).wait()
    return {"answers": rig.answers(), "inputs": rig.inputs()}


@scenario(config(controls=CONTROLS))
def string_ids(rig: Rig) -> None:
    rig.call("one", 1, start=True).wait()
    rig.call("two", 1, start=True).wait()
    rig.call("one", 2).wait()
    rig.call("two", 2, end=True).wait()
    rig.call("One", 2).wait()
    rig.call("one", 3, end=True).wait()
    rig.call("one", 3, end=True).wait()


@scenario(config(controls=CONTROLS))
def a_number_and_the_same_digits(rig: Rig) -> None:
    rig.call(5, 1, start=True).wait()
    rig.call("5", 10, start=True).wait()
    rig.call(5, 2, end=True).wait()
    rig.call("5", 20, end=True).wait()


@scenario(config(controls=EVERY_CONTROL, extra=WARM_UP))
def warm_up(rig: Rig) -> Observation:
    rig.call(7, 1, start=True).wait()
    return [
        [[request["corrid"], request["flags"], request["inputs"]] for request in entry["batch"]]
        for entry in rig.journal()
    ]


@scenario(
    config(controls=CONTROLS + state("INT32", "2", 'dims: [ 2 ] data_file: "first"')), FIRST_STATE
)
def a_first_state_from_a_file(rig: Rig) -> Observation:
    return first_requests(rig)


@scenario(config(controls=CONTROLS + state("FP32", "2", "dims: [ 2 ] zero_data: true")))
def a_first_state_of_zeros(rig: Rig) -> Observation:
    return first_requests(rig)


@scenario(config(controls=CONTROLS + state("INT32", "-1", "dims: [ 3 ] zero_data: true")))
def a_first_state_of_a_variable_size(rig: Rig) -> Observation:
    return first_requests(rig)


@scenario(
    config(
        "oldest { max_candidate_sequences: 2 }\n",
        controls=state("INT32", "2", 'dims: [ 2 ] data_file: "first"'),
        outputs=', { name: "S_OUT" data_type: TYPE_INT32 dims: [ 2 ] }',
    ),
    FIRST_STATE,
)
def a_state_that_clients_see(rig: Rig) -> Observation:
    return first_requests(rig)


@scenario(config(controls=CONTROLS + state("INT32", "1", "dims: [ 1 ] zero_data: true")))
def states_are_kept(rig: Rig) -> Observation:
    return life(rig)
