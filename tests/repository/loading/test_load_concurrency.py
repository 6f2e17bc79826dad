# SPDX-License-Identifier: Apache-2.0
"""Loads that run at the same time, at start-up, and when the server ends."""

from __future__ import annotations

import asyncio
import random

import pytest

from pytriton.base.errors import InternalError, ServerError, UnavailableError
from pytriton.serving.engine.client import IndexEntry
from tests.repository.scene import ALL_VERSIONS, write_code, write_model


def test_loads_of_the_same_model_run_one_after_the_other(scene, repository):
    directory = write_model(repository)
    it = scene()

    async def change(plan):
        write_code(directory)  # so that each load has something to do
        await asyncio.sleep(0)

    it.loader.on_load = change

    it.run(_gather(it.models.load("m", None, {}) for _ in range(5)))

    assert it.loader.asked == [("m", 1)] * 5
    assert it.loader.most_of_one == 1


def test_loads_of_different_models_run_side_by_side_up_to_the_limit(scene, repository):
    names = [f"m{index}" for index in range(9)]
    for name in names:
        write_model(repository, name)
    it = scene(load_limit=3)
    gate = asyncio.Event()
    it.loader.gates = dict.fromkeys(names, gate)
    loads = it.task(_gather(it.models.load(name, None, {}) for name in names))
    it.until(lambda: it.loader.running.total() == 3)

    gate.set()
    it.run(loads)

    assert it.loader.most_at_once == 3
    assert sorted(it.loader.asked) == [(name, 1) for name in names]


def test_model_that_loads_another_one_does_not_wait_for_its_own_turn(scene, repository):
    write_model(repository, "outer")
    write_model(repository, "inner")
    it = scene(load_limit=1)

    async def load_inner(plan):
        if plan.name == "outer":
            await it.models.for_models.load("inner", None, {})

    it.loader.on_load = load_inner

    it.load("outer")

    assert [row.state for row in it.rows()] == ["READY", "READY"]
    assert it.models.for_models.index() == it.models.index()
    assert it.models.for_models.is_ready()
    it.run(it.models.for_models.unload("inner"))
    assert it.engine.find("inner") is None


def test_unload_gives_up_what_is_being_loaded(scene, repository):
    write_model(repository)
    it = scene()
    it.loader.gates["m"] = asyncio.Event()
    loads = [it.task(it.models.load("m", None, {})) for _ in range(2)]
    it.until(lambda: it.loader.running["m"])

    it.unload()

    for load in loads:
        with pytest.raises(UnavailableError, match="'m': it was given up"):
            it.run(load)
    assert it.rows("m") == [IndexEntry("m", "1", "UNAVAILABLE", "unloaded")]
    assert it.engine.is_ready()
    assert not it.loader.running["m"]
    it.loader.gates["m"].set()
    it.load()
    assert it.engine.is_model_ready("m")


def test_unload_gives_up_a_reload_and_takes_what_served_out_of_service(scene, repository):
    directory = write_model(repository)
    it = scene()
    it.load()
    write_code(directory)
    it.loader.gates["m"] = asyncio.Event()
    reload = it.task(it.models.load("m", None, {}))
    it.until(lambda: it.loader.running["m"])

    it.unload()

    with pytest.raises(UnavailableError):
        it.run(reload)
    assert not it.engine.is_model_ready("m")
    it.until(lambda: not it.loader.alive)


@pytest.mark.parametrize("failures", [[], [InternalError("boom")]], ids=["well", "failing"])
def test_load_goes_on_when_who_asked_is_gone(scene, repository, failures):
    write_model(repository)
    it = scene()
    it.loader.gates["m"] = asyncio.Event()
    it.loader.failures["m", 1] = list(failures)
    load = it.task(it.models.load("m", None, {}))
    it.until(lambda: it.loader.running["m"])

    load.cancel()
    it.until(load.done)
    it.loader.gates["m"].set()

    state = ("UNAVAILABLE", "Internal: boom") if failures else ("READY", "")
    it.until(lambda: (it.rows()[0].state, it.rows()[0].reason) == state)


