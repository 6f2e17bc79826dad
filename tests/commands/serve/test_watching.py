# SPDX-License-Identifier: Apache-2.0
"""When a file counts as changed."""

from __future__ import annotations

import os

import pytest

from pytriton.tools.commands.serve.reloading import WatchedFiles


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "code.py"
    path.write_text("one")
    return path


@pytest.fixture
def files(path):
    files = WatchedFiles()
    files.watch([str(path)])
    return files


def write(path):
    path.write_text("other text")


def write_at_another_time(path):
    os.utime(path, ns=(0, 0))


def replace(path):
    status = path.stat()
    other = path.with_name("other")
    other.write_text("two")
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(path)


@pytest.mark.parametrize(
    "change", [write, write_at_another_time, replace, lambda path: path.unlink()]
)
def test_change_is_noticed_once(files, path, change):
    assert files.changed() == []

    change(path)

    assert files.changed() == [str(path)]
    assert files.changed() == []


def test_change_while_other_files_are_added_is_not_lost(files, path, tmp_path):
    path.write_text("changed")

    files.watch([str(path), str(tmp_path / "new.py")])

    assert files.changed() == [str(path)]


def test_file_that_appears_is_noticed(files, tmp_path):
    files.watch([str(tmp_path / "new.py")])
    (tmp_path / "new.py").write_text("")

    assert files.changed() == [str(tmp_path / "new.py")]
