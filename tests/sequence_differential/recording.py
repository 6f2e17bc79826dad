# SPDX-License-Identifier: Apache-2.0
"""Both servers, into whose repositories scenarios write models, and what they did.

See `tests/recorded_suite.py`.
"""

from __future__ import annotations

import functools
import struct
import sys
from contextlib import AbstractContextManager
from pathlib import Path

from tests.recorded_suite import Case, Server, Suite, running
from tests.sequence_differential import (
    scenarios_controls,
    scenarios_direct,
    scenarios_life,
    scenarios_oldest,
    scenarios_wire,
)
from tests.sequence_differential.configs import (
    EVERY_CONTROL,
    READY,
    START,
    config,
    corrid,
    flag,
    state,
)
from tests.sequence_differential.scenario import asked, asked_to_load

CACHE = "response_cache { enable: true }\n"
DYNAMIC = "dynamic_batching { }\n"
SMALL_FILE = {"initial_state/first": struct.pack("<i", 40)}


def control(name: str, *kinds: str) -> str:
    """A control input of any content."""
    inside = ", ".join(f"{{ kind: CONTROL_SEQUENCE_{kind} }}" for kind in kinds)
    return f'control_input [ {{ name: "{name}" control [ {inside} ] }} ]\n'


def oldest(extra: str) -> str:
    return config(f"oldest {{ {extra} }}\n")


def with_state(*initial: str) -> str:
    return config(controls=EVERY_CONTROL + state("INT32", "1", *initial))


PAIR = "int32_false_true: [ 0, 1 ]"
CONFIGURATIONS = {
    "control_without_a_name": config(controls=control("", f"START {PAIR}")),
    "control_name_twice": config(controls=START + flag("START", "END")),
    "start_twice": config(controls=START + flag("OTHER", "START")),
    "ready_twice": config(controls=READY + flag("OTHER", "READY")),
    "start_twice_in_one": config(controls=control("A", f"START {PAIR}", f"START {PAIR}")),
    "two_kinds_in_one": config(controls=control("A", f"START {PAIR}", f"END {PAIR}")),
    "correlation_id_twice": config(controls=corrid() + corrid(name="OTHER")),
    "flag_without_values": config(controls=control("A", "START")),
    "flag_with_a_type_only": config(controls=control("A", "READY data_type: TYPE_INT32")),
    "flag_with_a_type": config(controls=control("A", f"START {PAIR} data_type: TYPE_INT32")),
    "flag_of_two_types": config(controls=control("A", f"END {PAIR} fp32_false_true: [ 0, 1 ]")),
    "flag_of_one_number": config(controls=control("A", "START int32_false_true: [ 0 ]")),
    "flag_of_three_numbers": config(controls=control("A", "READY fp32_false_true: [ 0, 1, 2 ]")),
    "flag_of_three_bools": config(
        controls=control("A", "END bool_false_true: [ false, true, true ]")
    ),
    "correlation_id_with_values": config(controls=control("A", f"CORRID {PAIR}")),
    "correlation_id_with_both": config(
        controls=control("A", f"CORRID {PAIR} data_type: TYPE_UINT64")
    ),
    "correlation_id_without_a_type": config(controls=control("A", "CORRID")),
    "correlation_id_in_fp32": config(controls=corrid("FP32")),
    "correlation_id_in_int8": config(controls=corrid("INT8")),
    "preferred_size_zero": oldest("max_candidate_sequences: 4 preferred_batch_size: [ 0 ]"),
    "preferred_size_negative": oldest("max_candidate_sequences: 4 preferred_batch_size: [ -1 ]"),
    "preferred_size_too_big": oldest("max_candidate_sequences: 4 preferred_batch_size: [ 2, 9 ]"),
    "fewer_candidates_than_preferred": oldest(
        "max_candidate_sequences: 2 preferred_batch_size: [ 4 ]"
    ),
    "no_candidates": oldest(""),
    "utilization_too_big": config("direct { minimum_slot_utilization: 1.5 }\n"),
    "utilization_negative": config("direct { minimum_slot_utilization: -0.5 }\n"),
    "utilization_of_all": config("direct { minimum_slot_utilization: 1.0 }\n"),
    "with_a_cache": config(extra=CACHE),
    "both_strategies": config("direct { } oldest { }\n"),
    "also_dynamic": config(extra=DYNAMIC),
    "state_of_another_type": with_state("dims: [ 1 ] zero_data: true").replace(
        'name: "first" data_type: TYPE_INT32', 'name: "first" data_type: TYPE_FP32'
    ),
    "state_of_other_dims": with_state("dims: [ 2 ] zero_data: true"),
    "state_of_another_rank": with_state("dims: [ 1, 1 ] zero_data: true"),
    "state_of_variable_dims": config(controls=state("INT32", "-1", "dims: [ -1 ] zero_data: true")),
    "state_without_a_name": with_state("dims: [ 1 ] zero_data: true").replace('name: "first"', ""),
    "state_without_data": with_state("dims: [ 1 ]"),
    "state_without_its_file": with_state('dims: [ 1 ] data_file: "nowhere"'),
    "state_of_a_small_file": config(controls=state("INT32", "2", 'dims: [ 2 ] data_file: "first"')),
    "two_first_states": with_state(
        "dims: [ 1 ] zero_data: true",
        'initial_state: { name: "second" data_type: TYPE_INT32 dims: [ 1 ] zero_data: true }',
    ),
    "state_in_one_buffer": with_state("", "use_same_buffer_for_input_output: true"),
    "state_that_grows": with_state("", "use_growable_memory: true"),
}
FILES = {"state_of_a_small_file": SMALL_FILE}


MODULES = (
    scenarios_direct,
    scenarios_controls,
    scenarios_oldest,
    scenarios_life,
    scenarios_wire,
)
CASES = [
    *(
        Case(made.name, functools.partial(asked, made))
        for module in MODULES
        for made in module.scenario.made
    ),
    *(
        Case(f"load {name}", functools.partial(asked_to_load, name, config, FILES.get(name, {})))
        for name, config in CONFIGURATIONS.items()
    ),
]


def start(*, is_real: bool) -> AbstractContextManager[Server]:
    """A server that has no models yet."""
    return running(lambda folder: None, is_real=is_real, options=("--exit-timeout-secs=5",))


# A load of the real server now and then never ends on a busy machine.
SUITE = Suite(Path(__file__).parent, start, CASES, real_lives=3)

if __name__ == "__main__":
    sys.exit(SUITE.record(sys.argv[1:]))
