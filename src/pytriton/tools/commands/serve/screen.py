# SPDX-License-Identifier: Apache-2.0
"""What `pytriton serve` says on standard error: plain text, or in colour on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from pytriton.base.announcement import say, says_in_colour
from pytriton.utils.terminal import Colour, paint


class ServeScreen:
    """Writes lines."""

    def __init__(self) -> None:
        self.colours = says_in_colour()

    def lines(self, lines: Sequence[str]) -> None:
        """Write lines as they are."""
        say(lines)

    def note(self, text: str) -> None:
        """Write a line that is less important than others."""
        self._write(text, Colour.DIM)

    def good(self, text: str) -> None:
        """Write a line on something that worked."""
        self._write(text, Colour.GREEN)

    def bad(self, text: str) -> None:
        """Write a line on something that failed."""
        self._write(text, Colour.RED)

    def _write(self, text: str, colour: Colour) -> None:
        say([paint(text, colour) if self.colours else text])
