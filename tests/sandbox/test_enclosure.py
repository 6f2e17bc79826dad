# SPDX-License-Identifier: Apache-2.0
"""What is made for a worker in a sandbox and removed after it, and where groups can be made."""

from __future__ import annotations

import os
import pathlib
import sys

import pytest

from pytriton.base.sandbox import SandboxPolicy
from pytriton.runtime.sandbox import enclosure as module
from pytriton.runtime.sandbox.enclosure import (
    Enclosure,
    group_limits,
    remove_abandoned_groups,
    remove_folder,
)
from pytriton.runtime.sandbox.probe import find_groups
from tests.sandbox.test_confinement import NotedKernel

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes need Linux")


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """A folder in which new folders have the files of a control group, which go with them."""
    folder = tmp_path / "groups"
    folder.mkdir()
    make, remove = pathlib.Path.mkdir, pathlib.Path.rmdir

    def make_group(path, *arguments, **named):
        make(path, *arguments, **named)
        if path.parent.resolve() == folder:
            for name in ("pids.max", "memory.max", "cgroup.procs"):
                (path / name).touch()

    def remove_group(path):
        for file in path.iterdir():
            file.unlink()
        remove(path)

    monkeypatch.setattr(pathlib.Path, "mkdir", make_group)
    monkeypatch.setattr(pathlib.Path, "rmdir", remove_group)
    return folder


def opened(tmp_path, **policy):
    scratch = tmp_path / "scratch"
    scratch.mkdir(exist_ok=True)
    made = Enclosure(SandboxPolicy(scratch_folder=str(scratch), **policy), NotedKernel())
    made.open()
    return made, scratch


def test_limits_are_written_to_one_group_for_each_folder():
    version_1 = SandboxPolicy(groups={"pids": "/p", "memory": "/m"}, processes=5, memory_bytes=6)
    version_2 = SandboxPolicy(groups={"pids": "/g", "memory": "/g"}, processes=5, memory_bytes=6)
    unlimited = SandboxPolicy(groups={"pids": "/p", "memory": "/m"}, processes=5)

    assert group_limits(version_1) == {"/p": {"pids": 5}, "/m": {"memory": 6}}
    assert group_limits(version_2) == {"/g": {"pids": 5, "memory": 6}}
    assert group_limits(unlimited) == {"/p": {"pids": 5}}


def test_group_has_the_limits_of_the_policy(tmp_path, groups):
    folders = dict.fromkeys(("pids", "memory"), str(groups))

    made, _ = opened(tmp_path, groups=folders, processes=5, memory_bytes=6)

    (group,) = groups.iterdir()
    assert (group / "pids.max").read_text() == "5"
    assert (group / "memory.max").read_text() == "6"
    made.on_forked()
    made.close()


def test_group_without_files_for_limits_is_an_error_that_leaves_nothing(tmp_path):
    folder = tmp_path / "groups"
    folder.mkdir()

    with pytest.raises(OSError, match="takes no limits of pids"):
        opened(tmp_path, groups={"pids": str(folder)})

    assert list(folder.iterdir()) == []
    assert list((tmp_path / "scratch").iterdir()) == []


def test_output_of_a_worker_is_printed_here(tmp_path, capfd):
    made, _ = opened(tmp_path)
    os.write(made._writers[0], b"to standard output\n")
    os.write(made._writers[1], b"to standard error\n")
    made.on_forked()

    assert [made.forward(descriptor) for descriptor in made.outputs] == [True, True]
    assert [made.forward(descriptor) for descriptor in made.outputs] == [False, False]
    assert capfd.readouterr() == ("to standard output\n", "to standard error\n")
    made.close()


def test_last_output_of_a_worker_is_printed_when_it_has_ended(tmp_path, capfd):
    made, scratch = opened(tmp_path)
    os.write(made._writers[0], b"last words\n")
    made.on_forked()

    assert made.close() is None

    assert capfd.readouterr().out == "last words\n"
    assert list(scratch.iterdir()) == []
    assert made.outputs == ()


def test_output_that_nobody_takes_is_lost(monkeypatch):
    """The process that forks workers must not end with the reader of its output."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    monkeypatch.setattr(module, "_PATIENCE_S", 0.0)

    module._write(writer, bytes(1 << 20))
    os.close(reader)
    module._write(writer, b"more")

    os.close(writer)


def test_worker_whose_sandbox_cannot_be_applied_says_why(tmp_path, monkeypatch):
    made = Enclosure(SandboxPolicy(scratch_folder=str(tmp_path)), NotedKernel())
    made.open()
    monkeypatch.setattr(os, "dup2", lambda *_: None)
    monkeypatch.setattr(module, "_reopened", lambda stream, _: stream)

    def refuse(*_):
        raise PermissionError(1, "not here")

    monkeypatch.setattr(module, "confine", refuse)

    assert made.enter([]) == "Its sandbox cannot be applied: [Errno 1] not here"
    made.on_forked()
    made.close()


def test_scratch_folder_with_contents_is_removed_by_another_process(tmp_path):
    folder = tmp_path / "worker"
    deep = folder
    for _ in range(60):
        deep = deep / "folder"
    deep.mkdir(parents=True)
    (folder / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "kept").mkdir()
    (folder / "closed").mkdir(mode=0)

    pid = remove_folder(str(folder))
    os.waitpid(pid, 0)

    assert not folder.exists()
    assert (tmp_path / "kept").exists()
    assert remove_folder(str(folder)) is None


def test_groups_of_killed_processes_are_removed(tmp_path):
    mine = tmp_path / f"pytriton-worker-{os.getpid()}-1"
    gone = tmp_path / "pytriton-worker-999999999-1"
    other = tmp_path / "another"
    for folder in (mine, gone, other):
        folder.mkdir()

    remove_abandoned_groups([str(tmp_path)])

    assert sorted(tmp_path.iterdir()) == sorted([mine, other])


def memberships(tmp_path, text):
    file = tmp_path / "membership"
    file.write_text(text)
    return file


def test_groups_are_made_beside_that_of_the_server(tmp_path, groups):
    (groups / "server").mkdir()
    for path in (groups / "server").iterdir():
        path.unlink()

    found = find_groups(memberships(tmp_path, "0::/groups/server\n"), tmp_path)

    assert found == dict.fromkeys(("pids", "memory"), str(groups))
    assert sorted(path.name for path in groups.iterdir()) == ["server"]


def test_folders_of_version_1_are_found_by_controller(tmp_path, groups):
    (tmp_path / "pids").symlink_to(tmp_path)

    found = find_groups(memberships(tmp_path, "8:pids:/groups\n3:cpuset:/\n"), tmp_path)

    assert found == {"pids": str(tmp_path / "pids" / "groups")}


def test_machine_without_groups_has_none(tmp_path):
    assert find_groups(tmp_path / "missing", tmp_path) == {}
    assert find_groups(memberships(tmp_path, "0::/\n"), tmp_path / "missing") == {}
