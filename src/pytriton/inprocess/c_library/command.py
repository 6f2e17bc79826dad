# SPDX-License-Identifier: Apache-2.0
"""`pytriton c-library`: compiles `libtritonserver.so`, and prints the flags to link with it.

The library is `library.c` and one exported function for each signature of the C API, which calls
the function in its slot.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pytriton.base.package import PACKAGE_FOLDER
from pytriton.runtime.native_backend.api_table import FUNCTIONS
from pytriton.utils.option_parser import OptionParser

# The letters of a signature; the first one is the result.
_TYPES = {
    "e": "void *",
    "p": "void *",
    "s": "const char *",
    "b": "bool ",
    "i": "int32_t ",
    "q": "int64_t ",
    "I": "uint32_t ",
    "Q": "uint64_t ",
    "d": "double ",
    "v": "void ",
}
_ERROR, _NOTHING = "e", "v"


def functions_text(signatures: Mapping[str, str]) -> str:
    """Returns the table of slots, and the functions.

    Args:
        signatures: for each function the letter of its result, a colon, those of its arguments.
    """
    names = sorted(signatures)
    slots = "\n".join(f'    {{"{name}", 0}},' for name in names)
    functions = [_function(index, name, signatures[name]) for index, name in enumerate(names)]
    return "\n".join(
        [
            f"struct slot pytriton_slots[] = {{\n{slots}\n}};",
            f"const unsigned pytriton_slot_count = {len(names)};",
            *functions,
            "",
        ]
    )


def _function(index: int, name: str, signature: str) -> str:
    result, _, arguments = signature.partition(":")
    types = [_TYPES[letter] for letter in arguments]
    declared = ", ".join(f"{kind}a{number}" for number, kind in enumerate(types)) or "void"
    passed = ", ".join(f"a{number}" for number in range(len(types)))
    pointer = f"{_TYPES[result]}(*)({', '.join(kind.strip() for kind in types) or 'void'})"
    without = {_ERROR: "return no_python();", _NOTHING: "return;"}.get(result, "return 0;")
    call = f"(({pointer})slot)({passed});"
    return (
        f"EXPORT {_TYPES[result]}{name}({declared}) {{\n"
        f"  void *slot = enter({index});\n"
        f"  if (slot == NULL) {without}\n"
        f"  {'' if result == _NOTHING else 'return '}{call}\n"
        "}"
    )


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
        raise BuildError(
            f"Expected a C compiler, found no program {command[0]!r}: install gcc, or run this on "
            f"a machine that has it, and copy {LIBRARY_NAME}"
        )
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


def run(
    arguments: Sequence[str], show: Callable[[str], None], complain: Callable[[str], None]
) -> int:
    """Run the command.

    Args:
        arguments: the command line after the command's name.
        show: prints the flags.
        complain: prints why the library cannot be compiled.

    Returns:
        The exit code: 0, or 1 if it cannot be compiled.
    """
    parser = OptionParser(
        prog="pytriton c-library",
        description="Compile libtritonserver.so for programs in C and C++ that have a server in "
        "their process: it starts this Python there. Prints flags for the compiler, as in: "
        "cc program.c $(pytriton c-library --output DIR) -o program",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="folder for the library; default is this one",
    )
    options = parser.parse_args(list(arguments))
    try:
        library = compile_library(options.output)
    except (BuildError, OSError) as error:
        complain(f"libtritonserver.so cannot be compiled: {error}")
        return 1
    include = PACKAGE_FOLDER / "include"
    folder = str(library.parent)
    show(shlex.join([f"-I{include}", f"-L{folder}", f"-Wl,-rpath,{folder}", "-ltritonserver"]))
    return 0
