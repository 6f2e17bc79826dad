# SPDX-License-Identifier: Apache-2.0
"""How the server process writes its log."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytriton.server.options import LogOptions

_FORMAT = "%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s"


class _OneLine(logging.Formatter):
    """Escapes what would let a client's text pass for a line of its own."""

    def format(self, record: logging.LogRecord) -> str:
        if record.exc_info:
            return super().format(record)
        text = super().format(record)
        return "".join(
            character if character.isprintable() else character.encode("unicode_escape").decode()
            for character in text
        )


def set_up_logging(options: LogOptions) -> None:
    """Send the log to a file or to standard error, at the level that was asked for."""
    handler: logging.Handler
    if options.file:
        handler = logging.FileHandler(options.file)
    else:
        handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine(_FORMAT))
    root = logging.getLogger()
    root.addHandler(handler)
    if options.verbose:
        root.setLevel(logging.DEBUG)
    elif options.info:
        root.setLevel(logging.INFO)
    elif options.warning:
        root.setLevel(logging.WARNING)
    else:
        root.setLevel(logging.ERROR)
