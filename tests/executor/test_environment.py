# SPDX-License-Identifier: Apache-2.0
"""EXECUTION_ENV_PATH: archives, folders and interpreters."""

from __future__ import annotations

import os
import pathlib
import sys
import tarfile
import threading

import pytest

from pytriton.base.errors import InternalError
from pytriton.runtime.executor.environment import EnvironmentStore
from tests.executor.tar_files import file_entry, link_entry, pack

SCRIPT = b"#!/bin/sh\nexit 0\n"


@pytest.fixture
def store():
    made = EnvironmentStore()
    yield made
    made.close()


USUAL = [
    file_entry("bin", type=tarfile.DIRTYPE, mode=0o555),
    file_entry("bin/activate"),
    file_entry("bin/python3.11", SCRIPT, mode=0o4777),
    link_entry("bin/python", "python3.11"),
    link_entry("lib/terminfo", "../share/terminfo"),
    link_entry("bin/copy", "bin/activate", tarfile.LNKTYPE),
]


@pytest.mark.parametrize("kind", ["w:gz", "w", "w:xz"])
def test_archive_is_unpacked_and_described(store, tmp_path, monkeypatch, kind):
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    found = store.resolve(pack(tmp_path / "env.tar.gz", USUAL, kind), "")
    prefix = pathlib.Path(found.interpreter).parent.parent

    assert os.path.realpath(found.interpreter) == f"{prefix}/bin/python3.11"
    assert found.variables == {
        "VIRTUAL_ENV": str(prefix),
        "VIRTUAL_ENV_PROMPT": f"({prefix.name})",
        "PATH": f"{prefix}/bin:/usr/bin",
        "LD_LIBRARY_PATH": f"{prefix}/lib",
    }


def test_what_was_unpacked_belongs_to_its_user_alone_and_goes_with_the_store(store, tmp_path):
    found = store.resolve(pack(tmp_path / "env.tar.gz", USUAL), "")
    interpreter = pathlib.Path(found.interpreter)
    program = interpreter.stat()
    folder = interpreter.parent.parent.parent

    assert program.st_mode & 0o7777 == 0o755
    assert program.st_uid == os.getuid()
    assert folder.stat().st_mode & 0o777 == 0o700

    store.close()

    assert not folder.exists()


def test_same_content_is_unpacked_once_and_changed_content_anew(store, tmp_path):
    first = store.resolve(pack(tmp_path / "a.tar", USUAL, "w"), "")
    same = store.resolve(pack(tmp_path / "b.tar", USUAL, "w"), "")
    changed = store.resolve(pack(tmp_path / "a.tar", [*USUAL, file_entry("new")], "w"), "")

    assert first == same
    assert changed.interpreter != first.interpreter


def test_many_threads_get_the_same_environment(store, tmp_path):
    path = pack(tmp_path / "env.tar.gz", USUAL)
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(store.resolve(path, ""))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 8
    assert len({each.interpreter for each in found}) == 1


def test_archive_that_is_cut_off_is_refused_and_can_be_mended(store, tmp_path):
    path = tmp_path / "env.tar.gz"
    pack(path, [*USUAL, file_entry("noise", os.urandom(100_000))])
    whole = path.read_bytes()
    path.write_bytes(whole[:-5000])

    with pytest.raises(InternalError, match="Failed to extract"):
        store.resolve(str(path), "")
    path.write_bytes(whole)

    assert store.resolve(str(path), "").interpreter.endswith("bin/python")


def test_folder_with_an_environment_is_used_where_it_is(store, tmp_path):
    binaries = tmp_path / "model" / "env" / "bin"
    binaries.mkdir(parents=True)
    (binaries / "activate").touch()
    (binaries / "python3").symlink_to(sys.executable)
    found = store.resolve("$$TRITON_MODEL_DIRECTORY/env", str(tmp_path / "model"))

    assert found.interpreter == str(binaries / "python3")
    assert found.variables["VIRTUAL_ENV"] == str(tmp_path / "model" / "env")


def test_folder_without_a_script_or_an_interpreter_is_refused(store, tmp_path):
    activate = tmp_path / "bin" / "activate"

    with pytest.raises(InternalError) as raised:
        store.resolve(str(tmp_path), "")
    assert raised.value.message == (
        f"Path {activate} does not exist. The Python environment should contain an "
        "'activate' script."
    )

    activate.parent.mkdir()
    activate.touch()
    with pytest.raises(InternalError, match="should contain an interpreter"):
        store.resolve(str(tmp_path), "")


def test_interpreter_itself_may_be_named(store):
    found = store.resolve(sys.executable, "")

    assert found.interpreter == sys.executable
    assert found.variables["PATH"].startswith(str(pathlib.Path(sys.executable).parent))


def test_path_that_is_nothing_of_that_is_refused(store, tmp_path):
    (tmp_path / "text").write_text("hello")

    with pytest.raises(InternalError, match=r"text' is neither an archive \(tar.gz\) nor a folder"):
        store.resolve(str(tmp_path / "text"), "")
    with pytest.raises(InternalError, match="missing' does not exist"):
        store.resolve(str(tmp_path / "missing"), "")


def test_archive_is_refused_for_processes_of_other_machines(store, tmp_path):
    archive = pack(tmp_path / "env.tar.gz", USUAL)

    with pytest.raises(InternalError, match="unpack it in a folder that all nodes share") as caught:
        store.resolve(archive, "", unpacks=False)

    assert archive in caught.value.message
