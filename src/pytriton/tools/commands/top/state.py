# SPDX-License-Identifier: Apache-2.0
"""What a person does with the keyboard, and what is shown because of it; no I/O."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence

from pytriton.tools.commands.top.rows import RowOrder, moved, next_order
from pytriton.tools.commands.top.samples import Key

UP, DOWN, PAGE_UP, PAGE_DOWN = "up", "down", "page up", "page down"
ENTER, ESCAPE, BACKSPACE = "enter", "escape", "backspace"
_PAGE = 10  # rows
_SEQUENCES = {
    b"\x1b[A": UP,
    b"\x1bOA": UP,
    b"\x1b[B": DOWN,
    b"\x1bOB": DOWN,
    b"\x1b[5~": PAGE_UP,
    b"\x1b[6~": PAGE_DOWN,
}
_SINGLE = {b"\r": ENTER, b"\n": ENTER, b"\x1b": ESCAPE, b"\x7f": BACKSPACE, b"\x08": BACKSPACE}


def keys_in(data: bytes) -> list[str]:
    """Returns the keys whose codes a terminal sent."""
    keys = []
    while data:
        code = next((each for each in _SEQUENCES if data.startswith(each)), None)
        if code is not None:
            keys.append(_SEQUENCES[code])
            data = data[len(code) :]
        elif data.startswith((b"\x1b[", b"\x1bO")):
            data = data[3:]  # a key that means nothing here
        else:
            first = data[:1]
            keys.append(_SINGLE.get(first) or first.decode("latin-1"))
            data = data[1:]
    return keys


class TopScreen(enum.Enum):
    """What fills the terminal."""

    TABLE = enum.auto()
    DETAILS = enum.auto()
    HELP = enum.auto()
    NODES = enum.auto()
    ERRORS = enum.auto()


@dataclasses.dataclass(slots=True)
class ViewState:
    """What a person has chosen."""

    screen: TopScreen = TopScreen.TABLE
    order: RowOrder = RowOrder.NAME
    name_filter: str = ""
    is_typing: bool = False  # the filter
    is_paused: bool = False
    is_over: bool = False
    selected: Key | None = None

    def press(self, key: str, keys: Sequence[Key]) -> None:
        """React to a key.

        Args:
            key: its name or its character.
            keys: the rows that are shown, in their order.
        """
        if self.is_typing:
            self._type(key)
        elif key in {"q", "Q"}:
            self.is_over = True
        elif self.screen is not TopScreen.TABLE:
            if key in {ESCAPE, ENTER, "?", "n", "e", BACKSPACE}:
                self.screen = TopScreen.TABLE
        else:
            self._choose(key, keys)

    def _type(self, key: str) -> None:
        if key == ENTER:
            self.is_typing = False
        elif key == ESCAPE:
            self.is_typing, self.name_filter = False, ""
        elif key == BACKSPACE:
            self.name_filter = self.name_filter[:-1]
        elif len(key) == 1 and key.isprintable():
            self.name_filter += key

    def _choose(self, key: str, keys: Sequence[Key]) -> None:
        steps = {UP: -1, DOWN: 1, "k": -1, "j": 1, PAGE_UP: -_PAGE, PAGE_DOWN: _PAGE}.get(key)
        if steps is not None:
            self.selected = moved(keys, self.selected, steps)
        elif key == "s":
            self.order = next_order(self.order)
        elif key == "/":
            self.is_typing = True
        elif key == "p":
            self.is_paused = not self.is_paused
        elif key == "?":
            self.screen = TopScreen.HELP
        elif key == "n":
            self.screen = TopScreen.NODES
        elif key == "e":
            self.screen = TopScreen.ERRORS
        elif key == ESCAPE:
            self.name_filter = ""
        elif key == ENTER and keys:
            self.selected = self.selected if self.selected in keys else keys[0]
            self.screen = TopScreen.DETAILS
