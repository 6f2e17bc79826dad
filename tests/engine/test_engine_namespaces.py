# SPDX-License-Identifier: Apache-2.0
"""How the engine finds models by name if several repositories have models of the same name."""

from __future__ import annotations

import asyncio

import pytest

from pytriton.base.errors import ErrorCode, ServerError
from pytriton.serving.engine.engine import Engine
from pytriton.serving.engine.model import UNLOADED, Model, VersionState
from tests.fakes import RecordingSink, model_spec, request

AMBIGUOUS = (
    "There are {} identifiers of model 'm' in global map, model namespace must be provided to "
    "resolve ambiguity."
)


@pytest.fixture
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture
def engine():
    return Engine(namespacing=True)


@pytest.fixture
def add(engine, loop):
    """Adds a model that serves; without a namespace it is a bound one."""

    def add(namespace: str, name: str = "m", version: int = 1) -> Model:
        spec = model_spec(name=name, version=version, namespace=namespace)
        model = Model(spec, loop, is_bound=not namespace)
        engine.add(model)
        engine.set_ready(model)
        return model

    return add


def refusal(engine: Engine, name: str = "m", version: str = "") -> tuple[ErrorCode, str]:
    with pytest.raises(ServerError) as caught:
        engine.lookup(name, version)
    return caught.value.code, caught.value.message


def test_name_of_one_model_is_enough(engine, add):
    model = add("/a")

    assert engine.lookup("m") is engine.lookup("m", "1") is model
    assert engine.ready_versions("m") == [1]
    assert engine.models_with_statistics("m") == [model]


def test_name_of_several_models_is_ambiguous(engine, add):
    add("/a")
    add("/b")
    add("/c", "other")

    assert refusal(engine) == (ErrorCode.INVALID_ARG, AMBIGUOUS.format(2))
    assert refusal(engine, version="1") == (ErrorCode.INVALID_ARG, AMBIGUOUS.format(2))
    assert engine.find("m") is None
    assert not engine.is_model_ready("m")
    assert engine.ready_versions("m") == []
    with pytest.raises(ServerError, match="requested model 'm' is not available"):
        engine.models_with_statistics("m")


def test_identifier_finds_one_of_several(engine, add):
    first, second = add("/a"), add("/b")

    assert engine.lookup("/a::m") is first
    assert engine.lookup("/b::m", "1") is second
    assert engine.ready_versions("/b::m") == [1]
    assert [model.spec.namespace for model in engine.models()] == ["/a", "/b"]


def test_request_with_an_identifier_reaches_its_model(engine, add):
    add("/a")
    second = add("/b")
    sink = RecordingSink()

    assert engine.infer(request(model_name="/b::m"), sink).owner is second


def test_name_that_became_ambiguous_is_not_remembered(engine, add):
    add("/a")
    engine.lookup("m")

    add("/b")

    assert refusal(engine) == (ErrorCode.INVALID_ARG, AMBIGUOUS.format(2))


def test_model_that_was_unloaded_does_not_count(engine, add):
    first, second = add("/a"), add("/b")

    second.withdraw()
    assert engine.lookup("m") is first
    first.withdraw()

    text = "Identifier of model 'm' is not found in global map"
    assert refusal(engine) == (ErrorCode.NOT_FOUND, text)


def test_model_that_failed_counts(engine, add, loop):
    add("/a")
    broken = Model(model_spec(namespace="/b"), loop)
    engine.add(broken)
    broken.become(VersionState.UNAVAILABLE, "boom")

    assert refusal(engine) == (ErrorCode.INVALID_ARG, AMBIGUOUS.format(2))


def test_unknown_name_is_an_invalid_argument(engine):
    text = "Request for unknown model: 'm' is not found"

    assert refusal(engine) == (ErrorCode.INVALID_ARG, text)
    assert refusal(Engine()) == (ErrorCode.NOT_FOUND, text)


def test_errors_have_the_namespace(engine, add):
    model = add("/a")
    assert refusal(engine, version="7") == (
        ErrorCode.NOT_FOUND,
        "Request for unknown model: '/a::m' version 7 is not found",
    )

    model.become(VersionState.UNLOADING)
    model.become(VersionState.UNAVAILABLE, "boom")

    assert refusal(engine) == (
        ErrorCode.NOT_FOUND,
        "Request for unknown model: '/a::m' has no available versions (version 1: boom)",
    )
    assert refusal(engine, version="1") == (
        ErrorCode.UNAVAILABLE,
        "Request for unknown model: '/a::m' version 1 is not at ready state (version 1: boom)",
    )


def test_bound_model_has_the_name_and_the_others_their_identifiers(engine, add):
    first = add("/a")
    bound = add("")

    assert engine.lookup("m") is bound
    assert engine.lookup("/a::m") is first
    engine.remove(bound)
    assert engine.lookup("m") is first


def test_removed_model_is_forgotten(engine, add):
    first, second = add("/a"), add("/b")

    engine.remove(first)

    assert engine.lookup("m") is second


def test_nearest_is_the_model_of_the_own_namespace(engine, add):
    add("/a")
    second = add("/b")
    add("/b", "other")

    assert engine.nearest("m", "/b") == "/b::m"
    assert engine.nearest("other", "/a") == "other"
    assert engine.nearest("m", "") == "m"
    second.become(VersionState.UNLOADING)
    second.become(VersionState.UNAVAILABLE, UNLOADED)
    assert engine.nearest("m", "/b") == "m"
    add("")
    assert engine.nearest("m", "/a") == "m"
