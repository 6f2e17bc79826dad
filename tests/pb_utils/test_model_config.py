# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import re

import pytest
from triton_python_backend_utils import ModelConfig

FP32 = {"name": "A", "data_type": "TYPE_FP32", "dims": [4]}
WHERE = "in auto-complete-config function for model 'm'"


def make(**fields):
    return ModelConfig(json.dumps({"name": "m", **fields}))


def refused(text):
    return pytest.raises(ValueError, match=f"^{re.escape(text)}$")


def test_dict_is_the_configuration_itself():
    config = make(max_batch_size=4)
    config.as_dict()["backend"] = "python"

    assert config.as_dict() == {"name": "m", "max_batch_size": 4, "backend": "python"}
    assert config._model_config is config.as_dict()


@pytest.mark.parametrize("configured", [0, 4, 8])
def test_batch_size_can_grow(configured):
    config = make(max_batch_size=configured)
    config.set_max_batch_size(8)

    assert config.as_dict()["max_batch_size"] == 8


def test_batch_size_does_not_shrink():
    with refused(
        "configuration specified max_batch_size 4, but in auto-complete-config function for model"
        " 'm' specified max_batch_size 2"
    ):
        make(max_batch_size=4).set_max_batch_size(2)


def test_dynamic_batching_is_added():
    config = make()
    config.set_dynamic_batching()

    assert config.as_dict()["dynamic_batching"] == {}


def test_dynamic_batching_that_is_there_stays():
    config = make(dynamic_batching={"preferred_batch_size": [4]})
    config.set_dynamic_batching()

    assert config.as_dict()["dynamic_batching"] == {"preferred_batch_size": [4]}


@pytest.mark.parametrize("scheduler", ["sequence_batching", "ensemble_scheduling"])
def test_another_scheduler_is_not_replaced(scheduler):
    with refused(
        f"Configuration specified scheduling_choice as '{scheduler}', but auto-complete-config"
        " function for model 'm' tries to set scheduling_choice as 'dynamic_batching'"
    ):
        make(**{scheduler: {}}).set_dynamic_batching()


@pytest.mark.parametrize("kind", ["input", "output"])
@pytest.mark.parametrize("has_list", [True, False])
def test_tensor_is_added(kind, has_list):
    config = make(**({kind: []} if has_list else {}))
    getattr(config, f"add_{kind}")(FP32)

    assert config.as_dict()[kind] == [FP32]


@pytest.mark.parametrize("kind", ["input", "output"])
def test_tensor_that_is_there_is_completed(kind):
    entry = {"name": "A", "data_type": "TYPE_INVALID", "dims": [], "label_filename": "x"}
    config = make(**{kind: [entry]})
    getattr(config, f"add_{kind}")(FP32)

    assert config.as_dict()[kind] == [{**entry, **FP32}]


def test_input_may_be_optional():
    config = make(input=[])
    config.add_input({**FP32, "optional": True})

    assert config.as_dict()["input"][0]["optional"] is True


@pytest.mark.parametrize(
    "kind, known",
    [
        ("input", "'name', 'data_type', 'dims' and 'optional'"),
        ("output", "'name', 'data_type' and 'dims'"),
    ],
)
def test_unknown_property_is_refused(kind, known):
    with refused(f"{kind} 'A' {WHERE} contains property other than {known}."):
        getattr(make(), f"add_{kind}")({**FP32, "shape": [4]})


@pytest.mark.parametrize("kind", ["input", "output"])
@pytest.mark.parametrize("missing", ["name", "data_type", "dims"])
def test_missing_property_is_refused(kind, missing):
    tensor = {key: value for key, value in FP32.items() if key != missing}
    who = kind if missing == "name" else f"{kind} 'A'"
    with refused(f"{who} {WHERE} is missing '{missing}' property."):
        getattr(make(), f"add_{kind}")(tensor)


@pytest.mark.parametrize("kind", ["input", "output"])
def test_other_datatype_is_refused(kind):
    config = make(**{kind: [{**FP32, "data_type": "TYPE_INT8"}]})
    with refused(
        f"unable to load model 'm', configuration expects datatype TYPE_INT8 for {kind} 'A', model"
        " provides TYPE_FP32"
    ):
        getattr(config, f"add_{kind}")(FP32)


@pytest.mark.parametrize("kind", ["input", "output"])
def test_other_dims_are_refused(kind):
    config = make(**{kind: [{**FP32, "dims": [2]}]})
    with refused(
        "model 'm', tensor 'A': the model expects dims [4] but the model configuration specifies"
        " dims [2]"
    ):
        getattr(config, f"add_{kind}")(FP32)


def test_input_that_is_needed_does_not_become_optional():
    config = make(input=[{**FP32, "optional": False}])
    with refused(
        "model 'm', tensor 'A': the model expects optional True but the model configuration"
        " specifies optional False"
    ):
        config.add_input({**FP32, "optional": True})


@pytest.mark.parametrize("fields", [{}, {"model_transaction_policy": {"decoupled": True}}])
def test_model_is_made_decoupled(fields):
    config = make(**fields)
    config.set_model_transaction_policy({"decoupled": True})

    assert config.as_dict()["model_transaction_policy"] == {"decoupled": True}


def test_empty_policy_changes_nothing():
    config = make()
    config.set_model_transaction_policy({})

    assert config.as_dict() == {"name": "m"}


def test_decoupled_is_not_changed():
    with refused(
        "trying to change decoupled property in auto-complete-config for model 'm', which is"
        " already set to 'False'."
    ):
        make(model_transaction_policy={"decoupled": False}).set_model_transaction_policy(
            {"decoupled": True}
        )


def test_policy_knows_only_decoupled():
    with refused(f"model transaction property {WHERE} contains property other than 'decoupled'."):
        make().set_model_transaction_policy({"decoupled": True, "other": 1})
