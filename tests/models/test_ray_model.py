# SPDX-License-Identifier: Apache-2.0
"""What `bind(..., instances=Ray(...))` makes of its arguments, without a server."""

from __future__ import annotations

import numpy as np
import pytest

from pytriton.binding.triton_base import MODEL_TIMEOUT_S, TritonBase
from pytriton.decorators.declaration import MODEL_ATTRIBUTE, ModelDeclaration
from pytriton.exceptions import PyTritonValidationError
from pytriton.model_config import ModelConfig, Ray, SequenceBatcher, Tensor
from pytriton.models.binding import BindArguments, make_model
from tests.models import importable

HERE = "tests.models.importable"
TENSOR = Tensor(name="x", dtype=np.float32, shape=(-1,))


def make(function, inputs=(TENSOR,), outputs=(TENSOR,), *, instances=None, name="m", **arguments):
    instances = Ray() if instances is None else instances
    return make_model(
        BindArguments(name, function, inputs, outputs, instances=instances, **arguments)
    )


def test_name_of_a_function_is_not_imported_if_the_tensors_are_given():
    model = make("no_such_module:function")

    assert model.ray.function.reference == "no_such_module:function"
    assert model.open_instances(lambda: None) == ([], [])


def test_function_is_sent_by_its_name_with_the_arguments_of_bind():
    instances = Ray(min=2, max=5, num_gpus=0.5, resources={"big": 1}, start_timeout_s=7)
    text = Tensor(dtype=str, shape=(1, -1), optional=True)
    ray = make(importable.plain, [TENSOR, text], instances=instances, strict=True).ray

    assert ray.function.reference == f"{HERE}:plain"
    assert ray.function.is_strict
    assert [(each.name, each.dtype, each.is_optional) for each in ray.function.inputs] == [
        ("x", "float32", False),
        (None, "str_", True),
    ]
    assert (ray.minimum, ray.maximum, ray.num_gpus, ray.start_timeout_s) == (2, 5, 0.5, 7)
    assert ray.resources == {"big": 1}


def test_settings_of_the_engine_are_parameters_of_the_configuration():
    model = make("m:f", instances=Ray(count=3, idempotent=True, no_instance_timeout_s=2.5))

    message = model.message()
    assert message["instance_group"] == [{"kind": "KIND_CPU", "count": 3}]
    assert message["parameters"] == {
        "IDEMPOTENT": {"string_value": "true"},
        "RAY_NO_INSTANCE_TIMEOUT_S": {"string_value": "2.5"},
    }
    assert "parameters" not in make("m:f", instances=Ray(no_instance_timeout_s=0)).message()


def test_annotations_and_declaration_are_read_here():
    model = make(f"{HERE}:halve", None, None)

    assert (model.version, model.config.max_batch_size) == (3, 16)
    assert [spec.name for spec in model.config.inputs] == ["x"]
    assert model.ray.function.inputs is None
    assert model.ray.function.is_strict


def test_declared_function_alone_has_its_name():
    model = make(None, None, None, name=importable.halve)

    assert (model.name, model.ray.function.reference) == ("half", f"{HERE}:halve")


def test_no_object_is_made_to_read_annotations():
    importable.made.clear()
    model = make(importable.Doubler, None, None)

    assert [spec.name for spec in model.config.inputs] == ["x"]
    assert importable.made == []


@pytest.mark.parametrize(
    "function, problem",
    [
        (f"{HERE}:factory", "Expected inputs and outputs for"),
        (f"{HERE}:Demanding", "constructed without arguments"),
        (f"{HERE}:missing", "AttributeError"),
        (f"{HERE}:value", "is of type int"),
        ("no_such_module:f", "give inputs and outputs"),
    ],
)
def test_tensors_that_cannot_be_read_here_are_refused(function, problem):
    with pytest.raises(PyTritonValidationError) as caught:
        make(function, None, None)

    assert problem in str(caught.value)


def test_list_of_functions_is_refused():
    with pytest.raises(PyTritonValidationError, match="one function for model 'm', got a list"):
        make([importable.plain, importable.plain])


@pytest.mark.parametrize("instances", [3, "ray", Ray])
def test_instances_of_another_type_are_refused(instances):
    with pytest.raises(PyTritonValidationError, match=r"Expected instances to be Ray\(...\)"):
        make(importable.plain, instances=instances)


def test_name_of_a_function_needs_instances_elsewhere():
    with pytest.raises(PyTritonValidationError, match="as with instances=Ray"):
        make_model(BindArguments("m", "m:f", [TENSOR], [TENSOR]))


def test_scaled_model_of_sequences_is_refused():
    config = ModelConfig(sequence=SequenceBatcher())

    with pytest.raises(PyTritonValidationError, match="a sequence stays with its instance"):
        make("m:f", config=config, instances=Ray(max=2))
    assert make("m:f", config=config, instances=Ray(count=2)).config.sequence is not None


def test_idempotent_model_of_sequences_is_refused():
    config = ModelConfig(sequence=SequenceBatcher())

    with pytest.raises(PyTritonValidationError, match="idempotent=False for model"):
        make("m:f", config=config, instances=Ray(idempotent=True))


@pytest.mark.parametrize("name", ["", "a b"])
def test_name_of_the_model_is_checked(name):
    with pytest.raises(PyTritonValidationError, match="Model name"):
        make("m:f", name=name)


def test_declaration_may_say_that_instances_run_elsewhere(monkeypatch):
    monkeypatch.setattr(importable.halve, MODEL_ATTRIBUTE, ModelDeclaration(instances=Ray(count=3)))
    model = make_model(BindArguments(importable.halve))

    assert model.ray.minimum == 3


class FakeServer:
    """Keeps how long it was waited for each model."""

    def __init__(self):
        self.timeouts_s = []

    def bind(self, model, on_unrecoverable, timeout_s):
        self.timeouts_s.append(timeout_s)

    def report_serving(self):
        """A fake server is always ready."""


def test_binding_process_waits_as_long_as_a_start_may_take():
    triton = TritonBase(None)
    triton._model_server = server = FakeServer()
    triton._is_connected = True
    triton.bind("far", "m:f", [TENSOR], [TENSOR], instances=Ray(start_timeout_s=200))
    triton.bind("near", importable.plain, [TENSOR], [TENSOR])

    assert server.timeouts_s == [MODEL_TIMEOUT_S + 200, MODEL_TIMEOUT_S]
