# SPDX-License-Identifier: Apache-2.0
import functools

import numpy as np
import pytest
import wrapt

from pytriton.decorators import (
    ModelConfigDict,
    TritonContext,
    batch,
    get_model_config,
    get_triton_context,
    triton_context,
)
from pytriton.exceptions import PyTritonRuntimeError, PyTritonValidationError
from pytriton.model_config.triton_model_config import TritonModelConfig
from pytriton.models.model import _inject_triton_context
from pytriton.proxy.types import Request
from tests.decorators.binding import bound


class Model:
    @triton_context
    def __call__(self, **inputs):
        return inputs

    @batch
    @triton_context
    def first(self, a, triton_context):
        return {"x": a * triton_context.model_config.model_version}

    @triton_context
    def second(self, **inputs):
        return inputs


def test_configs_know_all_layers_of_a_callable():
    def function():
        pass

    layered = batch(triton_context(function))
    configs = ModelConfigDict()
    configs[layered] = TritonModelConfig("m")

    assert configs[function] is configs[triton_context(function)] is configs[layered]
    assert list(configs) == [layered]
    assert len(configs) == 1


def test_configs_know_an_object_by_its_call_and_its_methods_apart():
    model = Model()
    configs = ModelConfigDict()
    configs[model] = TritonModelConfig("object")
    configs[model.first] = TritonModelConfig("first")
    configs[model.second] = TritonModelConfig("second")

    assert configs[model.__call__].model_name == "object"
    assert configs[model.first].model_name == "first"
    assert configs[model.second].model_name == "second"


def test_configs_know_two_objects_apart():
    configs = ModelConfigDict()
    first, second = Model(), Model()
    configs[first] = TritonModelConfig("first")

    assert second not in configs
    with pytest.raises(KeyError, match="Model object"):
        configs[second]


def test_configs_forget_what_is_deleted():
    configs = ModelConfigDict()
    configs[len] = TritonModelConfig("m")

    del configs[len]

    assert dict(configs) == {}


def test_context_is_passed_as_keyword():
    context = TritonContext()
    infer = bound(triton_context(lambda **inputs: inputs), context=context)

    assert infer(a=1) == {"a": 1, "triton_context": context}
    assert infer()["triton_context"] is context


def test_context_reaches_objects_and_methods():
    model = bound(Model())
    context = get_triton_context(model.__call__, model)

    assert model()["triton_context"] is context
    assert model.second()["triton_context"] is context


def test_context_gives_the_config_of_the_only_model():
    infer = bound(triton_context(lambda triton_context: triton_context.model_config))

    assert infer().model_name == "model"


def test_context_gives_the_config_of_the_calling_model():
    context, model = TritonContext(), Model()
    bound(model.first, context=context, model_version=2)
    bound(model.second, context=context, model_version=3)

    assert model.first([Request({"a": np.ones((1, 1))})])[0]["x"].tolist() == [[2]]
    assert model.second()["triton_context"].model_config.model_version == 3


def test_context_of_several_models_has_no_single_config():
    context = TritonContext()
    with pytest.raises(PyTritonRuntimeError, match="context of one model, got 0"):
        _ = context.model_config

    bound(lambda: None, context=context)
    bound(lambda: None, context=context)
    with pytest.raises(PyTritonRuntimeError, match="context of one model, got 2"):
        _ = context.model_config


def test_callable_that_is_not_bound_has_no_context():
    expected = "Wrapped function or object must bound with triton to get  __triton_context__"
    with pytest.raises(PyTritonValidationError, match=expected):
        triton_context(lambda **inputs: inputs)()
    with pytest.raises(PyTritonValidationError, match=expected):
        Model()()


def test_custom_decorators_find_the_model():
    @wrapt.decorator
    def with_name(wrapped, instance, args, kwargs):
        return wrapped(*args, name=get_model_config(wrapped, instance).model_name, **kwargs)

    @batch
    @with_name
    def infer(a, name):
        return {name: a}

    (response,) = bound(infer)([Request({"a": np.ones((1, 1))})])

    assert list(response) == ["model"]


def test_context_passes_decorators_of_the_standard_library():
    def with_nothing(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs)

        return wrapper

    infer = with_nothing(batch(with_nothing(triton_context(_name_of_model))))

    (response,) = bound(infer)([Request({"a": np.ones((1, 1))})])

    assert list(response) == ["model"]


def _name_of_model(a, triton_context):
    return {triton_context.model_config.model_name: a}


def test_context_is_set_on_the_callable_and_the_callable_returned():
    def infer():
        pass

    context = TritonContext()

    assert _inject_triton_context(context, infer) is infer
    assert infer.__triton_context__ is context


def test_context_set_on_the_outermost_layer_reaches_all():
    infer = batch(triton_context(_name_of_model))
    context = TritonContext()
    context.model_configs[infer] = TritonModelConfig("model")

    infer.__triton_context__ = context

    assert list(infer([Request({"a": np.ones((1, 1))})])[0]) == ["model"]


def test_callable_without_attributes_is_refused():
    with pytest.raises(PyTritonValidationError, match="attributes can be set on, got <built-in"):
        _inject_triton_context(TritonContext(), len)
