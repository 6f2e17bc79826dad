# SPDX-License-Identifier: Apache-2.0
"""Ensembles that are refused, each for one reason, and a few beside them that are not."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.ensemble_differential.ensembles import (
    ADDING,
    BATCHED,
    CACHED,
    DECOUPLED,
    ONE_OF_B,
    ONE_OF_C,
    REPEATING,
    TOLD,
    A,
    B,
    C,
)
from tests.ensemble_differential.text_format import Step, ensemble, tensor

SUM_OF_A = {"LEFT": "A", "RIGHT": "A"}


def of_steps(*steps: Step, more: str = "") -> str:
    """An ensemble from A to B."""
    return ensemble([A], [B], steps, more)


def written(scheduling: str) -> str:
    """An ensemble from A to B with this text for its steps."""
    return f'platform: "ensemble"\ninput [ {A} ]\noutput [ {B} ]\n{scheduling}\n'


def adding(model: str = "add_one", version: int = -1) -> Step:
    return Step(model, {"IN": "A"}, {"OUT": "B"}, version)


def of_ensemble(name: str) -> str:
    return of_steps(Step(name, {"A": "A"}, {"B": "B"}))


BY_THEMSELVES = {
    "no_step": written("ensemble_scheduling { }"),
    "no_scheduling": written(""),
    "no_model_name": written(
        'ensemble_scheduling { step { input_map { key: "IN" value: "A" }'
        ' output_map { key: "OUT" value: "B" } } }'
    ),
    "no_input_map": written(
        'ensemble_scheduling { step { model_name: "add_one"'
        ' output_map { key: "OUT" value: "B" } } }'
    ),
    "no_output_map": written(
        'ensemble_scheduling { step { model_name: "add_one" input_map { key: "IN" value: "A" } } }'
    ),
    "written_twice": of_steps(ADDING, ADDING),
    "written_twice_by_one_step": of_steps(
        Step("sum_of_two", SUM_OF_A, {"SUM": "B", "DIFFERENCE": "B"})
    ),
    "with_instance_group": of_steps(ADDING, more="instance_group [ { kind: KIND_CPU } ]"),
    "with_optimization": of_steps(ADDING, more="optimization { priority: PRIORITY_MAX }"),
    "with_warmup": of_steps(
        ADDING,
        more='model_warmup [ { name: "w" batch_size: 1 inputs { key: "A"'
        " value { data_type: TYPE_INT32 dims: [ 1 ] zero_data: true } } } ]",
    ),
    "unused_input": ensemble([A, C], [B], [ADDING]),
    "unused_output": ensemble([A], [B, C], [ADDING]),
    "output_not_written": of_steps(
        Step("add_one", {"IN": "A"}, {"OUT": "C"}), Step("add_one", {"IN": "B"}, {"OUT": "D"})
    ),
    "not_connected": of_steps(Step("sum_of_two", {"LEFT": "A", "RIGHT": "LOST"}, {"SUM": "B"})),
    "not_connected_further_up": of_steps(
        Step("sum_of_two", {"LEFT": "A", "RIGHT": "LOST"}, {"SUM": "C"}),
        Step("add_one", {"IN": "C"}, {"OUT": "B"}),
    ),
    "step_after_itself": of_steps(
        Step("sum_of_two", {"LEFT": "A", "RIGHT": "C"}, {"SUM": "B", "DIFFERENCE": "C"})
    ),
    "unused_tensor": of_steps(ADDING, Step("add_one", {"IN": "B"}, {"OUT": "C"})),
    "unused_second_output": of_steps(Step("sum_of_two", SUM_OF_A, {"SUM": "B", "DIFFERENCE": "C"})),
    "without_inputs": ensemble([], [B], [ADDING]),
    "without_outputs": ensemble([A], [], [ADDING]),
    "with_python_backend": of_steps(ADDING).replace("platform: ", 'backend: "python" platform: '),
    "not_an_ensemble": of_steps(ADDING).replace('platform: "ensemble"', 'backend: "python"'),
    "cached_and_decoupled": ensemble(
        [A], [ONE_OF_B], [Step("repeat", {"IN": "A"}, {"OUT": "B"})], f"{CACHED} {DECOUPLED}"
    ),
    "other_name": 'name: "another"\n' + of_steps(ADDING),
}

BESIDE_THEIR_STEPS = {
    "batch_too_large": of_steps(ADDING, more="max_batch_size: 16"),
    "no_such_input": of_steps(Step("add_one", {"IN": "A", "NO": "A"}, {"OUT": "B"})),
    "no_such_output": of_steps(Step("add_one", {"IN": "A"}, {"NO": "B"})),
    "input_not_mapped": of_steps(Step("sum_of_two", {"LEFT": "A"}, {"SUM": "B"})),
    "type_of_input": ensemble([tensor("A", "FP32")], [B], [ADDING]),
    "type_of_output": ensemble([A], [tensor("B", "FP32")], [ADDING]),
    "type_between": of_steps(
        Step("telling", {"LEFT": "A"}, {"TOLD": "TEXT"}),
        Step("add_one", {"IN": "TEXT"}, {"OUT": "B"}),
    ),
    "shape_of_input": ensemble([tensor("A", dims="2, 2")], [B], [ADDING], "max_batch_size: 4"),
    "shape_of_input_without_batches": ensemble([tensor("A", dims="2, 2, 2")], [B], [ADDING]),
    "fixed_shape_of_input": ensemble(
        [tensor("A", dims="3")], [ONE_OF_B], [Step("square", {"IN": "A"}, {"OUT": "B"})], DECOUPLED
    ),
    "shape_of_output": ensemble(
        [A], [tensor("B", dims="2")], [Step("square", {"IN": "A"}, {"OUT": "B"})], DECOUPLED
    ),
    "reshaped_input": ensemble(
        [tensor("A", dims="1", more="reshape { shape: [ ] }")], [B], [ADDING]
    ),
    "two_decoupled_inputs": of_steps(
        Step("repeat", {"IN": "A"}, {"OUT": "X"}),
        Step("repeat", {"IN": "A"}, {"OUT": "Y"}),
        Step("sum_of_two", {"LEFT": "X", "RIGHT": "Y"}, {"SUM": "B"}),
    ),
    "two_decoupled_outputs": ensemble(
        [A],
        [ONE_OF_B, ONE_OF_C],
        [
            Step("repeat", {"IN": "A"}, {"OUT": "B"}),
            Step("repeat", {"IN": "A"}, {"OUT": "C"}),
        ],
        DECOUPLED,
    ),
    "each_with_the_whole": ensemble(
        [A],
        [TOLD],
        [REPEATING, Step("telling", {"LEFT": "A", "RIGHT": "EACH"}, {"TOLD": "TOLD"})],
        DECOUPLED,
    ),
    "repeat_and_once": ensemble(
        [A],
        [ONE_OF_B, C],
        [
            Step("repeat", {"IN": "A"}, {"OUT": "B"}),
            Step("plain_add_one", {"IN": "A"}, {"OUT": "C"}),
        ],
        DECOUPLED,
    ),
    "unknown_model": of_steps(adding("nowhere")),
    "of_version_7": of_steps(adding(version=7)),
    "of_version_0": of_steps(adding(version=0)),
    "of_broken_model": of_steps(adding("broken")),
    "of_itself": of_ensemble("of_itself"),
    "circle_one": of_ensemble("circle_two"),
    "circle_two": of_ensemble("circle_one"),
    "of_refused_ensemble": of_ensemble("batch_too_large"),
    "of_ensemble_of_unknown_model": of_ensemble("unknown_model"),
}

ACCEPTED = {
    "shape_that_fits_with_the_batch": ensemble(
        [tensor("A", dims="2, 2")], [tensor("B", dims="-1, -1")], [ADDING]
    ),
    "smaller_batches": of_steps(ADDING, more="max_batch_size: 4"),
    "plain_step_in_batches": ensemble(
        [A], [TOLD], [Step("telling", {"LEFT": "A"}, {"TOLD": "TOLD"})], BATCHED
    ),
    "variable_for_fixed_shape": ensemble(
        [A], [B], [Step("square", {"IN": "A"}, {"OUT": "B"})], DECOUPLED
    ),
    "input_also_written": of_steps(ADDING, Step("add_one", {"IN": "B"}, {"OUT": "A"})),
    "with_parameters": of_steps(ADDING, more='parameters { key: "a" value { string_value: "b" } }'),
}

REFUSED = {**BY_THEMSELVES, **BESIDE_THEIR_STEPS}


def write_refused(folder: Path) -> None:
    """All of them, in `folder`, and the models that are only for them."""
    for name, config in {**REFUSED, **ACCEPTED, "without_version": of_steps(ADDING)}.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(config)
    (folder / "without_version" / "1").rmdir()
    shutil.copytree(folder / "add_one", folder / "broken")
    (folder / "broken" / "1" / "model.py").write_text('raise RuntimeError("cannot be imported")\n')
