# SPDX-License-Identifier: Apache-2.0
"""The decorator `model`: what it declares, and that it changes nothing else."""

from __future__ import annotations

import re

import pytest

from pytriton.decorators import model
from pytriton.decorators.declaration import ModelDeclaration, declaration_of
from pytriton.exceptions import PyTritonBadParameterError, PyTritonValidationError
from pytriton.model_config import DynamicBatcher, ModelConfig, OpenAI


def test_declared_function_is_the_same_function():
    def add(a: float, b: float) -> float:
        return a + b

    assert model(add) is add
    assert add(1, 2) == 3
    assert declaration_of(add) == ModelDeclaration()


def test_settings_are_declared():
    @model(name="Sum", max_batch_size=8, instances=2)
    class Total:
        def __call__(self, a: float) -> float: ...

    assert declaration_of(Total) == ModelDeclaration("Sum", max_batch_size=8, instances=2)


def test_subclass_is_not_declared_with_its_base():
    @model
    class Total:
        def __call__(self, a: float) -> float: ...

    class Special(Total): ...

    assert declaration_of(Special) is None


def test_model_has_no_batches_unless_it_has_a_size():
    assert not ModelDeclaration().model_config().batching
    assert ModelDeclaration(max_batch_size=8).model_config().max_batch_size == 8


def test_size_and_delay_are_added_to_the_config():
    batcher = DynamicBatcher(preferred_batch_size=[4])
    declaration = ModelDeclaration(
        max_batch_size=8,
        batch_delay_us=100,
        config=ModelConfig(response_cache=True, batcher=batcher),
    )

    config = declaration.model_config()

    assert config.response_cache
    assert config.batcher == DynamicBatcher(100, [4])


@pytest.mark.parametrize(
    "settings, problem",
    [
        ({"max_batch_size": 0}, "Expected max_batch_size to be an integer of at least 1, got 0"),
        (
            {"instances": "2"},
            "Expected instances to be an integer of at least 1 or Ray(...), got '2'",
        ),
        ({"batch_delay_us": 5}, "Expected max_batch_size together with batch_delay_us"),
    ],
)
def test_wrong_settings_are_refused(settings, problem):
    with pytest.raises(PyTritonValidationError, match=re.escape(problem)):
        model(**settings)


@pytest.mark.parametrize("thing", [5, len])
def test_only_functions_and_classes_are_declared(thing):
    with pytest.raises(PyTritonValidationError, match="Expected @model on a function or a class"):
        model(thing)


def test_routes_of_openai_are_added_to_the_config():
    declaration = ModelDeclaration(openai="chat", config=ModelConfig(response_cache=True))

    config = declaration.model_config()

    assert (config.openai, config.response_cache) == (OpenAI(chat=True), True)
    assert ModelDeclaration(openai="embeddings").model_config().openai == OpenAI(embeddings=True)
    with pytest.raises(PyTritonBadParameterError, match="got 'talk'"):
        ModelDeclaration(openai="talk")


def test_unknown_setting_is_named_with_the_known_ones_and_the_closest():
    with pytest.raises(TypeError, match=r"name, .* got max_batch\. Did you mean max_batch_size\?"):
        model(max_batch=4)
