# SPDX-License-Identifier: Apache-2.0
"""The live display of a measurement on a terminal: a few lines below the report so far."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from rich.console import Console, Group
from rich.live import Live as LiveDisplay
from rich.table import Table
from rich.text import Text

from pytriton.tools.perf.measuring.results import LevelResult, Live, Mode, number_text
from pytriton.tools.perf.measuring.summary import WindowSummary

_SPARKS = "▁▂▃▄▅▆▇█"
_HISTORY = 40
_BAR = 24


def sparkline(values: list[float]) -> str:
    """Values as a line of small bars, from 0 to the largest."""
    top = max(values, default=0.0)
    if top <= 0:
        return ""
    return "".join(_SPARKS[min(int(value / top * 7.999), 7)] for value in values)


def time_text(us: float) -> str:
    if us >= 1e6:
        return f"{us / 1e6:.2f} s"
    return f"{us / 1e3:.2f} ms" if us >= 1e3 else f"{us:.0f} µs"


class ProgressDisplay:
    """Shows the level and the window that are measured now.

    Args:
        console: The terminal.
        window_s: The length of a window; 0 if requests are counted.
        max_trials: Windows of a level at most.
        levels: How many levels there are in all, on all servers; None if that is open.
    """

    def __init__(
        self,
        console: Console,
        window_s: float,
        max_trials: int,
        levels: int | None,
    ) -> None:
        self._window_s = window_s
        self._max_trials = max_trials
        self._levels = levels
        self._begun_s = time.monotonic()
        self._level_s: list[float] = []
        self._level_begun_s = self._begun_s
        self._name = "starting the load generator"
        self._window = 0
        self._live: Live | None = None
        self._rates: deque[float] = deque(maxlen=_HISTORY)
        self._stable = ""
        self._display = LiveDisplay(
            console=console,
            refresh_per_second=8,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            get_renderable=self._render,
        )

    def start(self) -> None:
        self._display.start()

    def stop(self) -> None:
        self._display.stop()

    def around(self, show: Callable[[str], None]) -> Callable[[str], None]:
        """Prints a text while the display is away, so that the text stays above it."""

        def printed(text: str) -> None:
            self.stop()
            show(text)
            self.start()

        return printed

    def named(self, label: str) -> _LabelledWatcher:
        """This display for one of several servers."""
        return _LabelledWatcher(self, label)

    def begin(self, label: str, mode: Mode, value: float) -> None:
        what = "request rate" if mode.is_rate else "concurrency"
        self._name = f"{label + '  ' if label else ''}{what} {number_text(value)}"
        self._level_begun_s = time.monotonic()
        self._rates.clear()
        self._live, self._stable = None, ""

    def window_begins(self, number: int) -> None:
        self._window = number

    def ticked(self, live: Live) -> None:
        self._live = live
        self._rates.append(live.recent_rate)

    def window_ended(self, number: int, summary: WindowSummary) -> None:
        self._stable = f"last window {summary.throughput:,.0f} infer/s"

    def level_ended(self, result: LevelResult) -> None:
        self._level_s.append(time.monotonic() - self._level_begun_s)

    def _levels_text(self) -> str:
        ended = len(self._level_s)
        if self._levels and ended >= self._levels:
            return "waiting for the last answers"
        level = f"level {ended + 1} of {self._levels}   " if self._levels else ""
        return level + self._left_text()

    def _left_text(self) -> str:
        """An estimate of the time that is left, from the levels so far."""
        if self._levels is None or not self._window_s:
            return ""
        mean = sum(self._level_s) / len(self._level_s) if self._level_s else 3.5 * self._window_s
        now = max(mean - (time.monotonic() - self._level_begun_s), 0.0)
        left = now + mean * max(self._levels - len(self._level_s) - 1, 0)
        return f"about {left:.0f} s left" if left >= 1 else "nearly done"

    def _render(self) -> Any:
        live = self._live
        head = Text.assemble((self._name, "bold"), ("   window ", "dim"), str(self._window))
        head.append(f" of at most {self._max_trials}" if self._window_s else "", "dim")
        head.append(f"   {self._levels_text()}", "dim")
        if live is None:
            return Group(head)
        full = int(live.done * _BAR)
        bar = Text.assemble(("━" * full, "cyan"), ("━" * (_BAR - full), "bright_black"))
        line = Table.grid(padding=(0, 2))
        line.add_row(
            bar,
            Text.assemble((f"{live.rate:,.0f}", "bold green"), " req/s"),
            Text.assemble(("p50 ", "dim"), time_text(live.p50_us)),
            Text.assemble(("p99 ", "dim"), time_text(live.p99_us)),
            Text(f"{live.failed:,} failed", "bold red" if live.failed else "dim"),
            Text(self._stable, "dim"),
        )
        parts: list[Any] = [head, line, Text(sparkline(list(self._rates)), "cyan")]
        if live.is_limit:
            parts.append(Text("the load generator is busy: the server may be quicker", "yellow"))
        return Group(*parts)


class _LabelledWatcher:
    """A watcher that tells a display which server it watches."""

    def __init__(self, display: ProgressDisplay, label: str) -> None:
        self._display = display
        self._label = label
        self.window_begins = display.window_begins
        self.ticked = display.ticked
        self.window_ended = display.window_ended
        self.level_ended = display.level_ended

    def level_begins(self, mode: Mode, value: float) -> None:
        self._display.begin(self._label, mode, value)
