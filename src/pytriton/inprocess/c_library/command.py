# SPDX-License-Identifier: Apache-2.0
"""`pytriton c-library`: compiles `libtritonserver.so`, and prints the flags to link with it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from pytriton.base.package import PACKAGE_FOLDER
from pytriton.inprocess.c_library.build import BuildError, compile_library
from pytriton.utils.option_parser import OptionParser


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
