# SPDX-License-Identifier: Apache-2.0
"""C files that are compiled when they are first needed: where the library is kept, what fails."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pytriton.runtime.native_backend.compiled_code import (
    CompiledCodeError,
    NoCompilerError,
    load_compiled,
)
from tests.native_backend import building

pytestmark = pytest.mark.skipif(bool(building.missing()), reason=building.missing())

NUMBER = "int number(void) { return %d; }\n"
EXPORT = '__attribute__((visibility("default"))) '


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "part.c"
    path.write_text(EXPORT + NUMBER % 7)
    return path


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "home" / "code"


def without_compiler(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")


def test_library_is_compiled_once(source, folder, monkeypatch):
    assert load_compiled(source, folder).number() == 7
    without_compiler(monkeypatch)

    assert load_compiled(source, folder).number() == 7
    assert len(list(folder.iterdir())) == 1


def test_process_that_cannot_write_to_the_folder_has_a_library_of_its_own(source, monkeypatch):
    """As in a sandbox; root could write to any folder that is not read only."""
    folder = Path("/proc/self/code")
    make = Path.mkdir

    def refuse(path, *arguments, **named):
        if path == folder:
            raise OSError(errno.EROFS, "Read-only file system")
        make(path, *arguments, **named)

    monkeypatch.setattr(Path, "mkdir", refuse)

    assert load_compiled(source, folder).number() == 7


def test_changed_source_is_another_library(source, folder):
    load_compiled(source, folder)
    source.write_text(EXPORT + NUMBER % 8)

    assert load_compiled(source, folder).number() == 8
    assert len(list(folder.iterdir())) == 2


def test_only_its_user_can_write_to_the_folder(source, folder):
    previous = os.umask(0)
    try:
        load_compiled(source, folder)
    finally:
        os.umask(previous)

    assert folder.stat().st_mode & 0o777 == 0o755
    assert [each.stat().st_mode & 0o777 for each in folder.iterdir()] == [0o755]


def test_missing_compiler_is_an_error_of_its_own(source, folder, monkeypatch):
    without_compiler(monkeypatch)

    with pytest.raises(NoCompilerError, match="no-such-compiler"):
        load_compiled(source, folder)


def test_words_of_the_compiler_are_in_the_error(source, folder):
    source.write_text("this is no C")

    with pytest.raises(CompiledCodeError, match=r"cc failed: .*part\.c"):
        load_compiled(source, folder)
    assert list(folder.iterdir()) == []


def test_library_that_was_cut_short_is_compiled_again(source, folder):
    command = [sys.executable, "-c", LOADS, str(source), str(folder)]
    first = subprocess.run(command, check=True, capture_output=True, text=True)
    (library,) = folder.iterdir()
    library.write_bytes(library.read_bytes()[:100])
    second = subprocess.run(command, check=True, capture_output=True, text=True)

    assert (first.stdout, second.stdout) == ("7\n", "7\n")


LOADS = """
import pathlib, sys
from pytriton.runtime.native_backend.compiled_code import load_compiled
print(load_compiled(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])).number())
"""


def test_library_that_others_can_write_is_not_loaded(source, folder):
    load_compiled(source, folder)
    folder.chmod(0o777)

    with pytest.raises(CompiledCodeError, match="other users can write to"):
        load_compiled(source, folder)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folder_that_cannot_be_written_is_left_alone(source, tmp_path):
    (tmp_path / "home").mkdir(mode=0o500)

    assert load_compiled(source, tmp_path / "home" / "code").number() == 7
    assert list((tmp_path / "home").iterdir()) == []


def test_user_without_a_home_gets_no_folder_where_the_server_runs(source):
    with pytest.raises(CompiledCodeError, match="no home folder"):
        load_compiled(source, Path("$HOME", "code"))


def test_several_compile_it_at_the_same_time(source, folder):
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(load_compiled(source, folder).number()))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert results == [7] * 4
    assert len(list(folder.iterdir())) == 1
