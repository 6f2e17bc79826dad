# SPDX-License-Identifier: Apache-2.0
"""Folders of processes that live, that were killed, and of others."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import pytest

from pytriton.runtime.executor import environment
from pytriton.runtime.executor.environment import TemporaryFolder, remove_abandoned

PREFIX = "pytriton-test-"
OWNER = f"""
import sys
from pytriton.runtime.executor.environment import TemporaryFolder
folder = TemporaryFolder.create({PREFIX!r})
(folder.path / "unpacked").mkdir()
(folder.path / "unpacked" / "file").touch()
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """The system's folder for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def owner():
    """Another process with a folder."""
    command = [sys.executable, "-c", OWNER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.path = process.stdout.readline().decode().strip()
        yield process
        process.kill()


def test_folder_belongs_to_its_user_alone_and_can_be_removed(place):
    folder = TemporaryFolder.create(PREFIX)
    (folder.path / "x").touch()

    assert folder.path.parent == place
    assert folder.path.stat().st_mode & 0o777 == 0o700
    assert remove_abandoned(PREFIX) == []
    folder.remove()
    assert list(place.iterdir()) == []


def test_folder_of_a_killed_process_is_removed_and_that_of_a_living_one_is_not(place, owner):
    assert remove_abandoned(PREFIX) == []

    owner.kill()
    owner.wait()

    assert [str(path) for path in remove_abandoned(PREFIX)] == [owner.path]
    assert list(place.iterdir()) == []


def test_empty_folder_is_removed(place):
    tempfile.mkdtemp(prefix=PREFIX)

    assert len(remove_abandoned(PREFIX)) == 1
    assert list(place.iterdir()) == []


def test_what_is_not_ours_is_left_alone(place, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "owner.lock").touch()
    elsewhere.chmod(0o700)
    (place / f"{PREFIX}link").symlink_to(elsewhere)
    (place / f"{PREFIX}file").touch()
    (place / f"{PREFIX}full").mkdir(mode=0o700)
    (place / f"{PREFIX}full" / "x").touch()
    (place / f"{PREFIX}open").mkdir()
    (place / f"{PREFIX}open").chmod(0o777)
    (place / f"{PREFIX}open" / "owner.lock").touch()
    (place / f"{PREFIX}false").mkdir(mode=0o700)
    (place / f"{PREFIX}false" / "owner.lock").symlink_to(elsewhere / "owner.lock")
    before = sorted(place.rglob("*"))

    assert remove_abandoned(PREFIX) == []
    assert sorted(place.rglob("*")) == before
    assert (elsewhere / "owner.lock").exists()


def test_folder_of_another_user_is_left_alone(place, owner, monkeypatch):
    owner.kill()
    owner.wait()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)

    assert remove_abandoned(PREFIX) == []


@pytest.mark.parametrize("moment", ["before the lock", "before it is held"])
def test_folder_that_was_taken_for_abandoned_meanwhile_is_not_used(place, monkeypatch, moment):
    real = getattr(environment, "_lock_new")  # noqa: B009
    taken = []

    def interrupt(path):
        if not taken and moment == "before it is held":
            (path / "owner.lock").touch()
        if not taken:
            taken.extend(remove_abandoned(PREFIX))
        return real(path)

    monkeypatch.setattr(environment, "_lock_new", interrupt)
    folder = TemporaryFolder.create(PREFIX)

    assert len(taken) == 1
    assert list(place.iterdir()) == [folder.path]
    folder.remove()
