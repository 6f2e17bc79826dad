# SPDX-License-Identifier: Apache-2.0
"""Prints the text of a report while it is measured."""

from __future__ import annotations

from collections.abc import Callable

from pytriton.tools.perf.measuring.results import LevelResult, LevelStatus, Live, Mode
from pytriton.tools.perf.measuring.summary import WindowSummary
from pytriton.tools.perf.output.settings import ReportSettings
from pytriton.tools.perf.output.text import level_heading, level_text, problem_text, window_text


class TextWatcher:
    """Prints levels when they end.

    Args:
        settings: What is measured.
        show: Prints a text.
        complain: Prints an error.
        label: The name of the server, if there are several.
        allow_unstable: A level that is not stable is not a problem.
    """

    def __init__(
        self,
        settings: ReportSettings,
        show: Callable[[str], None],
        complain: Callable[[str], None],
        label: str = "",
        *,
        allow_unstable: bool = False,
    ) -> None:
        self._settings = settings
        self._show = show
        self._complain = complain
        self._label = label
        self._allow_unstable = allow_unstable

    def level_begins(self, mode: Mode, value: float) -> None:
        heading = level_heading(mode, value)
        if heading is not None:
            self._show(f"{heading} ({self._label})" if self._label else heading)
        elif self._label:
            self._show(self._label)

    def window_begins(self, number: int) -> None:
        """Nothing to print yet."""

    def ticked(self, live: Live) -> None:
        """Nothing to print: the text has whole windows only."""

    def window_ended(self, number: int, summary: WindowSummary) -> None:
        if self._settings.verbose:
            self._show(window_text(number, summary, self._settings))

    def level_ended(self, result: LevelResult) -> None:
        is_unstable = result.status is LevelStatus.UNSTABLE
        is_kept = is_unstable and self._allow_unstable
        problem = None if is_kept else problem_text(result, self._settings)
        if problem is None or (is_unstable and result.summary.latency is not None):
            self._show(level_text(result, self._settings))
        if problem is not None and result.status is LevelStatus.OVER_LIMIT:
            self._show(problem)
        elif problem is not None:
            self._complain(problem)
