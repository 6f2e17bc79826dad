# SPDX-License-Identifier: Apache-2.0
"""What a terminal shows while a level is measured."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from pytriton.tools.perf.output.progress import ProgressDisplay


@pytest.mark.parametrize(
    "levels, ended, expected",
    [
        (2, 0, "   level 1 of 2   about "),
        (2, 1, "   level 2 of 2   "),
        (2, 2, "   waiting for the last answers"),
        (None, 1, "window 0 of at most 10   "),
    ],
)
def test_levels_are_counted_and_the_last_answers_waited_for(levels, ended, expected):
    text = io.StringIO()
    console = Console(file=text, width=120)
    display = ProgressDisplay(console, window_s=5.0, max_trials=10, levels=levels)
    for _ in range(ended):
        display.level_ended(None)

    console.print(display._display.get_renderable())

    assert expected in text.getvalue()
