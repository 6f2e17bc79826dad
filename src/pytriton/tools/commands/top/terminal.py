# SPDX-License-Identifier: Apache-2.0
"""The live view: a thin loop between the keyboard, the readings and the screen."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import sys
from collections.abc import Iterator

from rich.console import Console, Group
from rich.live import Live

from pytriton.tools.commands.top.rows import rows_of
from pytriton.tools.commands.top.samples import MetricsSample
from pytriton.tools.commands.top.source import ReadingThread, ServerReading
from pytriton.tools.commands.top.state import TopScreen, ViewState, keys_in
from pytriton.tools.commands.top.view import Shown, draw, visible_rows

_LOOK_EVERY_S = 0.1  # for new readings and a new size of the terminal


def watch(reader: ReadingThread, shown: Shown) -> None:
    """Show a server until a person ends it.

    Args:
        reader: reads the server; it is started and stopped here.
        shown: what is known at the beginning.
    """
    console = Console(highlight=False, markup=False, emoji=False)
    state = ViewState()
    reader.start()
    try:
        with _keys_at_once(), Live(console=console, screen=True, auto_refresh=False) as live:
            loop = _Loop(reader, shown, state)
            size = None
            while not state.is_over:
                if loop.step() or console.size != size:
                    size = console.size
                    lines = draw(shown, state, size.width, size.height)
                    live.update(Group(*lines), refresh=True)
    finally:
        reader.stop()


class _Loop:
    """Brings keys and readings together."""

    def __init__(self, reader: ReadingThread, shown: Shown, state: ViewState) -> None:
        self._reader = reader
        self._shown = shown
        self._state = state
        self._last: MetricsSample | None = None

    def step(self) -> bool:
        """Wait a moment for keys and readings; returns whether the screen changes."""
        readable, _, _ = select.select([sys.stdin], [], [], _LOOK_EVERY_S)
        changed = False
        if readable:
            data = os.read(sys.stdin.fileno(), 1024)
            if not data:  # the terminal is gone
                self._state.is_over = True
            for key in keys_in(data):
                keys = [row.key for row in visible_rows(self._shown, self._state)]
                self._state.press(key, keys)
            changed = True
            self._ask_for_details()
        with contextlib.suppress(queue.Empty):
            while True:
                self._take(self._reader.readings.get_nowait())
                changed = True
        return changed

    def _ask_for_details(self) -> None:
        key = self._state.selected
        is_open = self._state.screen is TopScreen.DETAILS
        if is_open and key is not None and key not in self._shown.cards:
            self._reader.describe(key)

    def _take(self, reading: ServerReading) -> None:
        self._shown.cards.update(reading.cards)
        if reading.problem:
            self._shown.problem = reading.problem
            self._last = None  # the next rates begin anew
        if reading.sample is None or self._state.is_paused:
            return
        take(self._shown, self._last, reading)
        self._last = reading.sample


def take(shown: Shown, before: MetricsSample | None, reading: ServerReading) -> None:
    """Put a reading on show, with the rates since the one before."""
    assert reading.sample is not None
    shown.problem, shown.note = "", reading.note
    shown.server_name = reading.server_name
    shown.sample = reading.sample
    shown.rows = rows_of(before, reading.sample, reading.states)
    shown.history.add(shown.rows)


@contextlib.contextmanager
def _keys_at_once() -> Iterator[None]:
    """Let keys come when they are pressed, and do not print them."""
    import termios  # noqa: PLC0415  not on every system
    import tty  # noqa: PLC0415

    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    try:
        tty.setcbreak(number)
        yield
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)
