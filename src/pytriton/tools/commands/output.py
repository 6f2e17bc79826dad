# SPDX-License-Identifier: Apache-2.0
"""What commands print: results to standard output, errors to standard error."""

from __future__ import annotations

import io
import os
import sys


class OutputError(OSError):
    """Standard output cannot be written, such as to a full disk."""


def accept_any_name() -> None:
    """Let texts in any encoding, such as names of files, be printed on every terminal."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def show(text: str, end: str = "\n") -> None:
    """Print a result; `end` is empty for the pieces of one text.

    Raises:
        OutputError: It cannot be written.
    """
    try:
        print(text, end=end, flush=True)  # noqa: T201  the output of the command
    except OSError as error:
        # Otherwise Python would try to write the rest at its exit, and print an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # A reader such as `head` may stop early; the exit code says what the command found.
        if not isinstance(error, BrokenPipeError):
            raise OutputError(error.errno, error.strerror) from error


def complain(text: str) -> None:
    """Print an error."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201
