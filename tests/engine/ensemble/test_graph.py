# SPDX-License-Identifier: Apache-2.0
"""What an ensemble's run needs to know is read from the configurations."""

from __future__ import annotations

from pytriton.serving.engine.ensemble.graph import EnsembleGraph, make_graph
from tests.engine.ensemble.ensemble_configs import ensemble_config, model_config, step

MODELS = {
    config.name: config
    for config in (
        model_config("id"),
        model_config("plain", max_batch_size=0),
        model_config("two", ["A", "B"], optional=["B"]),
        model_config("dec", decoupled=True),
    )
}


def diamond() -> EnsembleGraph:
    config = ensemble_config(
        step("two", {"B": "u", "A": "t"}, {"OUT": "Y"}, 3),
        step("id", {"IN": "X"}, {"OUT": "t"}),
        step("plain", {"IN": "X"}, {"OUT": "u"}),
        step("id", {"IN": "t"}, {"OUT": "Z"}),
        outputs=["Y", "Z"],
        max_inflight_requests=2,
    )
    return make_graph(config, MODELS)


def test_graph_has_the_inputs_of_a_step_in_the_order_of_its_model() -> None:
    step = diamond().steps[0]

    assert [(each.name, each.tensor, each.rank) for each in step.inputs] == [
        ("A", "t", 1),
        ("B", "u", 1),
    ]
    assert step.version == "3"


def test_graph_knows_who_reads_and_who_writes_a_tensor() -> None:
    graph = diamond()

    assert graph.readers == {"t": (0, 3), "u": (0,), "X": (1, 2)}
    assert graph.writers == {"Y": 0, "t": 1, "u": 2, "Z": 3}
    assert graph.max_inflight == 2


def test_graph_names_the_steps_that_outputs_need() -> None:
    graph = diamond()

    assert graph.needed_steps(["Y"]) == {0, 1, 2}
    assert graph.needed_steps(["Z"]) == {1, 3}
    assert graph.needed_steps(["Y", "Z"]) == {0, 1, 2, 3}
    assert graph.needed_steps(["X"]) == set()


def test_graph_is_decoupled_if_a_step_is() -> None:
    config = ensemble_config(step("dec", {"IN": "X"}, {"OUT": "Y"}))

    assert make_graph(config, MODELS).decoupled
    assert not diamond().decoupled


def test_graph_counts_the_decoupled_steps_before_a_tensor() -> None:
    config = ensemble_config(
        step("dec", {"IN": "X"}, {"OUT": "t"}),
        step("id", {"IN": "t"}, {"OUT": "u"}),
        step("dec", {"IN": "u"}, {"OUT": "Y"}),
    )
    graph = make_graph(config, MODELS)

    assert [graph.depth(tensor) for tensor in ("X", "t", "u", "Y")] == [0, 1, 1, 2]


def test_tensor_has_a_batch_dimension_if_its_writer_has_one() -> None:
    graph = diamond()

    assert graph.has_batch_dimension("X")
    assert graph.has_batch_dimension("t")
    assert not graph.has_batch_dimension("u")
