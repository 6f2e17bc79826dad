# SPDX-License-Identifier: Apache-2.0
"""Loads that fail or are refused: what is said, what the index shows, and what goes on serving."""

from __future__ import annotations

import asyncio
import errno

import pytest

from pytriton.base.errors import (
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)
from pytriton.serving.engine.client import IndexEntry
from pytriton.serving.server.api import documents
from tests.repository.scene import ALL_VERSIONS, CONFIG, write_code, write_model


def test_failed_reload_keeps_the_old_one_ready(scene, repository):
    directory = write_model(repository)
    it = scene()
    it.load()
    write_code(directory)
    it.loader.failures["m", 1] = [InternalError("ValueError: boom")]

    error = it.refusal()

    assert isinstance(error, InvalidArgumentError)
    assert error.message == (
        "load failed for model 'm': version 1 is at UNAVAILABLE state: "
        "Internal: ValueError: boom;\n"
    )
    assert it.rows("m") == [IndexEntry("m", "1", "READY")]
    assert it.models.is_ready()
    it.load()
    assert len(it.loader.loaded) == 2


def test_failure_is_kept_in_the_index_until_a_load_mends_it(scene, repository, caplog):
    write_model(repository)
    it = scene()
    it.loader.failures["m", 1] = [InternalError("boom")]

    it.refusal()

    assert it.rows() == [IndexEntry("m", "1", "UNAVAILABLE", "Internal: boom")]
    assert "failed to load 'm' version 1: Internal: boom" in caplog.messages
    assert not it.models.is_ready()
    with pytest.raises(UnavailableError, match="'m' version 1 is not at ready state"):
        it.engine.lookup("m", "1")
    with pytest.raises(NotFoundError, match="'m' has no available versions"):
        it.engine.lookup("m")
    it.load()
    assert it.rows() == [IndexEntry("m", "1", "READY")]
    assert it.models.is_ready()
    assert it.engine.is_ready()


def test_index_can_be_encoded_after_a_load_for_which_the_machine_had_no_resources(
    scene, repository
):
    write_model(repository)
    it = scene()
    it.loader.failures["m", 1] = [OSError(errno.EMFILE, "Too many open files")]

    error = it.refusal()

    assert isinstance(error, UnavailableError)
    (entry,) = it.rows()
    assert type(entry.reason) is str
    assert b"no file descriptors left" in documents.repository_index([entry])


def test_any_exception_of_a_loader_is_a_state_with_a_reason(scene, repository):
    write_model(repository)
    it = scene()
    it.loader.failures["m", 1] = [ZeroDivisionError("division by zero")]

    it.refusal()

    (row,) = it.rows()
    assert row.reason == "Internal: ZeroDivisionError: division by zero"


def test_version_whose_instances_die_before_the_switch_failed(scene, repository):
    write_model(repository, config=ALL_VERSIONS, versions=("1", "2"))
    it = scene()

    async def kill_the_first(plan):
        if plan.version == 2:
            while not it.loader.loaded:  # noqa: ASYNC110  the loader has no event for it
                await asyncio.sleep(0)
            it.loader.loaded[0].instance.die("signal 9")

    it.loader.on_load = kill_the_first

    error = it.refusal()

    assert error.message == (
        "load failed for model 'm': version 1 is at UNAVAILABLE state: "
        "Internal: instance i is gone, signal 9;\n"
    )
    it.until(lambda: not it.loader.alive)
    assert [row.reason for row in it.rows()] == [
        "Internal: instance i is gone, signal 9",
        "unloaded",
    ]


def test_load_retries_as_often_as_it_is_told(scene, repository):
    write_model(repository)
    it = scene(retry_count=2)
    it.loader.failures["m", 1] = [InternalError("1"), InternalError("2")]

    it.load()

    assert it.loader.asked == [("m", 1)] * 3


def test_load_that_takes_too_long_is_given_up(scene, repository):
    write_model(repository)
    it = scene(load_timeout_s=0.01)
    it.loader.gates["m"] = asyncio.Event()

    error = it.refusal()

    reason = "Unavailable: it was not loaded within 0.01 s, and its processes were ended"
    assert reason in error.message
    assert it.rows("m") == [IndexEntry("m", "1", "UNAVAILABLE", reason)]
    assert not it.loader.running["m"]


def test_model_says_how_long_its_load_may_take(scene, repository):
    limit = 'parameters { key: "LOAD_TIMEOUT_SECS" value { string_value: "%s" } }'
    write_model(repository, "quick", CONFIG + limit % "0.01")
    write_model(repository, "slow", CONFIG + limit % "0")
    write_model(repository, "wrong", CONFIG + limit % "soon")
    write_model(repository, "other")
    it = scene(load_timeout_s=0.02)
    it.loader.gates.update((name, asyncio.Event()) for name in ("quick", "slow", "other"))
    slow = it.task(it.models.load("slow", None, {}))

    assert "not loaded within 0.01 s" in it.refusal("quick").message
    assert (
        "expected a number of seconds as parameter LOAD_TIMEOUT_SECS of model 'wrong', got 'soon'"
    ) in it.refusal("wrong").message
    assert "not loaded within 0.02 s" in it.refusal("other").message  # which began later
    assert not slow.done()
    it.loader.gates["slow"].set()
    it.run(slow)


