# SPDX-License-Identifier: Apache-2.0
"""Properties of terminals: whether a stream is one, its width, its colours."""

from __future__ import annotations

import enum
import os
from typing import TYPE_CHECKING, TextIO

from pytriton.base.lazy_module import LazyModule

if TYPE_CHECKING:
    import shutil
else:  # for archives it imports three compressions
    shutil = LazyModule("shutil")


class Colour(enum.Enum):
    """Text styles, by their numbers in ECMA-48's "select graphic rendition"."""

    BOLD = 1
    DIM = 2
    RED = 31
    GREEN = 32
    YELLOW = 33
    CYAN = 36


def is_terminal(stream: TextIO) -> bool:
    """Returns whether the stream is a terminal on which lines can be overwritten."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def has_colours(stream: TextIO) -> bool:
    """Returns whether colours may be used; the environment variable NO_COLOR forbids them."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def width_of(stream: TextIO) -> int | None:
    """Returns the number of columns of a terminal; None if the stream is not a terminal."""
    return shutil.get_terminal_size().columns if is_terminal(stream) else None


def paint(text: str, colour: Colour) -> str:
    """Returns text in a colour."""
    return text and f"\x1b[{colour.value}m{text}\x1b[0m"
