# SPDX-License-Identifier: Apache-2.0
"""The rules for ensembles have Triton's words; the texts were recorded from it."""

from __future__ import annotations

from typing import Any

import pytest

from pytriton.base.errors import InvalidArgumentError
from pytriton.base.protos import model_config_pb2
from pytriton.serving.engine.ensemble.ensemble_rules import (
    circular_dependency,
    complete_ensemble,
    composing_models,
    validate_ensemble,
    validate_steps,
)
from tests.engine.ensemble.ensemble_configs import ensemble_config, model_config, step

WARMUP = model_config_pb2.ModelWarmup(name="w", batch_size=1)
IN, OUT = {"IN": "X"}, {"OUT": "Y"}

MODELS = {
    config.name: config
    for config in (
        model_config("id"),
        model_config("id4", max_batch_size=4),
        model_config("id_5", dims=[5]),
        model_config("id_i", data_type="TYPE_INT32"),
        model_config("id_v", dims=[-1]),
        model_config("id_nb", max_batch_size=0),
        model_config("id_nb4", max_batch_size=0, dims=[-1, 4]),
        model_config("two", ["A", "B"]),
        model_config("two_opt", ["A", "B"], optional=["B"]),
        model_config("two_out", outputs=["OUT", "OUT2"]),
        model_config("dec", decoupled=True),
        model_config("dec2", decoupled=True),
    )
}


def refusal(config: Any) -> str:
    with pytest.raises(InvalidArgumentError) as caught:
        validate_ensemble(config)
    return caught.value.message


def step_refusal(*steps: Any, **fields: Any) -> str:
    config = ensemble_config(*steps, **fields)
    validate_ensemble(config)
    with pytest.raises(InvalidArgumentError) as caught:
        validate_steps(config, MODELS)
    return caught.value.message


@pytest.mark.parametrize(
    "config, message",
    [
        (
            ensemble_config(instance_group=[{"count": 1}]),
            "instance group should not be specified for ensemble 'e'",
        ),
        (ensemble_config(optimization={}), "optimization should not be specified for ensemble 'e'"),
        (
            ensemble_config(step("id", IN, OUT), model_warmup=[WARMUP]),
            "model_warmup can not be specified for ensemble 'e'",
        ),
        (ensemble_config(), "must specify 'step' for ensemble 'e'"),
        (
            ensemble_config(step("", IN, OUT)),
            "must specify 'model_name' in step 0 of ensemble 'e'",
        ),
        (
            ensemble_config(step("id", IN, {"OUT": "t"}), step("id", {}, {})),
            "must specify 'input_map' in step 1 of ensemble 'e'",
        ),
        (
            ensemble_config(step("id", IN, {})),
            "must specify 'output_map' in step 0 of ensemble 'e'",
        ),
        (
            ensemble_config(step("id", IN, OUT), step("id", IN, OUT)),
            "ensemble tensor 'Y' can appear in an output map only once for ensemble 'e' step 1",
        ),
        (
            ensemble_config(step("two_out", IN, {"OUT": "Y", "OUT2": "Y"}), step("", IN, OUT)),
            "ensemble tensor 'Y' can appear in an output map only once for ensemble 'e' step 0",
        ),
        (
            ensemble_config(step("id", IN, OUT), inputs=["X", "X2"], outputs=["Y", "Y2"]),
            "ensemble input 'X2' for ensemble e' is not used",
        ),
        (
            ensemble_config(step("id", IN, OUT), outputs=["Y", "Y2"]),
            "ensemble output 'Y2' for ensemble e' is not used",
        ),
        (
            ensemble_config(
                step("two", {"A": "X", "B": "lost"}, {"OUT": "b"}), step("id", {"IN": "b"}, OUT)
            ),
            (
                "output 'Y' for ensemble 'e' is not written: at least one of its depending "
                "tensors, 'lost', is not connected"
            ),
        ),
        (
            ensemble_config(step("two", {"A": "X", "B": "Y"}, OUT)),
            "output 'Y' for ensemble 'e' is not written",
        ),
        (
            ensemble_config(
                step("two", {"A": "X", "B": "b"}, {"OUT": "a"}),
                step("id", {"IN": "a"}, {"OUT": "b"}),
                step("id", {"IN": "a"}, OUT),
            ),
            (
                "output 'Y' for ensemble 'e' is not written: at least one of its depending "
                "tensors, 'b', is not connected"
            ),
        ),
        (
            ensemble_config(step("id", IN, {"OUT": "q"}), step("id", IN, OUT)),
            "ensemble tensor 'q' is unused in ensemble 'e'",
        ),
        (
            ensemble_config(step("id", IN, OUT), step("id", {"IN": "zz"}, {"OUT": "yy"})),
            "ensemble tensor 'zz' is unused in ensemble 'e'",
        ),
        (
            ensemble_config(step("id", IN, OUT), inputs=[], outputs=[]),
            "ensemble tensor 'X' is unused in ensemble 'e'",
        ),
    ],
)
def test_broken_ensemble_is_refused(config: Any, message: str) -> None:
    assert refusal(config) == message


@pytest.mark.parametrize(
    "config",
    [
        ensemble_config(step("id", {"IN": "t"}, OUT), step("id", IN, {"OUT": "t"})),
        ensemble_config(step("id", IN, OUT), outputs=["Y", "X"]),
        ensemble_config(step("two_out", IN, {"OUT": "Y", "OUT2": "X"})),
    ],
)
def test_unusual_ensemble_is_accepted(config: Any) -> None:
    # The check raises for what it refuses.
    validate_ensemble(config)


