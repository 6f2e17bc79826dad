# SPDX-License-Identifier: Apache-2.0
"""Loading, reloading and unloading models of repositories, with a loader without processes."""

from __future__ import annotations

import asyncio
import logging

import pytest

from pytriton.base.errors import UnavailableError
from pytriton.serving.engine.client import IndexEntry
from tests.repository.scene import ALL_VERSIONS, CONFIG, write_code, write_config, write_model


def test_load_serves_a_model_and_the_index_shows_it(scene, repository, caplog):
    write_model(repository)
    write_model(repository, "other")
    caplog.set_level(logging.INFO)
    it = scene()
    assert it.rows() == [IndexEntry("m"), IndexEntry("other")]

    it.load()

    assert it.engine.is_model_ready("m", "1")
    assert it.rows() == [IndexEntry("m", "1", "READY"), IndexEntry("other")]
    assert it.models.index(ready=True) == [IndexEntry("m", "1", "READY")]
    assert "loading: m:1" in caplog.messages
    assert "successfully loaded 'm'" in caplog.messages


def test_plan_holds_what_a_loader_needs(scene, repository):
    directory = write_model(repository)
    it = scene(gpu_ids=(0,))

    it.load()

    (version,) = it.loader.loaded
    plan = version.plan
    assert (plan.name, plan.version) == ("m", 1)
    assert plan.model_directory == directory
    assert plan.version_directory == directory / "1"
    assert plan.config.name == "m"
    assert plan.config.default_model_filename == "model.py"
    assert [(each.name, each.kind, each.device_id) for each in plan.instances] == [
        ("m_0", "GPU", 0)
    ]
    assert plan.gpu_ids == (0,)


def test_load_of_what_serves_unchanged_does_nothing(scene, repository):
    directory = write_model(repository)
    it = scene()
    it.load()
    (directory / "1" / "__pycache__").mkdir()
    (directory / "1" / "__pycache__" / "model.pyc").write_bytes(b"x")

    it.load()

    assert it.loader.asked == [("m", 1)]


def test_reload_switches_without_a_gap_and_lets_the_old_one_finish(scene, repository):
    directory = write_model(repository)
    it = scene()
    it.load()
    (old,) = it.loader.loaded
    sink = it.submit()
    write_code(directory)
    it.loader.gates["m"] = asyncio.Event()
    load = it.task(it.models.load("m", None, {}))
    it.until(lambda: it.loader.running["m"])
    assert it.engine.lookup("m") is old.model
    assert it.rows("m") == [IndexEntry("m", "1", "READY")]

    it.loader.gates["m"].set()
    it.run(load)

    new = it.loader.loaded[1]
    assert it.engine.lookup("m") is new.model
    assert sink.final_count == 0
    old.instance.finish()
    it.until(lambda: old.is_retired)
    assert len(sink.responses) == 1
    assert it.loader.alive == [new]


def test_fifty_reloads_under_load_lose_no_request_and_leave_nothing(scene, repository):
    directory = write_model(repository)
    it = scene()
    it.load()
    sinks = []

    for _ in range(50):
        sinks.append(it.submit())
        busy = it.loader.loaded[-1]
        write_code(directory)
        it.load()
        sinks.append(it.submit())
        it.loader.loaded[-1].instance.finish()
        busy.instance.finish()
    it.until(lambda: len(it.loader.alive) == 1)

    assert all(len(sink.responses) == 1 for sink in sinks)
    assert list(it.engine.models()) == [it.loader.loaded[-1].model]
    assert not it.engine.draining


def test_only_changed_versions_are_loaded_again(scene, repository):
    directory = write_model(repository, config=ALL_VERSIONS, versions=("1", "2"))
    it = scene()
    it.load()
    it.loader.asked.clear()

    write_code(directory, "2")
    it.load()
    write_code(directory, "3")
    it.load()

    assert it.loader.asked == [("m", 2), ("m", 3)]


def test_changed_policy_loads_and_unloads_only_what_it_has_to(scene, repository):
    directory = write_model(repository, config=ALL_VERSIONS, versions=("1", "2", "3"))
    it = scene()
    it.load()
    it.loader.asked.clear()

    write_config(directory, CONFIG + "version_policy { specific { versions: [ 2 ] } }")
    it.load()

    assert it.loader.asked == []
    it.until(lambda: len(it.loader.alive) == 1)
    assert [(row.version, row.state, row.reason) for row in it.rows()] == [
        ("1", "UNAVAILABLE", "unloaded"),
        ("2", "READY", ""),
        ("3", "UNAVAILABLE", "unloaded"),
    ]
    assert it.engine.lookup("m").spec.version == 2
    assert it.models.is_ready()


def test_changed_or_touched_config_loads_all_versions_again(scene, repository):
    directory = write_model(repository, config=ALL_VERSIONS, versions=("1", "2"))
    it = scene()
    it.load()
    it.loader.asked.clear()

    write_config(directory, ALL_VERSIONS)
    it.load()
    write_config(directory, ALL_VERSIONS + " max_batch_size: 4")
    it.load()

    assert sorted(it.loader.asked) == [("m", 1)] * 2 + [("m", 2)] * 2


def test_model_that_gave_up_is_loaded_again(scene, repository):
    write_model(repository)
    it = scene()
    it.load()
    it.loader.loaded[0].instance.die("signal 11")
    assert it.rows() == [IndexEntry("m", "1", "UNAVAILABLE", "instance i is gone, signal 11")]
    assert not it.models.is_ready()

    it.load()

    assert it.rows() == [IndexEntry("m", "1", "READY")]
    it.until(lambda: len(it.loader.alive) == 1)


def test_unload_refuses_new_requests_at_once_and_finishes_the_others(scene, repository, caplog):
    write_model(repository)
    caplog.set_level(logging.INFO)
    it = scene()
    it.load()
    (version,) = it.loader.loaded
    sink = it.submit()

    it.unload()

    assert it.rows() == [IndexEntry("m", "1", "UNLOADING")]
    with pytest.raises(UnavailableError):
        it.engine.lookup("m", "1")
    assert sink.final_count == 0
    version.instance.finish()
    it.until(lambda: version.is_retired)
    assert len(sink.responses) == 1
    assert it.rows() == [IndexEntry("m", "1", "UNAVAILABLE", "unloaded")]
    assert it.models.is_ready()
    it.until(lambda: "successfully unloaded 'm' version 1" in caplog.messages)
    it.load()
    assert it.rows() == [IndexEntry("m", "1", "READY")]


def test_unload_of_an_unknown_model_succeeds(scene, repository):
    it = scene()

    it.unload("nobody")

    assert it.rows() == []
