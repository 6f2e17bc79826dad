# SPDX-License-Identifier: Apache-2.0
"""Shows the progress of loading models on a terminal or in the log."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TextIO

from pytriton.utils.terminal import Colour, has_colours, is_terminal, paint, width_of

if TYPE_CHECKING:
    from pytriton.serving.server.command.serving_protocol import LoadProgress

logger = logging.getLogger(__name__)

_HIDE = "\r\x1b[2K"  # go to the beginning of the line and erase it


class ProgressLine:
    """On a terminal, one line that is overwritten; otherwise lines of the log, when requested."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = is_terminal(stream)
        self._progress: LoadProgress | None = None

    def update(self, progress: LoadProgress) -> None:
        """Show the new progress."""
        self.hide()
        self._progress = progress
        self.show()

    def hide(self) -> None:
        """Erase the line before something else is written."""
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
        """Erase the line for good."""
        self.hide()
        self._progress = None

    def log(self, elapsed_s: float) -> None:
        """Log which models are still being loaded, unless the terminal shows it."""
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
