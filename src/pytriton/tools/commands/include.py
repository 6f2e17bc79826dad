# SPDX-License-Identifier: Apache-2.0
"""`pytriton include`: prints the folder of the C headers."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence

import pytriton
from pytriton.utils.option_parser import OptionParser


def run(
    arguments: Sequence[str],
    show: Callable[[str], None],
    complain: Callable[[str], None],  # noqa: ARG001  every command takes it
) -> int:
    """Print the folder."""
    OptionParser(
        prog="pytriton include",
        description="Print the folder of the C headers, as in: "
        'cc -shared -fPIC -I"$(pytriton include)" backend.c -o libtriton_backend.so',
    ).parse_args(list(arguments))
    show(str(pathlib.Path(pytriton.__file__).parent / "include"))
    return 0
