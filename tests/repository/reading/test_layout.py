# SPDX-License-Identifier: Apache-2.0
"""What lies in a repository, what leads out of it, and what counts as a change."""

from __future__ import annotations

import os
import sys

import pytest

from pytriton.base.errors import InternalError, InvalidArgumentError, UnsupportedError
from pytriton.serving.repository.reading.layout import (
    ModelPlace,
    check_links,
    contained_file,
    find_models,
    is_inside,
    mistaken_versions,
    parse_version,
    take_snapshot,
    version_directories,
)
from tests.repository.scene import write_code, write_model


def test_models_are_the_directories_of_all_repositories(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for repository, name in ((first, "b"), (first, "a"), (second, "b"), (first, ".git")):
        write_model(repository, name)
    (first / "file").write_text("x")
    (first / "link").symlink_to(second / "b")

    found = find_models([first, second])

    assert {name: len(places) for name, places in found.items()} == {"a": 1, "b": 2, "link": 1}
    assert list(found) == ["a", "b", "link"]


@pytest.mark.skipif(sys.platform != "linux", reason="file systems of other systems refuse the name")
def test_directory_whose_name_is_not_utf8_is_no_model_and_is_told_once(tmp_path, caplog):
    write_model(tmp_path, "good")
    write_model(tmp_path, "bad\udcff")

    assert [*find_models([tmp_path])] == [*find_models([tmp_path])] == ["good"]
    assert caplog.messages == [
        f"the directory 'bad\\udcff' in {tmp_path} is no model: expected a name in UTF-8"
    ]


def test_missing_repository_is_named(tmp_path):
    with pytest.raises(InternalError, match="failed to stat file"):
        find_models([tmp_path / "nowhere"])


@pytest.mark.parametrize(
    "name, version",
    [
        ("1", 1),
        ("0", 0),
        ("10", 10),
        (str(2**63 - 1), 2**63 - 1),
        (str(2**63), None),
        ("01", None),
        ("00", None),
        ("1a", None),
        ("-1", None),
        ("+1", None),
        ("1.0", None),
        ("", None),
        ("\N{ARABIC-INDIC DIGIT ONE}", None),
        ("1\n", None),
    ],
)
def test_versions_are_digits_without_leading_zeros(name, version):
    assert parse_version(name) == version


def test_version_directories_are_in_the_order_of_their_numbers(tmp_path):
    directory = write_model(tmp_path, versions=("10", "2", "1", "01", "configs"))
    (directory / "3").write_text("a file")

    assert list(version_directories(directory)) == [1, 2, 10]
    assert mistaken_versions(directory) == ["01"]


@pytest.mark.parametrize("name", ["..", "../x", "a/../../x", "/etc/passwd", "", "a\0b", "a/../.."])
def test_names_that_lead_out_are_seen_without_looking(name):
    assert not is_inside(name)


@pytest.mark.parametrize("name", ["x", "a/x", "a/../x", "..x", "x..", "./x"])
def test_other_names_stay_inside(name):
    assert is_inside(name)


@pytest.fixture
def place(tmp_path):
    return ModelPlace(tmp_path / "models", write_model(tmp_path / "models"))


@pytest.mark.parametrize("kind", ["model", "version", "code", "config"])
def test_links_that_lead_out_of_the_repositories_are_refused(tmp_path, kind):
    elsewhere = write_model(tmp_path / "elsewhere", "m")
    repository = tmp_path / "repository"
    directory = repository / "m"
    if kind == "model":
        repository.mkdir()
        directory.symlink_to(elsewhere)
    else:
        write_model(repository, "m")
        name = {"version": "2", "code": "1/model.py", "config": "config.pbtxt"}[kind]
        target = elsewhere / {"version": "1"}.get(kind, name)
        (directory / name).unlink(missing_ok=True)
        (directory / name).symlink_to(target)
    place = ModelPlace(repository, directory)

    with pytest.raises(InvalidArgumentError, match="outside of the model repositories"):
        check_links(place, [repository])
    check_links(place, [repository, tmp_path / "elsewhere"])


def test_contained_file_may_be_a_link_inside_the_repository(place):
    (place.repository / "common.txt").write_text("a")
    (place.directory / "labels.txt").symlink_to("../common.txt")

    assert contained_file(place, "labels.txt").read_text() == "a"


def test_contained_file_may_lie_in_a_model_that_is_a_link(place, tmp_path):
    elsewhere = write_model(tmp_path / "elsewhere", "linked")
    (elsewhere / "labels.txt").write_text("a")
    (place.repository / "linked").symlink_to(elsewhere)
    linked = ModelPlace(place.repository, place.repository / "linked")

    assert contained_file(linked, "labels.txt").read_text() == "a"


@pytest.mark.parametrize("kind", ["link", "directory link", "absolute", "upward"])
def test_contained_file_never_leads_out_of_the_repository(place, tmp_path, kind):
    secret = tmp_path / "secret.txt"
    secret.write_text("a")
    (place.directory / "link.txt").symlink_to(secret)
    (place.directory / "link").symlink_to(tmp_path)
    name = {
        "link": "link.txt",
        "directory link": "link/secret.txt",
        "absolute": str(secret),
        "upward": "../../secret.txt",
    }[kind]

    with pytest.raises(UnsupportedError, match="is outside model directory"):
        contained_file(place, name)


# Changes


def test_snapshot_tells_config_shared_files_and_versions_apart(tmp_path):
    directory = write_model(tmp_path, versions=("1", "2"))
    before = take_snapshot(directory)

    (directory / "config.pbtxt").write_text("other")
    config_changed = take_snapshot(directory)
    (directory / "labels.txt").write_text("a")
    shared_changed = take_snapshot(directory)
    write_code(directory, "2")
    version_changed = take_snapshot(directory)

    assert version_changed == take_snapshot(directory)
    assert (config_changed.shared, config_changed.versions) == (before.shared, before.versions)
    assert config_changed.config != before.config
    assert shared_changed.config == config_changed.config
    assert shared_changed.shared != config_changed.shared
    assert version_changed.shared == shared_changed.shared
    assert version_changed.versions[1] == before.versions[1]
    assert version_changed.versions[2] != before.versions[2]


@pytest.mark.parametrize("change", ["touch", "add", "remove", "add below", "link"])
def test_snapshot_sees_every_change_of_a_version(tmp_path, change):
    directory = write_model(tmp_path)
    version = directory / "1"
    (version / "weights").mkdir()
    (version / "weights" / "a.bin").write_bytes(b"a")
    (version / "old.txt").write_text("a")
    before = take_snapshot(directory)

    if change == "touch":
        os.utime(version / "model.py", ns=(1, 1))
    elif change == "add":
        (version / "new.txt").write_text("a")
    elif change == "remove":
        (version / "old.txt").unlink()
    elif change == "add below":
        (version / "weights" / "b.bin").write_bytes(b"b")
    else:
        (version / "link").symlink_to(directory)  # leads in a circle

    assert take_snapshot(directory) != before
    assert take_snapshot(directory) == take_snapshot(directory)


def test_compiled_code_and_dangling_links_are_no_change(tmp_path):
    directory = write_model(tmp_path)
    before = take_snapshot(directory)

    (directory / "1" / "__pycache__").mkdir()
    (directory / "1" / "__pycache__" / "model.cpython-311.pyc").write_bytes(b"x")
    (directory / "1" / "dangling").symlink_to("nowhere")

    assert take_snapshot(directory) == before
