# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.serving.repository.reading.layout import take_snapshot
from pytriton.serving.repository.remote.listing import (
    RemoteFile,
    config_files,
    files_of_versions,
    model_names,
    read_listing,
    shared_files,
    snapshot_of,
    split_reusable,
    version_folders,
)

PARTS = st.sampled_from(
    ["m", "n", "1", "2", "01", "model.py", "config.pbtxt", "configs", "", ".", "..", ".git", "a\\b",
     "x\0y", "__pycache__", "é", "n" * 256]
)  # fmt: skip
PATHS = st.lists(PARTS, max_size=5).map("/".join)


def files(*paths, tag="t"):
    return [RemoteFile(path, 3, tag) for path in paths]


def listed(*paths):
    return read_listing("b/r", files(*paths))


def test_files_are_sorted_by_model():
    listing = listed("b/r/m/1/model.py", "b/r/m/config.pbtxt", "b/r/n/config.pbtxt")

    assert {name: [file.path for file in found] for name, found in listing.models.items()} == {
        "m": ["1/model.py", "config.pbtxt"],
        "n": ["config.pbtxt"],
    }
    assert listing.refused == ()


@pytest.mark.parametrize(
    "path", ["b/r", "b/r/", "b/r/readme.md", "b/rest/m/1/model.py", "b/r/.git/config", "c/m/x",
             "b/r/m/1/__pycache__/model.pyc"],
)  # fmt: skip
def test_what_belongs_to_no_model_is_left_out_silently(path):
    assert listed(path).models == {}
    assert listed(path).refused == ()


@pytest.mark.parametrize(
    "path",
    ["b/r/m/../../../etc/passwd", "b/r/../m/x", "b/r//etc/passwd", "b/r/m//x", "b/r/m/./x",
     "b/r/m/a\\..\\..\\x", "b/r/m/x\0y", "b/r/m/" + "n" * 256],
)  # fmt: skip
def test_path_that_is_no_file_of_a_model_is_refused(path):
    assert listed(path).models == {}
    assert listed(path).refused == (path,)


def test_file_is_left_out_where_others_need_a_folder():
    listing = listed("b/r/m/1", "b/r/m/1/model.py", "b/r/m/2/x", "b/r/m/2/x/y")

    assert [file.path for file in listing.models["m"]] == ["1/model.py", "2/x/y"]
    assert listing.refused == ("b/r/m/1", "b/r/m/2/x")


def test_folder_without_files_is_kept():
    listing = listed("b/r/m/1/", "b/r/m/")

    assert [file.path for file in listing.models["m"]] == ["1/"]
    assert version_folders(listing.models["m"]) == {1: "1"}


@given(st.lists(PATHS, max_size=20))
def test_listed_files_fit_into_a_local_folder(tmp_path_factory, paths):
    listing = read_listing("b/r", files(*(f"b/r/{path}" for path in paths)))

    for name, found in listing.models.items():
        root = tmp_path_factory.mktemp("model") / name
        for file in found:
            target = root / file.path
            assert target.resolve().is_relative_to(root.resolve())
            if file.is_folder:
                target.mkdir(parents=True, exist_ok=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                assert not target.exists()
                target.write_text("x")
        written = {os.path.relpath(path, root) for path in root.rglob("*") if path.is_file()}
        assert written == {file.path for file in found if not file.is_folder}


@given(st.lists(PATHS, max_size=20))
def test_every_file_of_a_model_is_shared_or_of_one_version(paths):
    for found in read_listing("b/r", files(*(f"b/r/m/{path}" for path in paths))).models.values():
        shared, versions = shared_files(found), version_folders(found)
        parts = [files_of_versions(found, [version]) for version in versions]

        assert sorted([*shared, *(file for part in parts for file in part)], key=str) == sorted(
            found, key=str
        )
        assert set(config_files(found)) <= set(shared)
        assert snapshot_of(found).versions.keys() == versions.keys()


def test_versions_and_shared_files_are_told_apart_as_in_a_local_folder(tmp_path):
    paths = ["config.pbtxt", "configs/a.pbtxt", "labels.txt", "1/model.py", "02/x", "1x/y", "10/z"]
    for path in paths:
        target = tmp_path / path
        target.parent.mkdir(exist_ok=True)
        target.write_text("x")

    local, remote = take_snapshot(tmp_path), snapshot_of(files(*paths))

    assert local.versions.keys() == remote.versions.keys() == {1, 10}


@pytest.mark.parametrize(
    "path, changed",
    [("config.pbtxt", "config"), ("configs/a.pbtxt", "config"), ("labels.txt", "shared"),
     ("1/model.py", "versions"), ("3/model.py", "versions")],
)  # fmt: skip
@pytest.mark.parametrize("new", [("t", 4), ("u", 3)])
def test_change_of_size_or_tag_changes_that_part_of_the_snapshot(path, changed, new):
    before = files("config.pbtxt", "labels.txt", "1/model.py", "2/model.py")
    after = [file for file in before if file.path != path] + [RemoteFile(path, new[1], new[0])]

    first, second = snapshot_of(before), snapshot_of(after)

    parts = ("config", "shared", "versions")
    assert [part for part in parts if getattr(first, part) != getattr(second, part)] == [changed]
    assert first.versions[2] == second.versions[2]


def test_order_of_a_listing_does_not_matter():
    paths = ["config.pbtxt", "1/a", "1/b"]

    assert snapshot_of(files(*paths)) == snapshot_of(files(*reversed(paths)))


def test_names_of_models_are_the_folders_of_the_root():
    folders = ["b/r/m", "b/r/n/", "b/r/.git", "b/r/", "b/r", "b/r/..", "b/r/a\\b", "b/r/m"]

    assert model_names("b/r", folders) == ["m", "n"]


def test_only_unchanged_files_are_taken_from_an_earlier_copy():
    old = {file.path: file for file in files("a", "b")}
    new = [*files("a"), *files("b", tag="u"), *files("c")]

    reusable, missing = split_reusable(new, old)

    assert [file.path for file in reusable] == ["a"]
    assert [file.path for file in missing] == ["b", "c"]


def test_paths_of_files_are_relative():
    assert not any(
        Path(file.path).is_absolute() for file in listed("b/r/m//x/y").models.get("m", ())
    )