def test_one_failing_version_fails_the_load_of_all_new_ones(scene, repository):
    write_model(repository, config=ALL_VERSIONS, versions=("1", "2", "10"))
    it = scene()
    it.loader.failures["m", 2] = [InternalError("boom")]

    error = it.refusal()

    assert error.message == (
        "load failed for model 'm': version 2 is at UNAVAILABLE state: Internal: boom;\n"
    )
    it.until(lambda: not it.loader.alive)
    assert it.rows() == [
        IndexEntry("m", "1", "UNAVAILABLE", "unloaded"),
        IndexEntry("m", "2", "UNAVAILABLE", "Internal: boom"),
        IndexEntry("m", "10", "UNAVAILABLE", "unloaded"),
    ]


def test_failed_version_that_is_taken_away_is_no_failure_any_more(scene, repository):
    directory = write_model(repository, config=ALL_VERSIONS, versions=("1", "2"))
    it = scene()
    it.loader.failures["m", 2] = [InternalError("boom")]
    it.refusal()
    (directory / "2" / "model.py").unlink()
    (directory / "2").rmdir()

    it.load()

    assert [row.state for row in it.rows()] == ["READY", "UNAVAILABLE"]
    assert it.models.is_ready()


@pytest.mark.parametrize("is_crashed", [True, False])
def test_unload_of_a_failed_model_makes_the_server_ready_again(scene, repository, is_crashed):
    write_model(repository)
    it = scene()
    if is_crashed:
        it.load()
        it.loader.loaded[0].instance.die()
    else:
        it.loader.failures["m", 1] = [InternalError("boom")]
        it.refusal()
    assert not it.models.is_ready()

    it.unload()

    assert it.rows() == [IndexEntry("m", "1", "UNAVAILABLE", "unloaded")]
    assert it.models.is_ready()
    assert it.engine.is_ready()


@pytest.mark.parametrize("mode", ["none", "poll"])
def test_clients_have_no_control_in_other_modes(scene, repository, mode):
    write_model(repository)
    it = scene(mode=mode)

    for operation in (it.load, it.unload):
        with pytest.raises(UnavailableError) as caught:
            operation()
        assert caught.value.message == (
            f"explicit model load / unload is not allowed in model control mode '{mode}'; "
            "start the server with --model-control-mode=explicit"
        )


@pytest.mark.parametrize(
    "name, text",
    [
        ("", "Model name cannot be empty. Please enter a valid name to deploy."),
        ("  ", "Model name cannot be empty. Please enter a valid name to deploy."),
        (
            "../m",
            "invalid model name '../m', model name must not contain path traversal characters",
        ),
        (
            " .. ",
            "invalid model name ' .. ', model name must not contain path traversal characters",
        ),
        ("a/b", "invalid model name 'a/b', model name must not contain path traversal characters"),
    ],
)
def test_load_refuses_a_name_that_is_none(scene, repository, name, text):
    error = scene().refusal(name)

    assert isinstance(error, InvalidArgumentError)
    assert error.message == text


def test_load_of_an_unknown_model_is_refused(scene, repository):
    write_model(repository.parent, "outside")
    (repository / "file").write_text("not a model")
    it = scene()

    for name in ("nobody", "file", ".hidden", "m\n2"):
        error = it.refusal(name)
        assert isinstance(error, InternalError)
        assert error.message == f"failed to load '{name}', failed to poll from model repository"
    assert it.rows() == []


def test_model_in_two_repositories_is_refused_and_listed_once(scene, repository, tmp_path):
    write_model(repository)
    write_model(repository, "n")
    write_model(tmp_path / "second")
    it = scene(tmp_path / "second")
    row = IndexEntry("m", "", "UNAVAILABLE", "model appears in two or more repositories")
    assert it.rows() == [row, IndexEntry("n")]

    error = it.refusal()

    assert error.message == (
        "failed to load 'm', failed to poll from model repository: "
        "model appears in two or more repositories"
    )
    assert it.rows("m") == [row]


def test_models_without_a_version_say_so(scene, repository):
    directory = write_model(repository, versions=("01", "abc"))
    it = scene()

    error = it.refusal()

    text = "at least one version must be available under the version policy of model 'm'"
    assert isinstance(error, InvalidArgumentError)
    assert error.message == f"load failed for model 'm': {text}\n"
    assert it.rows() == [IndexEntry("m", "", "UNAVAILABLE", f"Invalid argument: {text}")]
    assert not it.models.is_ready()
    write_code(directory)
    it.load()
    assert it.rows() == [IndexEntry("m", "1", "READY")]
    assert it.models.is_ready()


def test_unreadable_config_keeps_the_old_one_and_its_place_is_named(scene, repository):
    directory = write_model(repository)
    it = scene()
    it.load()
    (directory / "config.pbtxt").write_text('backend: "python"\n  foo: 1\n')

    error = it.refusal()

    assert isinstance(error, InternalError)
    assert error.message == (
        "failed to load 'm', failed to poll from model repository: "
        f"failed to read text proto from {directory}/config.pbtxt:2:3: "
        'Message type "inference.ModelConfig" has no field named "foo".'
    )
    assert it.rows() == [IndexEntry("m", "1", "READY")]
    assert it.models.is_ready()
    it.unload()
    it.refusal()
    (row,) = [row for row in it.rows() if not row.version]
    assert row.state == "UNAVAILABLE"
    assert row.reason.startswith("Invalid argument: failed to read text proto")
    assert not it.models.is_ready()