@pytest.mark.parametrize(
    "steps, fields, message",
    [
        (
            [step("id4", {"XX": "X"}, OUT)],
            {},
            (
                "ensemble e allows maximum batch size 8, but it contains model id4 which only "
                "allows maximum batch size to be 4"
            ),
        ),
        (
            [step("id", {"XX": "X"}, OUT)],
            {},
            "in ensemble e, ensemble tensor X is mapping to non-existing input XX in model id",
        ),
        (
            [step("id", IN, {"XX": "Y"})],
            {},
            "in ensemble e, ensemble tensor Y is mapped from non-existing output XX in model id",
        ),
        (
            [step("two", {"A": "X"}, OUT)],
            {},
            "in ensemble e, input B in model two is not mapped to any ensemble tensors",
        ),
        (
            [step("id_i", IN, {"XX": "Y"})],
            {},
            (
                "in ensemble e, ensemble tensor X: inconsistent data type: TYPE_FP32 is inferred "
                "from model e while TYPE_INT32 is inferred from model id_i"
            ),
        ),
        (
            [step("id", IN, {"OUT": "t"}), step("id_5", {"IN": "t"}, OUT)],
            {},
            (
                "in ensemble e, ensemble tensor t: inconsistent shape: [-1,4] is inferred from "
                "model id while [-1,5] is inferred from model id_5"
            ),
        ),
        (
            [step("id_nb4", IN, OUT)],
            {"max_batch_size": 0},
            (
                "in ensemble e, ensemble tensor X: inconsistent shape: [4] is inferred from model "
                "e while [-1,4] is inferred from model id_nb4"
            ),
        ),
        (
            [step("nope", IN, {"OUT": "t"}), step("nope2", {"IN": "t"}, OUT)],
            {},
            "ensemble e contains models that are not available or ambiguous: nope",
        ),
    ],
)
def test_steps_that_do_not_fit_are_refused(
    steps: list[Any], fields: dict[str, Any], message: str
) -> None:
    assert step_refusal(*steps, **fields) == message


DECOUPLED = step("dec", IN, {"OUT": "t"})


@pytest.mark.parametrize(
    "steps, outputs",
    [
        ([DECOUPLED, step("two", {"A": "t", "B": "X"}, OUT)], ["Y"]),
        ([DECOUPLED, step("id", IN, {"OUT": "u"}), step("two", {"A": "t", "B": "u"}, OUT)], ["Y"]),
        (
            [
                DECOUPLED,
                step("dec2", {"IN": "t"}, {"OUT": "u"}),
                step("two", {"A": "t", "B": "u"}, OUT),
            ],
            ["Y"],
        ),
        ([step("dec", IN, OUT), step("dec2", IN, {"OUT": "Y2"})], ["Y", "Y2"]),
        ([step("dec", IN, OUT)], ["Y", "X"]),
    ],
)
def test_tensors_of_different_decoupled_sources_do_not_meet(
    steps: list[Any], outputs: list[str]
) -> None:
    assert step_refusal(*steps, outputs=outputs) == (
        "in ensemble e, step of model 'e' receives inputs originated from different decoupled "
        "models"
    )


@pytest.mark.parametrize(
    "steps, fields",
    [
        ([step("id_nb", IN, OUT)], {}),
        ([step("id_nb4", IN, OUT)], {}),
        ([step("id", IN, OUT)], {"max_batch_size": 0}),
        ([step("id", IN, OUT)], {"max_batch_size": 0, "dims": [3, 4]}),
        ([step("id_v", IN, OUT)], {}),
        ([step("id", IN, OUT)], {"dims": [-1]}),
        ([step("two_opt", {"A": "X"}, OUT)], {}),
        ([step("two_out", IN, OUT)], {}),
        (
            [
                DECOUPLED,
                step("id", {"IN": "t"}, {"OUT": "u"}),
                step("id", {"IN": "t"}, {"OUT": "v"}),
                step("two", {"A": "u", "B": "v"}, OUT),
            ],
            {},
        ),
    ],
)
def test_steps_that_fit_are_accepted(steps: list[Any], fields: dict[str, Any]) -> None:
    # The check raises for what it refuses.
    validate_steps(ensemble_config(*steps, **fields), MODELS)


def test_ensemble_is_decoupled_if_a_step_is() -> None:
    said = {"model_transaction_policy": {"decoupled": True}}
    plain = complete_ensemble(ensemble_config(step("id", IN, OUT), **said), MODELS)
    decoupled = complete_ensemble(ensemble_config(step("dec", IN, OUT)), MODELS)

    assert not plain.model_transaction_policy.decoupled
    assert decoupled.model_transaction_policy.decoupled


def test_composing_models_are_named_once_in_the_order_of_steps() -> None:
    config = ensemble_config(
        step("b", IN, {"OUT": "t"}), step("a", {"IN": "t"}, {"OUT": "u"}, 3), step("b", IN, OUT)
    )

    assert composing_models(config) == [("b", -1), ("a", 3)]
    assert composing_models(MODELS["id"]) == []


def test_circular_dependency_names_the_ensemble_that_closes_the_circle() -> None:
    configs = {
        name: ensemble_config(step(other, {"X": "X"}, {"Y": "Y"}), name=name)
        for name, other in (("c0", "c1"), ("c1", "c2"), ("c2", "c3"), ("c3", "c1"), ("d", "id"))
    }

    text = "circular dependency between ensembles: c1 -> ... -> c3 -> c1"
    assert circular_dependency("c1", configs) == text
    assert circular_dependency("c0", configs) is None
    assert circular_dependency("d", configs) is None
