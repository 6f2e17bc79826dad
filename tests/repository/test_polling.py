# SPDX-License-Identifier: Apache-2.0
"""Models that are added, changed and taken away while the server looks for changes."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from pytriton.base.errors import InternalError
from pytriton.serving.engine.client import IndexEntry
from pytriton.serving.repository.model_repositories import RepositoryPoller
from tests.repository.scene import write_code, write_config, write_model


@pytest.fixture
def polled(scene, repository):
    """A scene whose model `m` serves."""
    write_model(repository)
    it = scene(mode="poll")
    it.run(it.models.start())
    it.loader.asked.clear()
    return it


def poll(it) -> None:
    it.run(it.models.poll_once())


def test_poll_of_unchanged_models_loads_nothing(polled):
    poll(polled)

    assert polled.loader.asked == []


def test_poll_finds_new_changed_and_removed_models(polled, repository):
    write_model(repository, "new")
    poll(polled)
    assert polled.engine.is_model_ready("new")

    write_code(repository / "m")
    poll(polled)
    assert polled.loader.asked == [("new", 1), ("m", 1)]

    shutil.rmtree(repository / "new")
    poll(polled)
    assert polled.rows("new") == [IndexEntry("new", "1", "UNAVAILABLE", "unloaded")]
    assert polled.models.is_ready()

    write_model(repository, "new")
    poll(polled)
    assert polled.engine.is_model_ready("new")


def test_broken_config_keeps_the_old_model_and_is_tried_again_when_it_changes(polled, repository):
    write_config(repository / "m", "foo: 1")
    poll(polled)
    poll(polled)
    assert polled.loader.asked == []
    assert polled.engine.is_model_ready("m")

    write_config(repository / "m", 'backend: "python" max_batch_size: 2')
    poll(polled)

    assert polled.loader.asked == [("m", 1)]


def test_model_that_fails_is_tried_again_only_after_a_change(polled, repository):
    write_model(repository, "half")
    polled.loader.failures["half", 1] = [InternalError("a file is missing")]
    poll(polled)
    poll(polled)
    assert polled.loader.asked == [("half", 1)]
    assert not polled.models.is_ready()

    write_code(repository / "half")
    poll(polled)

    assert polled.engine.is_model_ready("half")
    assert polled.models.is_ready()


def test_broken_model_that_is_removed_is_forgotten(polled, repository):
    write_model(repository, "bad", config="foo: 1")
    poll(polled)
    assert not polled.models.is_ready()

    shutil.rmtree(repository / "bad")
    poll(polled)

    assert polled.rows("bad") == []
    assert polled.models.is_ready()


def test_name_that_a_second_repository_takes_keeps_its_model(scene, repository, tmp_path, caplog):
    other = tmp_path / "other"
    other.mkdir()
    write_model(repository)
    it = scene(other, mode="poll")
    it.run(it.models.start())
    write_model(other)

    poll(it)
    poll(it)

    assert it.rows() == [IndexEntry("m", "1", "READY")]
    assert sum("two or more repositories" in text for text in caplog.messages) == 1
    shutil.rmtree(other / "m")
    poll(it)
    assert it.loader.asked == [("m", 1)]


def test_repository_that_cannot_be_read_takes_no_model_away(polled, repository):
    repository.rename(repository.parent / "away")

    with pytest.raises(InternalError, match="failed to stat file"):
        poll(polled)

    assert polled.engine.is_model_ready("m")
    assert polled.rows() == [IndexEntry("m", "1", "READY")]


def test_model_that_hangs_while_it_is_loaded_is_loaded_anew_when_its_files_change(
    polled, repository
):
    write_model(repository, "slow")
    polled.loader.gates["slow"] = asyncio.Event()
    first = polled.task(polled.models.poll_once())
    polled.until(lambda: polled.loader.running["slow"])
    poll(polled)
    assert polled.loader.asked == [("slow", 1)]

    polled.loader.gates.clear()
    write_code(repository / "slow")
    poll(polled)

    polled.run(first)
    assert polled.engine.is_model_ready("slow")
    assert polled.loader.asked == [("slow", 1), ("slow", 1)]
    assert not polled.loader.running["slow"]


def test_poller_looks_again_while_a_look_does_not_end():
    looks = asyncio.Queue()

    async def look():
        looks.put_nowait("look")
        await asyncio.Event().wait()

    async def scenario():
        poller = RepositoryPoller(0.0, look)
        poller.start()
        seen = [await looks.get() for _ in range(2)]
        await poller.stop()
        return seen

    assert asyncio.run(asyncio.wait_for(scenario(), 30)) == ["look", "look"]


def test_poller_looks_after_each_interval_whatever_a_look_ends_in(caplog):
    turns, looks = asyncio.Queue(), asyncio.Queue()
    failures = [InternalError("no such directory"), ZeroDivisionError()]

    async def look():
        looks.put_nowait("look")
        if failures:
            raise failures.pop(0)

    async def sleep(seconds):
        assert seconds == 15
        await turns.get()

    async def scenario():
        poller = RepositoryPoller(15, look, sleep)
        poller.start()
        for _ in range(3):
            assert looks.empty()
            turns.put_nowait(None)
            await looks.get()
        await poller.stop()
        await poller.stop()

    asyncio.run(asyncio.wait_for(scenario(), 30))

    assert "the repositories could not be polled: no such directory" in caplog.messages
