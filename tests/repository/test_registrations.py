# SPDX-License-Identifier: Apache-2.0
"""Models that clients add from folders of their own."""

from __future__ import annotations

import asyncio
import functools

import pytest

from pytriton.base.errors import (
    AlreadyExistsError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    ServerError,
    UnavailableError,
)
from pytriton.serving.repository.model_repositories import Registrations, read_registration
from pytriton.serving.repository.reading.layout import ModelPlace, RenamedPlace

ENSEMBLE = 'platform: "ensemble"'


def in_loop(test):
    """Runs a coroutine as a test."""

    @functools.wraps(test)
    def run(*arguments, **named):
        asyncio.run(test(*arguments, **named))

    return run


class FakeControl:
    """Repositories that do what a test says, and remember what they were asked for."""

    def __init__(self) -> None:
        self.is_explicit = True
        self.known: set[str] = set()
        self.calls: list[tuple[object, ...]] = []
        self.failure: BaseException | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    def knows(self, name):
        return name in self.known

    async def load(self, name, config, files):
        self.calls.append(("load", name, config, files))
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure

    async def unload(self, name, *, unload_dependents=False):
        self.calls.append(("unload", name, unload_dependents))
        if isinstance(self.failure, UnavailableError):
            raise self.failure

    async def forget(self, names):
        self.calls.append(("forget", sorted(names)))


@pytest.fixture
def control():
    return FakeControl()


@pytest.fixture
def registrations(control):
    return Registrations(control)


@pytest.fixture
def archive(tmp_path):
    """Writes the folders of an archive, each with a configuration; returns the archive."""

    def write(**configs):
        for name, config in configs.items():
            folder = tmp_path / name
            folder.mkdir()
            if config is not None:
                (folder / "config.pbtxt").write_text(config)
        return str(tmp_path)

    return write


# Folders


def test_folder_may_be_a_repository_with_one_model(archive, tmp_path):
    found = read_registration("m", archive(own=""))

    assert found.places == {"m": RenamedPlace(tmp_path, tmp_path / "own")}


@pytest.mark.parametrize("file", ["config.pbtxt", "1/model.py"])
def test_folder_may_be_the_model_itself(tmp_path, file):
    path = tmp_path / "own" / file
    path.parent.mkdir(parents=True)
    path.touch()
    found = read_registration("m", f"{tmp_path}/own")

    assert found.places == {"m": RenamedPlace(tmp_path, tmp_path / "own")}


def test_ensemble_gets_the_name_and_its_steps_keep_theirs(archive, tmp_path):
    found = read_registration("m", archive(a="", ensemble=ENSEMBLE, z=""))

    assert found.places == {
        "a": ModelPlace(tmp_path, tmp_path / "a"),
        "z": ModelPlace(tmp_path, tmp_path / "z"),
        "m": RenamedPlace(tmp_path, tmp_path / "ensemble"),
    }


def test_first_of_several_models_gets_the_name(archive, tmp_path):
    found = read_registration("m", archive(b="", a=""))

    assert found.places["m"].directory == tmp_path / "a"
    assert found.places["b"].directory == tmp_path / "b"


@pytest.mark.parametrize("url", ["", "relative", "/none/at/all", "s3://bucket/m", "/etc/hostname"])
def test_folder_has_to_be_there(url):
    with pytest.raises(InvalidArgumentError, match="repository not found"):
        read_registration("m", url)


def test_folder_without_a_model_is_refused(archive):
    with pytest.raises(InternalError, match="failed to load 'm', failed to poll from model"):
        read_registration("m", archive())


# Adding and removing


@in_loop
async def test_model_is_loaded_and_listed(registrations, control, archive):
    url = archive(own="")
    await registrations.register("m", url)

    assert control.calls == [("load", "m", None, {})]
    assert registrations.listed() == {"m": url}


@in_loop
async def test_model_hides_one_of_the_repositories(registrations, archive, tmp_path):
    await registrations.register("m", archive(own="", other=""))
    theirs = {"m": [ModelPlace(tmp_path, tmp_path)], "x": [ModelPlace(tmp_path, tmp_path)]}
    places = registrations.merged(theirs)

    assert [place.directory.name for place in places["m"]] == ["other"]
    assert [place.directory.name for place in places["own"]] == ["own"]
    assert len(places["x"]) == 1


