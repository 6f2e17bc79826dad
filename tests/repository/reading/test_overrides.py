# SPDX-License-Identifier: Apache-2.0
"""Configurations and files that clients send to be loaded."""

from __future__ import annotations

import asyncio
import stat
import tempfile
import threading
from pathlib import Path

import pytest

from pytriton.base.errors import InternalError, UnavailableError
from pytriton.serving.engine.client import IndexEntry
from pytriton.serving.repository.reading import source
from tests.repository.scene import CONFIG, DEADLINE_S, write_code, write_model

JSON = '{"backend": "python", "max_batch_size": 8}'
FILES = {"1/model.py": b"# code", "labels.txt": b"cat\n"}


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Where temporary directories are made."""
    path = tmp_path / "temporary"
    path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    return path


def test_config_override_takes_the_place_of_the_file(scene, repository):
    write_model(repository, config=CONFIG + "max_batch_size: 2 version_policy { all { } }")
    it = scene()
    it.load()

    it.load(config=JSON)
    assert it.loader.loaded[-1].plan.config.max_batch_size == 8
    assert it.loader.loaded[-1].plan.config.version_policy.latest.num_versions == 1
    it.load(config=JSON)
    assert len(it.loader.loaded) == 2

    it.load()
    assert it.loader.loaded[-1].plan.config.max_batch_size == 2


def test_config_override_sees_changed_files(scene, repository):
    directory = write_model(repository)
    it = scene()
    it.load(config=JSON)
    write_code(directory)

    it.load(config=JSON)

    assert len(it.loader.loaded) == 2


@pytest.mark.parametrize(
    "config, detail",
    [
        ("{bad", "Invalid config override: "),
        ("", "Invalid config override: "),
        ("[]", "Invalid config override: model configuration must be a JSON object, got list"),
        ('{"foo": 1}', "Invalid config override: model configuration is not valid: "),
        ('{"name": "n", "backend": "python"}', "unexpected directory name 'm' for model 'n'"),
        ('{"backend": "python", "max_batch_size": -1}', "'max_batch_size' must be non-negative"),
    ],
)
def test_bad_config_override_is_refused_and_changes_nothing(scene, repository, config, detail):
    write_model(repository)
    it = scene()

    error = it.refusal(config=config)

    assert isinstance(error, InternalError)
    assert error.message.startswith(
        f"failed to load 'm', failed to poll from model repository: {detail}"
    )
    assert it.rows() == [IndexEntry("m")]
    assert it.models.is_ready()


def test_config_override_of_an_unknown_model_is_refused(scene, repository):
    error = scene().refusal("nobody", JSON)

    assert error.message == "failed to load 'nobody', failed to poll from model repository"


def test_sent_files_are_a_model_of_their_own(scene, repository, temporary):
    it = scene()

    it.load("new", JSON, FILES)

    (version,) = it.loader.loaded
    directory = version.plan.model_directory
    assert directory.parent == temporary
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert (directory / "1" / "model.py").read_bytes() == b"# code"
    assert it.rows() == [IndexEntry("new", "1", "READY")]
    it.unload("new")
    it.until(lambda: not directory.exists())
    assert version.is_retired


def test_sent_files_hide_those_of_the_repository_until_the_next_load(scene, repository, temporary):
    write_model(repository)
    it = scene()
    it.load()
    it.load("m", JSON, FILES)
    it.load("m", JSON, FILES)
    assert it.loader.loaded[-1].plan.model_directory.parent == temporary
    it.until(lambda: len(list(temporary.iterdir())) == 1)

    it.load()

    assert it.loader.loaded[-1].plan.model_directory == repository / "m"
    it.until(lambda: not list(temporary.iterdir()))


def test_sent_files_stay_while_a_request_needs_them(scene, repository, temporary):
    it = scene()
    it.load("m", JSON, FILES)
    (version,) = it.loader.loaded
    it.submit()

    it.unload()

    assert version.plan.model_directory.exists()
    version.instance.finish()
    it.until(lambda: not version.plan.model_directory.exists())


@pytest.mark.parametrize("failing", ["config", "loader", "version"])
def test_files_of_a_failed_load_are_removed(scene, repository, temporary, failing):
    it = scene()
    it.loader.failures["m", 1] = [InternalError("boom")]
    config = "{" if failing == "config" else JSON
    files = {"x/model.py": b""} if failing == "version" else FILES

    it.refusal("m", config, files)

    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("end", ["unload", "stop"])
def test_files_of_a_load_that_is_given_up_while_they_are_read_are_removed(
    scene, repository, temporary, monkeypatch, end
):
    is_written, may_go_on = threading.Event(), threading.Event()

    def run_agents_slowly(*_):
        is_written.set()
        assert may_go_on.wait(DEADLINE_S)

    monkeypatch.setattr(source, "run_agents", run_agents_slowly)
    it = scene()
    loading = it.task(it.models.load("m", JSON, FILES))
    it.until(is_written.is_set)
    ending = it.task(it.models.unload("m") if end == "unload" else it.models.stop(0.0))
    it.run(asyncio.sleep(0))
    assert list(temporary.iterdir())
    may_go_on.set()
    it.run(asyncio.wait({loading, ending}))

    assert isinstance(loading.exception(), UnavailableError)
    assert list(temporary.iterdir()) == []


def test_stop_removes_sent_files(scene, repository, temporary):
    it = scene()
    it.load("m", JSON, FILES)

    it.run(it.models.stop(0.0))

    assert list(temporary.iterdir()) == []


def test_files_need_a_config(scene, repository, temporary):
    error = scene().refusal("m", None, FILES)

    assert isinstance(error, InternalError)
    assert error.message == (
        "failed to load 'm', failed to poll from model repository: "
        "Load parameter 'config' must be specified for model file override"
    )


@pytest.mark.parametrize(
    "path, normal",
    [
        ("../x", "../x"),
        ("1/../../x", "../x"),
        ("/etc/x", "/etc/x"),
        ("..", ".."),
        ("", "."),
        (".", "."),
        ("1/\0x", "1/\0x"),
    ],
)
def test_files_that_lead_out_are_refused_and_nothing_is_written(
    scene, repository, temporary, path, normal
):
    error = scene().refusal("m", JSON, {**FILES, path: b"evil"})

    assert error.message == (
        "failed to load 'm', failed to poll from model repository: Invalid file parameter "
        f"'file:{path}' with normalized path '{normal}' must stay within model directory."
    )
    assert list(temporary.iterdir()) == []
    assert not Path(temporary.parent / "x").exists()


def test_files_that_contradict_each_other_are_refused(scene, repository, temporary):
    error = scene().refusal("m", JSON, {"1": b"a file", "1/model.py": b""})

    assert error.message.startswith("failed to load 'm', failed to poll from model repository: ")
    assert list(temporary.iterdir()) == []
