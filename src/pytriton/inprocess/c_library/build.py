# SPDX-License-Identifier: Apache-2.0
"""Compiles `libtritonserver.so` for this environment, with the C compiler of the machine."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from pytriton.inprocess.c_library.functions_text import functions_text
from pytriton.runtime.native_backend.api_table import FUNCTIONS

LIBRARY_NAME = "libtritonserver.so"
_SOURCE = Path(__file__).parent / "library.c"
_PREFIX = "TRITONSERVER_"
# `library.c` has those of errors itself.
_IN_C = {f"TRITONSERVER_Error{name}" for name in ("Code", "CodeString", "Delete", "Message", "New")}


class BuildError(Exception):
    """The library cannot be built here; the text says why."""


def served_functions() -> dict[str, str]:
    """Returns the signatures of the functions that Python serves, by name."""
    return {
        name: signature
        for name, signature in FUNCTIONS.items()
        if name.startswith(_PREFIX) and name not in _IN_C
    }


def library_text() -> str:
    """Returns the C text of the whole library."""
    return _SOURCE.read_text(encoding="utf-8") + functions_text(served_functions())


def find_python_library() -> Path:
    """Returns the shared library of this Python.

    Raises:
        BuildError: It has none.
    """
    name = sysconfig.get_config_var("INSTSONAME") or ""
    folders = [sysconfig.get_config_var("LIBDIR"), Path(sys.base_prefix) / "lib"]
    for folder in folders:
        path = Path(folder or "") / name
        if ".so" in name and path.is_file():
            return path.resolve()
    raise BuildError(
        f"Python {sys.version.split()[0]} at {sys.base_prefix} has no shared library "
        f"({name or 'no name is known'}), and an application can only have Python in it as one. "
        "On Debian and Ubuntu, install libpython3.X for it; with pyenv, build it with "
        "PYTHON_CONFIGURE_OPTS=--enable-shared; those of uv and conda have it."
    )


def compile_library(folder: Path, compiler: str | None = None) -> Path:
    """Compile the library into a folder, which is made if it is not there; returns its path.

    Raises:
        BuildError: It cannot be built here.
    """
    if sys.platform != "linux":
        raise BuildError(f"{LIBRARY_NAME} can be built on Linux only, this is {sys.platform}")
    command = shlex.split(compiler or os.environ.get("CC", "cc"))
    if not command or shutil.which(command[0]) is None:
        raise BuildError(f"Expected a C compiler, found no program {command[0]!r}: install gcc")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder.resolve() / LIBRARY_NAME
    arguments = [
        *command, "-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden",
        f"-DPYTRITON_EXECUTABLE={_c_string(sys.executable)}",
        f"-DPYTRITON_LIBRARY={_c_string(str(find_python_library()))}",
        f"-Wl,-soname,{LIBRARY_NAME}", "-x", "c", "-", "-o", str(path), "-pthread", "-ldl",
    ]  # fmt: skip
    done = subprocess.run(
        arguments, input=library_text(), text=True, capture_output=True, check=False
    )
    if done.returncode:
        raise BuildError(f"{command[0]} failed: {done.stderr.strip()}")
    return path


def _c_string(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
