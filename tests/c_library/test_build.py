# SPDX-License-Identifier: Apache-2.0
"""The text of the library, the command that compiles it, and what it needs for that."""

from __future__ import annotations

import re
import sys
import sysconfig
from pathlib import Path

import pytest

from pytriton.__main__ import main
from pytriton.inprocess.c_library import command
from pytriton.inprocess.c_library.command import (
    BuildError,
    compile_library,
    find_python_library,
    functions_text,
    library_text,
)
from tests.c_library.building import INCLUDE, missing

needs_compiler = pytest.mark.skipif(bool(missing()), reason=missing())


def test_function_calls_what_is_in_its_slot():
    text = functions_text({"F": "e:psQ", "G": "v:p", "H": "b:i"})

    assert '    {"F", 0},\n    {"G", 0},\n    {"H", 0},\n' in text
    assert "const unsigned pytriton_slot_count = 3;" in text
    assert (
        "EXPORT void *F(void *a0, const char *a1, uint64_t a2) {\n"
        "  void *slot = enter(0);\n"
        "  if (slot == NULL) return no_python();\n"
        "  return ((void *(*)(void *, const char *, uint64_t))slot)(a0, a1, a2);\n"
        "}"
    ) in text
    assert "  if (slot == NULL) return;\n  ((void (*)(void *))slot)(a0);\n" in text
    assert "  if (slot == NULL) return 0;\n  return ((bool (*)(int32_t))slot)(a0);\n" in text


def test_library_has_every_function_of_the_header():
    header = (INCLUDE / "triton/core/tritonserver.h").read_text()
    declared = set(re.findall(r"\bTRITONSERVER_[A-Za-z0-9]+(?=\()", header))
    defined = set(re.findall(r"\nEXPORT [^(]*?(TRITONSERVER_[A-Za-z0-9]+)\(", library_text()))

    assert defined == declared
    assert len(defined) == 172


@needs_compiler
def test_command_compiles_the_library_and_prints_the_flags(tmp_path, capsys):
    folder = tmp_path / "a folder"

    assert main(["c-library", "--output", str(folder)]) == 0
    assert (folder / "libtritonserver.so").is_file()
    assert capsys.readouterr().out == (
        f"-I{INCLUDE} '-L{folder}' '-Wl,-rpath,{folder}' -ltritonserver\n"
    )


@needs_compiler
def test_compiler_that_is_not_there_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")

    assert main(["c-library", "--output", str(tmp_path)]) == 1
    assert "found no program 'no-such-compiler': install gcc" in capsys.readouterr().err


@needs_compiler
def test_compiler_that_fails_says_why(tmp_path):
    with pytest.raises(BuildError, match=r"cc failed: .*no-such-option"):
        compile_library(tmp_path, "cc --no-such-option")


def test_other_systems_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(command.sys, "platform", "darwin")

    with pytest.raises(BuildError, match="on Linux only, this is darwin"):
        compile_library(tmp_path)


def test_python_without_a_shared_library_is_refused(tmp_path, monkeypatch):
    variables = {"INSTSONAME": "libpython3.99.so.1.0", "LIBDIR": str(tmp_path)}
    monkeypatch.setattr(sysconfig, "get_config_var", variables.get)

    with pytest.raises(BuildError, match=r"has no shared library .*PYTHON_CONFIGURE_OPTS"):
        find_python_library()
    (tmp_path / "libpython3.99.so.1.0").touch()
    assert find_python_library() == (tmp_path / "libpython3.99.so.1.0").resolve()


def test_static_python_is_refused(monkeypatch):
    monkeypatch.setattr(sysconfig, "get_config_var", {"INSTSONAME": "libpython3.11.a"}.get)

    with pytest.raises(BuildError, match=re.escape(f"Python {sys.version.split()[0]} at ")):
        find_python_library()


def test_library_of_python_may_be_beside_its_prefix(tmp_path, monkeypatch):
    """LIBDIR is the folder of the machine where a Python that can be moved was built."""
    variables = {"INSTSONAME": "libpython3.99.so.1.0", "LIBDIR": "/install/lib"}
    monkeypatch.setattr(sysconfig, "get_config_var", variables.get)
    monkeypatch.setattr(command.sys, "base_prefix", str(tmp_path))
    (tmp_path / "lib").mkdir()
    library = tmp_path / "lib" / "libpython3.99.so.1.0"
    library.touch()

    assert find_python_library() == Path(library).resolve()
