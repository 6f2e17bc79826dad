# SPDX-License-Identifier: Apache-2.0
"""Log lines of a backend, which go to the server's log."""

from __future__ import annotations

from collections.abc import Callable

from pytriton.runtime.native_backend.callbacks import export
from pytriton.runtime.native_backend.memory import Kept, decoded, put_word

_LEVELS = ("INFO", "WARNING", "ERROR", "VERBOSE")
_Log = Callable[[str, str, str, int], None]


class Logs:
    """The log. `log` gets the level, the text, the file and the line."""

    def __init__(self, log: _Log, is_enabled: Callable[[str], bool]) -> None:
        self._log = log
        self._is_enabled = is_enabled
        self._kept = Kept()
        # Of a word that is not 0 if verbose lines are wanted.
        self.verbose_address = self._kept.words(0)
        self.update()

    def update(self) -> None:
        """Follow a change of the log's settings."""
        put_word(self.verbose_address, self._is_enabled("VERBOSE"))

    @export("TRITONSERVER_LogIsEnabled")
    def _enabled(self, level: int) -> bool:
        return 0 <= level < len(_LEVELS) and self._is_enabled(_LEVELS[level])

    @export("TRITONSERVER_LogMessage")
    def _message(self, level: int, file: bytes | None, line: int, text: bytes | None) -> None:
        name = _LEVELS[level] if 0 <= level < len(_LEVELS) else "INFO"
        if self._is_enabled(name):
            self._log(name, decoded(text), decoded(file), line)
