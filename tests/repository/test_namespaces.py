# SPDX-License-Identifier: Apache-2.0
"""Models of the same name in several repositories, with a loader without processes."""

from __future__ import annotations

import asyncio
import logging
import shutil

import pytest

from pytriton.base.errors import InternalError, InvalidArgumentError
from pytriton.serving.engine.client import IndexEntry
from tests.repository.binding import bind, unbind
from tests.repository.ensemble_files import write_ensemble, write_step
from tests.repository.scene import CODE, write_code, write_model

A, B, C = "A", "B", "C"  # the namespaces


@pytest.fixture
def folders(repository, tmp_path):
    others = [tmp_path / "second", tmp_path / "third"]
    for folder in others:
        folder.mkdir()
    return repository, *others


@pytest.fixture
def spaces(scene, folders):
    """Makes scenes of three repositories."""
    return lambda **settings: scene(*folders[1:], namespaces=(A, B, C), **settings)


def rows(it, name: str | None = None) -> list[tuple[str, str, str]]:
    return [(row.namespace, row.name, row.state) for row in it.rows(name)]


def ready(it) -> str:
    return " ".join(sorted(model.spec.identifier for model in it.engine.models() if model.is_ready))


def steps_of(it, identifier: str) -> list[str]:
    """The models that the newest version of an ensemble was made of."""
    (loaded,) = it.models._models.lifecycles[identifier]._loaded.values()
    return sorted(model.spec.identifier for model in loaded.steps.models.values())


def test_all_models_are_loaded_at_the_start(spaces, folders, caplog):
    write_model(folders[0])
    write_model(folders[1])
    write_model(folders[1], "n")
    caplog.set_level(logging.INFO)
    it = spaces(mode="none")

    it.run(it.models.start())

    assert rows(it) == [(A, "m", "READY"), (B, "m", "READY"), (B, "n", "READY")]
    assert it.models.is_ready()
    assert {"loading: A::m:1", "successfully loaded 'B::m'"} <= set(caplog.messages)
    plans = [each.plan for each in it.loader.alive]
    assert sorted((plan.namespace, plan.name) for plan in plans) == [(A, "m"), (B, "m"), (B, "n")]


def test_load_and_unload_by_name_concern_all_namespaces(spaces, folders):
    write_model(folders[0])
    write_model(folders[1])
    write_model(folders[1], "n")
    it = spaces()

    it.load()
    assert ready(it) == "A::m B::m"
    it.unload()

    it.until(lambda: not it.loader.alive)
    assert rows(it) == [(A, "m", "UNAVAILABLE"), (B, "m", "UNAVAILABLE"), (B, "n", "")]


def test_startup_models_are_loaded_from_all_namespaces(spaces, folders):
    write_model(folders[0])
    write_model(folders[2])
    write_model(folders[1], "n")
    it = spaces(startup_models=("m",))

    it.run(it.models.start())

    assert ready(it) == "A::m C::m"


def test_index_lists_models_by_namespace(spaces, folders):
    write_model(folders[1], "a")
    write_model(folders[0], "b")
    it = spaces()
    it.load("b")

    assert it.rows() == [
        IndexEntry("b", "1", "READY", namespace=A),
        IndexEntry("a", namespace=B),
    ]
    assert it.models.index(ready=True) == [IndexEntry("b", "1", "READY", namespace=A)]


def test_failures_of_all_namespaces_are_in_the_answer(spaces, folders):
    write_model(folders[0])
    write_model(folders[1])
    write_model(folders[2])
    it = spaces()

    async def fail(plan):
        if plan.namespace != C:
            raise InternalError(f"boom of {plan.namespace}")

    it.loader.on_load = fail

    error = it.refusal()

    assert error.message == (
        "load failed for model 'A::m': version 1 is at UNAVAILABLE state: Internal: boom of A;\n"
        "load failed for model 'B::m': version 1 is at UNAVAILABLE state: Internal: boom of B;\n"
    )
    assert ready(it) == "C::m"


def test_poll_follows_the_files_of_each_namespace(spaces, folders):
    first = write_model(folders[0])
    it = spaces(mode="poll")
    it.run(it.models.poll_once())

    write_model(folders[1])
    write_code(first)
    it.run(it.models.poll_once())
    assert ready(it) == "A::m B::m"
    assert len(it.loader.asked) == 3
    shutil.rmtree(first)
    it.run(it.models.poll_once())

    it.until(lambda: ready(it) == "B::m")
    assert it.engine.lookup("m").spec.namespace == B


# Ensembles


def test_ensembles_find_the_models_of_their_own_namespace(spaces, folders):
    for folder in folders[:2]:
        write_step(folder, "m")
        write_ensemble(folder, "e", "m")
    it = spaces(mode="none")

    it.run(it.models.start())

    assert ready(it) == "A::e A::m B::e B::m"
    assert steps_of(it, "A::e") == ["A::m"]
    assert steps_of(it, "B::e") == ["B::m"]


def test_ensemble_finds_the_only_model_of_another_namespace(spaces, folders):
    write_ensemble(folders[0], "e", "m")
    write_step(folders[1], "m")
    it = spaces()

    it.load("e")

    assert steps_of(it, "A::e") == ["B::m"]