def test_random_loads_and_unloads_end_in_a_state_that_adds_up(scene, repository):
    rng = random.Random(7)
    names = ["a", "b", "c"]
    directories = {name: write_model(repository, name) for name in names}
    it = scene(load_limit=2)

    async def fail_sometimes(plan):
        for _ in range(rng.randrange(4)):
            await asyncio.sleep(0)
        if rng.random() < 0.3:
            raise InternalError("boom")

    it.loader.on_load = fail_sometimes

    async def act():
        name = rng.choice(names)
        try:
            if rng.random() < 0.6:
                write_code(directories[name])
                await it.models.load(name, None, {})
            else:
                await it.models.unload(name)
        except ServerError as error:
            assert "boom" in error.message  # noqa: PT017  nothing else may fail

    for _ in range(30):
        it.run(_gather(act() for _ in range(6)))

    assert it.loader.most_of_one == 1
    ready = {row.name for row in it.models.index(ready=True)}
    it.until(lambda: len(it.loader.alive) == len(ready))
    assert {version.plan.name for version in it.loader.alive} == ready
    assert all(it.engine.lookup(name) in [v.model for v in it.loader.alive] for name in ready)
    it.until(lambda: not it.engine.draining)


# Start


@pytest.mark.parametrize("mode", ["none", "poll"])
def test_start_loads_all_models(scene, repository, mode):
    for name in "abc":
        write_model(repository, name)
    it = scene(mode=mode)
    reports = []

    it.run(it.models.start(lambda *report: reports.append(report)))

    assert [row.state for row in it.rows()] == ["READY"] * 3
    assert reports[-1] == (3, 3, [])
    assert any(names for _, _, names in reports)


@pytest.mark.parametrize("startup, expected", [((), []), (("b",), ["b"]), (("*",), ["a", "b"])])
def test_start_with_clients_in_control_loads_what_it_is_told(scene, repository, startup, expected):
    write_model(repository, "a")
    write_model(repository, "b")
    it = scene(startup_models=startup)

    it.run(it.models.start())

    assert [row.name for row in it.models.index(ready=True)] == expected


def test_start_serves_the_others_when_one_model_fails(scene, repository):
    write_model(repository, "bad", config="foo: 1")
    write_model(repository, "good")
    it = scene(mode="none")

    with pytest.raises(InternalError) as caught:
        it.run(it.models.start())

    assert caught.value.message == "failed to load all models"
    assert it.engine.is_model_ready("good")
    assert not it.models.is_ready()


def test_start_fails_for_an_unknown_model(scene, repository):
    it = scene(startup_models=("nobody",))

    with pytest.raises(InternalError, match="failed to load all models"):
        it.run(it.models.start())


def test_start_fails_for_a_missing_repository(scene, repository, tmp_path):
    it = scene(tmp_path / "nowhere", mode="none")

    with pytest.raises(InternalError) as caught:
        it.run(it.models.start())

    assert caught.value.message == f"failed to stat file {tmp_path}/nowhere"
    assert it.rows() == []


# Stop


def test_stop_gives_up_loads_and_ends_all_models(scene, repository):
    write_model(repository, "loading")
    write_model(repository, "loaded")
    it = scene()
    it.load("loaded")
    it.loader.gates["loading"] = asyncio.Event()
    load = it.task(it.models.load("loading", None, {}))
    it.until(lambda: it.loader.running["loading"])

    it.run(it.models.stop(1.0))

    with pytest.raises(UnavailableError, match="Server exiting"):
        it.run(load)
    assert not it.loader.alive
    with pytest.raises(UnavailableError, match="Server exiting"):
        it.load("loaded")
    it.run(it.models.stop(1.0))


def test_stop_ends_what_still_works_on_requests_when_the_time_is_over(scene, repository):
    write_model(repository)
    it = scene()
    it.load()
    sink = it.submit()
    it.unload()

    it.run(it.models.stop(0.0))

    assert not it.loader.alive
    assert len(sink.errors) == 1


async def _gather(works):
    return await asyncio.gather(*works)


def test_version_beside_one_that_is_given_up_slowly_is_stopped_when_the_server_stops(
    scene, repository
):
    write_model(repository, config=ALL_VERSIONS, versions=("1", "2"))
    it = scene()
    is_given_up, may_end = asyncio.Event(), asyncio.Event()

    async def hang(plan):
        if plan.version == 2:
            try:
                await asyncio.Event().wait()
            finally:
                is_given_up.set()
                await may_end.wait()  # as processes do that end slowly

    it.loader.on_load = hang
    loading = it.task(it.models.load("m", None, {}))
    it.until(lambda: it.loader.loaded and it.loader.running["m"])
    unloading = it.task(it.models.unload("m"))
    it.until(is_given_up.is_set)
    stopping = it.task(it.models.stop(0.0))
    for _ in range(10):
        it.run(asyncio.sleep(0))
    may_end.set()
    it.run(stopping)

    assert it.loader.alive == []
    for task in (loading, unloading):
        with pytest.raises(UnavailableError):
            it.run(task)
