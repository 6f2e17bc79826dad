# SPDX-License-Identifier: Apache-2.0
"""How far the loading of models is, for the person or the log that waits for it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TextIO

from pytriton.server.process.terminal import Colour, has_colours, is_terminal, paint, width_of

if TYPE_CHECKING:
    from pytriton.server.command.serving_protocol import LoadProgress

logger = logging.getLogger(__name__)

_HIDE = "\r\x1b[2K"  # to the line's beginning, and erase it


class ProgressLine:
    """On a terminal one line that is written over, elsewhere a line of the log when asked."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = is_terminal(stream)
        self._progress: LoadProgress | None = None

    def update(self, progress: LoadProgress) -> None:
        """Show how far it is now."""
        self.hide()
        self._progress = progress
        self.show()

    def hide(self) -> None:
        """Take the line away before something else is written."""
        if self._is_terminal and self._progress is not None:
            self._stream.write(_HIDE)
            self._stream.flush()

    def show(self) -> None:
        """Write the line again."""
        if self._is_terminal and self._progress is not None:
            count, names = _texts(self._progress)
            line = f"{count} loading {names}"
            width = width_of(self._stream) or len(line)
            line = line if len(line) < width else line[: width - 2] + "…"
            if has_colours(self._stream):
                line = paint(count, Colour.CYAN) + line[len(count) :]
            self._stream.write(line)
            self._stream.flush()

    def end(self) -> None:
        """Take the line away for good."""
        self.hide()
        self._progress = None

    def log(self, elapsed_s: float) -> None:
        """Say in the log what is still being waited for, where no line shows it."""
        if not self._is_terminal and self._progress is not None:
            finished, total, names = self._progress
            logger.info(
                "Loaded %d of %d models in %.0f seconds, waiting for: %s",
                finished,
                total,
                elapsed_s,
                ", ".join(names),
            )


def _texts(progress: LoadProgress) -> tuple[str, str]:
    return f"[{progress.finished}/{progress.total}]", ", ".join(progress.loading)
