# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from pytriton.base.errors import InternalError
from pytriton.serving.repository.remote.copies import PREFIX, LocalCopies

HOLDER = """
import pathlib, sys, time
from pytriton.serving.repository.remote.copies import LocalCopies
copies = LocalCopies(pathlib.Path(sys.argv[1]))
copies.open()
copies.new("m")
print(copies.root, flush=True)
time.sleep(600)
"""


@pytest.fixture
def opened(tmp_path):
    found = []

    def make():
        found.append(LocalCopies(tmp_path))
        found[-1].open()
        return found[-1]

    yield make
    for each in found:
        each.close()


def test_folder_is_private_and_removed_at_the_end(opened, tmp_path):
    copies = opened()
    assert copies.root.parent == tmp_path
    assert copies.root.stat().st_mode & 0o777 == 0o700

    copies.close()
    copies.close()

    assert list(tmp_path.iterdir()) == []


def test_folder_of_a_living_server_is_left_alone(opened):
    first = opened()
    second = opened()

    assert first.root.is_dir()
    assert second.root != first.root


def test_folder_of_a_killed_server_is_removed_by_the_next_one(opened, tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        root = pathlib.Path(process.stdout.readline().strip())
        first = opened()
        assert root.is_dir()
        process.send_signal(signal.SIGKILL)
        process.wait()

        opened()

        assert not root.is_dir()
        assert first.root.is_dir()


def test_links_and_new_folders_without_a_lock_are_left_alone(opened, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / f"{PREFIX}link").symlink_to(outside)
    (tmp_path / f"{PREFIX}new").mkdir()
    old = tmp_path / f"{PREFIX}old"
    old.mkdir()
    os.utime(old, (time.time() - 86400,) * 2)
    opened()

    assert outside.is_dir()
    assert (tmp_path / f"{PREFIX}new").is_dir()
    assert not old.exists()


def test_lock_that_is_a_link_is_not_followed(opened, tmp_path):
    folder = tmp_path / f"{PREFIX}x"
    folder.mkdir()
    (folder / "lock").symlink_to(tmp_path / "target")
    (tmp_path / "target").touch()
    opened()

    assert folder.is_dir()


def test_missing_folder_is_an_error(tmp_path):
    with pytest.raises(InternalError, match="for local copies of models: No such file"):
        LocalCopies(tmp_path / "none").open()
