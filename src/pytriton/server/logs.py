# SPDX-License-Identifier: Apache-2.0
"""How the server process writes its log."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytriton.server.options import LogOptions

_FORMAT = "%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s"


class _OneLine(logging.Formatter):
    """Lets no text of a client's pass for a line of its own; a traceback's lines are indented."""

    def format(self, record: logging.LogRecord) -> str:
        record.exc_text = None  # another formatter's idea of the traceback
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  the name is logging's
        return _escaped(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802  the name is logging's
        return "\n".join(f"  {_escaped(line)}" for line in super().formatException(ei).splitlines())


def _escaped(text: str) -> str:
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
