# SPDX-License-Identifier: Apache-2.0
"""What the server's command knows of terminals: whether there is one, its width, its colours."""

from __future__ import annotations

import enum
import os
import shutil
from typing import TextIO


class Colour(enum.Enum):
    """How text is shown, as the number of ECMA-48's "select graphic rendition"."""

    BOLD = 1
    DIM = 2
    RED = 31
    GREEN = 32
    YELLOW = 33
    CYAN = 36


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at what is written there, and its lines can be written over."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def has_colours(stream: TextIO) -> bool:
    """Whether text that is written there may be coloured; the variable NO_COLOR forbids it."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def width_of(stream: TextIO) -> int | None:
    """Columns of a terminal; None where the stream is something else."""
    return shutil.get_terminal_size().columns if is_terminal(stream) else None


def paint(text: str, colour: Colour) -> str:
    """Text in a colour."""
    return text and f"\x1b[{colour.value}m{text}\x1b[0m"