def test_ambiguous_step_refuses_an_ensemble(spaces, folders):
    write_ensemble(folders[0], "e", "m")
    write_step(folders[1], "m")
    write_step(folders[2], "m")
    it = spaces()

    error = it.refusal("e")

    text = "ensemble A::e contains models that are not available or ambiguous: m"
    assert error.message == f"load failed for model 'A::e': {text}\n"
    assert ready(it) == ""


def test_ensemble_is_loaded_with_the_steps_of_its_own_namespace_only(spaces, folders):
    for folder in folders[:2]:
        write_step(folder, "m")
    write_ensemble(folders[0], "e", "m")
    it = spaces()

    it.load("e")

    assert ready(it) == "A::e A::m"
    assert it.engine.lookup("m").spec.namespace == A


def test_ensemble_follows_what_its_step_means(spaces, folders):
    write_ensemble(folders[0], "e", "m")
    write_step(folders[1], "m")
    it = spaces(mode="poll")
    it.run(it.models.poll_once())
    assert steps_of(it, "A::e") == ["B::m"]

    third = write_step(folders[2], "m")
    it.run(it.models.poll_once())
    (row,) = it.rows("e")
    assert row.state == "UNAVAILABLE"
    assert row.reason == "ensemble A::e contains models that are not available or ambiguous: m"

    first = write_step(folders[0], "m")
    it.run(it.models.poll_once())
    assert steps_of(it, "A::e") == ["A::m"]

    shutil.rmtree(first)
    shutil.rmtree(third)
    it.run(it.models.poll_once())
    assert steps_of(it, "A::e") == ["B::m"]


def test_step_of_another_namespace_is_replaced_in_the_ensemble(spaces, folders):
    write_ensemble(folders[0], "e", "m")
    other = write_step(folders[1], "m")
    it = spaces()
    it.load("e")
    old = it.engine.lookup("B::m")
    write_code(other)

    it.load("m")

    (loaded,) = it.models._models.lifecycles["A::e"]._loaded.values()
    (model,) = loaded.steps.models.values()
    assert model is it.engine.lookup("B::m") is not old


def test_unload_dependents_leaves_the_other_namespace_alone(spaces, folders):
    for folder in folders[:2]:
        write_step(folder, "m")
    write_ensemble(folders[0], "e", "m")
    write_ensemble(folders[1], "f", "m")
    it = spaces()
    it.load("e")
    it.load("f")

    it.unload("f", unload_dependents=True)

    it.until(lambda: ready(it) == "A::e A::m")


def test_ensembles_of_one_name_in_two_namespaces_are_no_cycle(spaces, folders):
    write_ensemble(folders[0], "e", "f")
    write_step(folders[0], "f")
    write_ensemble(folders[1], "f", "e")
    write_step(folders[1], "e")
    it = spaces(mode="none")

    it.run(it.models.start())

    assert ready(it) == "A::e A::f B::e B::f"


def test_cycle_is_found_through_namespaces(spaces, folders):
    write_ensemble(folders[0], "e", "f")
    write_ensemble(folders[1], "f", "e")
    it = spaces()

    error = it.refusal("e")

    text = "circular dependency between ensembles: A::e -> ... -> B::f -> A::e"
    assert text in error.message


def test_bound_model_is_the_step_of_all_namespaces(spaces, folders):
    for folder in folders[:2]:
        write_step(folder, "m")
        write_ensemble(folder, "e", "m")
    it = spaces()
    bound = bind(it, "m")

    it.load("e")

    assert steps_of(it, "A::e") == steps_of(it, "B::e") == ["m"]
    unbind(it, bound)
    it.load("m")
    it.until(lambda: ready(it) == "A::e A::m B::e B::m")


# What clients send, and what models do


def test_files_of_a_client_are_a_model_without_a_namespace(spaces):
    it = spaces()

    it.load("sent", '{"backend": "python"}', {"1/model.py": CODE.encode()})

    assert it.rows() == [IndexEntry("sent", "1", "READY")]
    assert it.engine.lookup("sent").spec.identifier == "sent"
    it.unload("sent")
    it.until(lambda: not it.loader.alive)


def test_files_of_a_client_replace_the_only_model_of_the_name(spaces, folders):
    write_model(folders[1])
    it = spaces()
    it.load()

    it.load("m", '{"backend": "python"}', {"1/model.py": CODE.encode()})

    assert it.rows() == [IndexEntry("m", "1", "READY", namespace=B)]
    assert len(it.loader.asked) == 2


def test_files_of_a_client_cannot_replace_several_models(spaces, folders):
    write_model(folders[0])
    write_model(folders[1])
    it = spaces()

    error = it.refusal("m", '{"backend": "python"}', {"1/model.py": CODE.encode()})

    assert isinstance(error, InvalidArgumentError)
    assert error.message == (
        "There are 2 models 'm' in the repositories, files can replace only one."
    )


def test_model_that_loads_its_own_name_is_refused(spaces, folders):
    write_model(folders[0])
    write_model(folders[1])
    it = spaces()
    errors = []

    async def load_myself(plan):
        dependencies = it.models.load_dependencies
        try:
            with dependencies.add_named(plan.identifier, "m"):
                await asyncio.sleep(0)
        except InvalidArgumentError as error:
            errors.append(error.message)

    it.loader.on_load = load_myself

    it.load()

    assert len(errors) == 2
    assert "waits for its own end" in errors[0]