@in_loop
async def test_removed_model_is_unloaded_and_forgotten(registrations, control, archive):
    await registrations.register("m", archive(own="", step=""))
    await registrations.unregister("m")

    assert control.calls[1:] == [("unload", "m", True), ("forget", ["m", "step"])]
    assert registrations.listed() == {}
    assert registrations.merged({}) == {}


@in_loop
async def test_model_that_is_removed_twice_at_a_time_can_be_added_again(
    registrations, control, archive, monkeypatch
):
    url = archive(own="")
    gates = [asyncio.Event(), asyncio.Event()]
    waiting = iter(gates)
    monkeypatch.setattr(control, "forget", lambda _: next(waiting).wait())
    await registrations.register("m", url)
    removals = [asyncio.ensure_future(registrations.unregister("m")) for _ in range(2)]
    await asyncio.sleep(0)
    gates[0].set()
    await asyncio.wait(removals, return_when=asyncio.FIRST_COMPLETED)
    await registrations.register("m", url)
    gates[1].set()
    await asyncio.gather(*removals)

    assert registrations.listed() == {"m": url}


@in_loop
async def test_unknown_model_cannot_be_removed(registrations, control):
    with pytest.raises(NotFoundError, match="'m' is not found"):
        await registrations.unregister("m")
    assert control.calls == []


@pytest.mark.parametrize("error", [InternalError("no"), asyncio.CancelledError(), KeyError()])
@in_loop
async def test_model_that_cannot_be_loaded_leaves_nothing(registrations, control, archive, error):
    control.failure = error
    url = archive(own="")
    with pytest.raises(type(error)):
        await registrations.register("m", url)

    assert registrations.listed() == {}
    assert control.calls[1:] == [("unload", "m", True), ("forget", ["m"])]
    control.failure = None
    await registrations.register("m", url)
    assert registrations.listed() == {"m": url}


@in_loop
async def test_load_may_fail_after_its_model_was_removed(registrations, control, archive):
    control.gate.clear()
    loading = asyncio.ensure_future(registrations.register("m", archive(own="")))
    while not control.calls:  # noqa: ASYNC110  the fake has no events
        await asyncio.sleep(0)
    await registrations.unregister("m")
    control.failure = InternalError("it was unloaded")
    control.gate.set()

    with pytest.raises(InternalError, match="it was unloaded"):
        await loading
    assert registrations.listed() == {}


@in_loop
async def test_load_that_the_end_of_the_server_stops_says_so(registrations, control, archive):
    control.failure = UnavailableError("Server exiting")
    with pytest.raises(UnavailableError, match="Server exiting"):
        await registrations.register("m", archive(own=""))


@pytest.mark.parametrize("spell", [str, "{}/".format, "{}/own/..".format])
@in_loop
async def test_folder_is_added_once(registrations, archive, spell):
    url = archive(own="")
    await registrations.register("m", url)
    with pytest.raises(AlreadyExistsError, match="has already been registered"):
        await registrations.register("n", spell(url))


@in_loop
async def test_folder_is_taken_while_it_is_loaded(registrations, control, archive):
    control.gate.clear()
    url = archive(own="")
    loading = asyncio.ensure_future(registrations.register("m", url))
    await asyncio.sleep(0)
    for name in ("m", "n"):
        with pytest.raises(AlreadyExistsError):
            await registrations.register(name, url)
    control.gate.set()
    await loading

    assert registrations.listed() == {"m": url}


@pytest.mark.parametrize("is_added", [True, False])
@in_loop
async def test_name_is_used_once(registrations, control, archive, tmp_path, is_added):
    url = archive(own="", other="")
    if is_added:
        await registrations.register("m", url + "/own")
    else:
        control.known = {"m"}
    with pytest.raises(AlreadyExistsError, match="model 'm' has already been loaded"):
        await registrations.register("m", url + "/other")


@pytest.mark.parametrize("name", ["", " ", "..", "a/b", "a\0b"])
@in_loop
async def test_name_cannot_be_a_path(registrations, archive, name):
    with pytest.raises(InvalidArgumentError):
        await registrations.register(name, archive(own=""))


@in_loop
async def test_control_mode_has_to_be_explicit(registrations, control, archive):
    control.is_explicit = False
    with pytest.raises(ServerError) as caught:
        await registrations.register("m", archive(own=""))

    assert caught.value.message == (
        "repository registration is not allowed if model control mode is not EXPLICIT"
    )
