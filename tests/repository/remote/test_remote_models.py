# SPDX-License-Identifier: Apache-2.0
"""Models in an object store that are loaded, changed and unloaded, with a fake store and loader."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from pathlib import Path

import pytest

from pytriton.base.errors import InternalError
from tests.repository.remote.fake_objects import ADDRESS
from tests.repository.scene import ALL_VERSIONS, CONFIG, write_model

OLD = {"m/config.pbtxt", "m/1/model.py"}


def poll(it) -> None:
    it.run(it.models.poll_once())


def folder_of(it, name="m", version=1):
    it.until(
        lambda: not it.engine.draining
    )  # what was replaced may end some turns of the loop later
    (found,) = [each for each in it.loader.alive
                if (each.plan.name, each.plan.version) == (name, version)]  # fmt: skip
    return found.plan.model_directory


def files_in(directory):
    # `os.walk` takes it well that a folder is being removed.
    return sorted(
        os.path.relpath(Path(folder, name), directory)
        for folder, _, names in os.walk(directory)
        for name in names
    )


def copies(mount):
    """The folders of copies that are there, without those of configurations alone."""
    found = (files_in(path) for path in mount.glob("*/copy*"))
    return [files for files in found if any("model.py" in file for file in files)]


@pytest.fixture
def polled(remote, objects):
    objects.put_model()
    it = remote()
    it.run(it.models.start())
    return it


def test_model_is_loaded_from_a_local_copy(polled, mount):
    folder = folder_of(polled)

    assert polled.engine.is_model_ready("m")
    assert files_in(folder) == ["1/model.py", "config.pbtxt"]
    assert folder.name == "m"
    assert folder.is_relative_to(mount)
    assert folder.parents[1].stat().st_mode & 0o777 == 0o700


def test_copy_for_ray_has_to_be_in_a_folder_that_nodes_share(polled):
    (loaded,) = polled.loader.alive

    assert loaded.plan.sharing.endswith(
        "set the variable TRITON_AWS_MOUNT_DIRECTORY to a folder that all nodes share"
    )


def test_every_file_is_downloaded_once(polled, objects):
    assert set(objects.downloads) == OLD
    assert len(objects.downloads) == 2
    assert objects.requests["find"] == 1
    assert objects.requests["ls"] == 0


def test_local_and_remote_models_are_served_together(remote, objects, repository):
    objects.put_model("far")
    objects.put_model("both")
    write_model(repository, "near")
    write_model(repository, "both")
    it = remote(repository)

    with pytest.raises(InternalError, match="failed to load all models"):
        it.run(it.models.start())

    assert it.engine.is_model_ready("far")
    assert it.engine.is_model_ready("near")
    assert [row.reason for row in it.rows("both")] == ["model appears in two or more repositories"]
    it.loader.asked.clear()
    poll(it)
    assert it.loader.asked == []


@pytest.mark.parametrize(
    "policy, versions, there",
    [
        ("", ["3"], {3}),
        ("version_policy { latest { num_versions: 2 } }", ["2", "3"], {2, 3}),
        ("version_policy { specific { versions: [1] } }", ["1"], {1}),
        ("version_policy { all { } }", ["1", "2", "3"], {1, 2, 3}),
    ],
)
def test_only_wanted_versions_are_downloaded(remote, objects, policy, versions, there):
    objects.put_model("m", CONFIG + policy, ("1", "2", "3"))
    it = remote()
    it.run(it.models.start())

    loaded = {path.split("/")[1] for path in objects.downloads if path.endswith("model.py")}
    assert loaded == set(versions)
    assert {version for name, version in it.loader.asked} == there


def test_versions_of_a_model_with_agents_are_all_downloaded(remote, objects):
    agents = 'model_repository_agents { agents [{ name: "checksum" }] }'
    objects.put_model("m", CONFIG + agents, ("1", "2"))
    it = remote()
    it.run(it.models.start())

    assert set(objects.downloads) == {"m/config.pbtxt", "m/1/model.py", "m/2/model.py"}


def test_configuration_that_a_client_sends_chooses_the_versions(remote, objects):
    objects.put_model("m", CONFIG, ("1", "2"))
    it = remote(mode="explicit")
    it.run(it.models.start())
    it.load("m", '{"backend": "python", "version_policy": {"specific": {"versions": [1]}}}')

    assert it.loader.asked == [("m", 1)]
    assert "m/2/model.py" not in objects.downloads


def test_files_that_a_client_sends_are_loaded_without_the_store(remote, objects):
    objects.put_model()
    it = remote(mode="explicit")
    it.run(it.models.start())
    it.load("m", '{"backend": "python"}', {"1/model.py": b"x"})

    assert it.engine.is_model_ready("m")
    assert "m/1/model.py" not in objects.downloads


# Changes


def test_poll_of_an_unchanged_store_is_one_request(polled, objects):
    objects.requests.clear()
    poll(polled)

    assert objects.requests == {"find": 1}


def test_poll_finds_new_changed_and_removed_models(polled, objects):
    objects.put_model("new")
    poll(polled)
    assert polled.engine.is_model_ready("new")

    polled.loader.asked.clear()
    objects.put("m/1/model.py", "other = 1")
    poll(polled)
    assert polled.loader.asked == [("m", 1)]
    assert (folder_of(polled) / "1" / "model.py").read_text() == "other = 1"

    objects.remove("m/")
    objects.remove("new/")
    poll(polled)
    assert not polled.engine.is_model_ready("m")
    assert polled.models.is_ready()


def test_changed_version_alone_is_downloaded_and_loaded(remote, objects):
    objects.put_model("m", ALL_VERSIONS, ("1", "2"))
    it = remote()
    it.run(it.models.start())
    objects.downloads.clear()
    it.loader.asked.clear()
    first = folder_of(it, version=1)
    objects.put("m/2/model.py", "other = 1")
    poll(it)

    assert objects.downloads == ["m/2/model.py"]
    assert it.loader.asked == [("m", 2)]
    assert folder_of(it, version=1) == first
    assert (folder_of(it, version=2) / "1" / "model.py").exists()
    assert (first / "1" / "model.py").exists()


def test_running_model_keeps_its_files_while_a_new_copy_is_loaded(polled, objects):
    old = folder_of(polled)
    content = (old / "1" / "model.py").read_bytes()
    polled.loader.failures["m", 1] = [InternalError("half of it is missing")]
    objects.put("m/1/model.py", "half of it")
    poll(polled)

    assert polled.engine.is_model_ready("m")
    assert folder_of(polled) == old
    assert (old / "1" / "model.py").read_bytes() == content

    polled.loader.asked.clear()
    poll(polled)
    assert polled.loader.asked == []  # nothing has changed since
    objects.put("m/1/helper.py", "the other half")
    poll(polled)
    assert polled.loader.asked == [("m", 1)]
    assert files_in(folder_of(polled)) == ["1/helper.py", "1/model.py", "config.pbtxt"]


def test_copies_are_removed_after_a_reload_an_unload_and_a_failure(polled, objects, mount):
    objects.put("m/1/model.py", "other = 1")
    poll(polled)
    polled.until(lambda: len(copies(mount)) == 1)

    polled.loader.failures["m", 1] = [InternalError("no")]
    objects.put("m/1/model.py", "broken")
    poll(polled)
    objects.remove("m/")
    poll(polled)
    polled.until(lambda: copies(mount) == [])


def test_copy_is_kept_until_the_last_request_is_finished(polled, objects, mount):
    sink = polled.submit("m")
    old = folder_of(polled)
    objects.put("m/1/model.py", "other = 1")
    poll(polled)
    assert files_in(old) == ["1/model.py", "config.pbtxt"]

    polled.loader.loaded[0].instance.finish()
    polled.until(lambda: not old.exists())
    assert sink is not None


def test_folder_is_removed_at_the_end(polled, mount):
    assert list(mount.iterdir())

    polled.run(polled.models.stop(0.0))
    polled.finder.close()

    assert list(mount.iterdir()) == []


# Failures


def test_failed_listing_changes_nothing_and_is_said_once(polled, objects, caplog):
    objects.failure = OSError("the network is down")
    with caplog.at_level(logging.INFO):
        poll(polled)
        poll(polled)
        assert polled.engine.is_model_ready("m")
        objects.failure = None
        poll(polled)
        poll(polled)

    said = [record.getMessage() for record in caplog.records if "remote" in record.name]
    assert len(said) == 2
    assert "the network is down; the models of this repository stay as they are" in said[0]
    assert "can be listed again" in said[1]


def test_failed_listing_of_one_repository_does_not_stop_the_others(remote, objects, repository):
    objects.failure = PermissionError("who are you")
    objects.put_model("far")
    write_model(repository, "near")
    it = remote(repository)

    with pytest.raises(InternalError, match="access denied: who are you"):
        it.run(it.models.start())
    assert it.engine.is_model_ready("near")
    assert not it.models.is_ready()

    objects.failure = None
    poll(it)
    assert it.engine.is_model_ready("far")
    assert it.models.is_ready()


def test_model_that_cannot_be_downloaded_fails_alone_and_is_tried_at_every_poll(remote, objects):
    objects.put_model("good")
    objects.put_model("bad")
    denied = [PermissionError("no"), PermissionError("no")]
    objects.failures["bad/1/model.py"] = denied
    it = remote()
    with pytest.raises(InternalError, match="failed to load all models"):
        it.run(it.models.start())
    assert it.engine.is_model_ready("good")
    (row,) = it.rows("bad")
    assert "failed to access 's3://bucket/models/bad/1/model.py': access denied" in row.reason

    poll(it)
    assert denied == []
    poll(it)
    assert it.engine.is_model_ready("bad")


def test_old_model_serves_while_its_new_files_cannot_be_downloaded(polled, objects, mount):
    objects.put("m/1/model.py", "other = 1")
    objects.failures["m/1/model.py"] = [OSError("reset")]
    poll(polled)
    assert polled.engine.is_model_ready("m")
    polled.until(lambda: len(copies(mount)) == 1)  # nothing is left of the half copy

    poll(polled)
    assert (folder_of(polled) / "1" / "model.py").read_text() == "other = 1"


def test_download_is_tried_again_as_often_as_loads(remote, objects):
    objects.put_model()
    objects.failures["m/1/model.py"] = [OSError("reset"), OSError("reset")]
    it = remote(retry_count=2)
    it.run(it.models.start())

    assert it.engine.is_model_ready("m")
    assert objects.downloads.count("m/1/model.py") == 3
    assert objects.downloads.count("m/config.pbtxt") == 1


def test_file_that_changes_while_it_is_downloaded_is_an_error(polled, objects):
    objects.put("m/1/model.py", "new")
    listing = objects.find("bucket/models", detail=True)
    objects.find = lambda path, *, detail: listing
    objects.put("m/1/model.py", "newer")
    poll(polled)

    (row,) = polled.rows("m")
    assert row.state == "READY"
    del objects.find
    poll(polled)
    assert (folder_of(polled) / "1" / "model.py").read_text() == "newer"


def test_unload_ends_a_download(remote, objects, mount):
    objects.put_model()
    objects.gates["m/1/model.py"] = threading.Event()  # never set
    it = remote(mode="explicit")
    it.run(it.models.start())
    loading = it.task(it.models.load("m", None, {}))
    it.until(lambda: "m/1/model.py" in objects.downloads)
    it.unload("m")
    it.until(loading.done)

    assert "given up" in loading.exception().message
    it.until(lambda: copies(mount) == [])


def test_end_of_the_server_ends_downloads(remote, objects):
    objects.put_model()
    objects.gates["m/1/model.py"] = threading.Event()  # never set
    it = remote()
    starting = it.task(it.models.start())
    it.until(lambda: "m/1/model.py" in objects.downloads)
    starting.cancel()
    it.until(starting.done)

    it.finder.close()  # would wait for ever


def test_load_from_a_store_that_is_away_says_so(remote, objects):
    objects.put_model()
    it = remote(mode="explicit")
    it.run(it.models.start())
    objects.failure = OSError("the network is down")
    refusal = it.refusal("m")

    assert refusal.message.startswith("failed to load 'm', failed to poll from model repository: ")
    assert "the network is down" in refusal.message


def test_errors_name_the_files_of_the_store(remote, objects):
    objects.put_model("m", "no_such_field: 1")
    objects.put_model("n")
    it = remote(mode="explicit")
    it.run(it.models.start())

    async def fail(plan):
        raise InternalError(f"{plan.version_directory}/model.py is wrong")

    it.loader.on_load = fail
    assert "s3://bucket/models/m/config.pbtxt:1:1: " in it.refusal("m").message
    assert "Internal: s3://bucket/models/n/1/model.py is wrong" in it.refusal("n").message


def test_path_with_nothing_below_is_refused_at_the_start(remote, objects):
    it = remote()
    with pytest.raises(InternalError, match="'s3://bucket/models' is not a valid directory"):
        it.run(it.models.start())


def test_index_asks_the_store_once_for_callers_at_the_same_time(polled, objects):
    objects.put_model("new")
    objects.requests.clear()

    async def look():
        await asyncio.gather(*(polled.models.look_again() for _ in range(5)))

    polled.run(look())

    assert {row.name for row in polled.rows()} == {"m", "new"}
    assert objects.requests == {"find": 1}


def test_secrets_are_not_in_errors(remote, objects):
    objects.failure = OSError("bad key id-of-key with top-secret")
    it = remote(
        environment={"AWS_ACCESS_KEY_ID": "id-of-key", "AWS_SECRET_ACCESS_KEY": "top-secret"}
    )
    with pytest.raises(InternalError) as caught:
        it.run(it.models.start())

    assert "bad key *** with ***" in caught.value.message


def test_hostile_names_stay_outside(remote, objects, mount, caplog):
    objects.put_model()
    objects.put("m/../../../../evil.py")
    objects.put("m/1/../../../evil.py")
    objects.put("../evil/config.pbtxt")
    it = remote()
    it.run(it.models.start())

    assert it.engine.is_model_ready("m")
    assert not any("evil" in path for path in objects.downloads)
    assert "3 files of model repository 's3://bucket/models' are left out" in caplog.text


def test_model_of_the_same_name_in_a_local_folder_has_another_namespace(remote, objects, tmp_path):
    local = tmp_path / "local"
    write_model(local)
    objects.put_model()
    it = remote(local, mode="none", namespaces=(ADDRESS, str(local)))

    it.run(it.models.start())

    assert [(row.namespace, row.state) for row in it.rows("m")] == [
        (str(local), "READY"),
        (ADDRESS, "READY"),
    ]
    assert it.engine.lookup(f"{ADDRESS}::m").spec.namespace == ADDRESS
