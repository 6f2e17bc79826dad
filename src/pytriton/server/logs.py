# SPDX-License-Identifier: Apache-2.0
"""How the server process writes its log."""

from __future__ import annotations

import logging
import sys
import textwrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytriton.server.options import LogOptions

_FORMAT = "%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s"


class _OneLine(logging.Formatter):
    """Lets no text of a client's pass for a line of its own; a traceback's lines are indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  the name is logging's
        text = super().formatMessage(record)
        return "".join(
            character if character.isprintable() else character.encode("unicode_escape").decode()
            for character in text
        )

    def formatException(self, ei: Any) -> str:  # noqa: N802  the name is logging's
        return textwrap.indent(super().formatException(ei), "  ")


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
