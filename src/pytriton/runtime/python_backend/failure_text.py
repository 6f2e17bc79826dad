# SPDX-License-Identifier: Apache-2.0
"""The error texts of exceptions that a model raised, for clients and for the server's log."""

from __future__ import annotations

import os
import traceback
from typing import TYPE_CHECKING

from pytriton.base.errors import sendable_text
from pytriton.base.package import PACKAGE_FOLDER

if TYPE_CHECKING:
    from types import TracebackType

_TRACEBACK = "Traceback (most recent call last):\n"
_OURS = str(PACKAGE_FOLDER) + os.sep
_IMPORTING = "<frozen importlib"


class RuleError(Exception):
    """A model broke a rule; only the text is shown, without class and traceback."""


def describe(error: BaseException) -> str:
    """Returns `<class>: <text>`, a blank line, `At:` and the model's frames, innermost first."""
    if isinstance(error, RuleError):
        return sendable_text(str(error))
    text = f"{type(error).__name__}: {_message(error)}"
    places = [
        f"  {file}({line}): {function}\n" for file, line, function in _frames(error.__traceback__)
    ]
    if places:
        text += "\n\nAt:\n" + "".join(places)
    return sendable_text(text)


def describe_fully(error: BaseException) -> str:
    """Returns `<class>: <text>` and the traceback from the model's first frame on, for the log."""
    if isinstance(error, RuleError):
        return sendable_text(str(error))
    trace = error.__traceback__
    while trace is not None and _is_hidden(trace):
        trace = trace.tb_next
    text = f"{type(error).__name__}: {_message(error)}\n{_traceback(error, trace)}"
    return sendable_text(text.rstrip("\n"))


def raised_at(error: BaseException) -> tuple[str, int]:
    """Returns the file and line of the model that raised an error; "" and 0 if unknown."""
    for file, line, _ in _frames(error.__traceback__):
        return file, line
    if isinstance(error, SyntaxError):  # the file was not run, so it has no frame
        return error.filename or "", error.lineno or 0
    return "", 0


def _traceback(error: BaseException, trace: TracebackType | None) -> str:
    """Returns a traceback with its first line, by which the log knows it; "" if it says nothing."""
    text = "".join(traceback.format_exception(type(error), error, trace))
    if text.startswith(_TRACEBACK):
        return text
    # Without a frame there is no first line, and seldom more than the message.
    says_more = isinstance(error, SyntaxError) or error.__cause__ or error.__context__
    return _TRACEBACK + text if says_more else ""


def _message(error: BaseException) -> str:
    try:
        return str(error) or "<EMPTY MESSAGE>"
    except Exception:  # noqa: BLE001  the traceback still says enough
        return "<MESSAGE UNAVAILABLE DUE TO ANOTHER EXCEPTION>"


def _frames(trace: TracebackType | None) -> list[tuple[str, int, str]]:
    """Returns the frames, innermost first, without those of this package and of importlib."""
    frames = []
    while trace is not None:
        code = trace.tb_frame.f_code
        if not _is_hidden(trace):
            frames.append((code.co_filename, trace.tb_lineno, code.co_name))
        trace = trace.tb_next
    return frames[::-1]


def _is_hidden(trace: TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename.startswith((_OURS, _IMPORTING))
