# SPDX-License-Identifier: Apache-2.0
"""The error texts of exceptions that a model raised, for clients and for the server's log."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from pytriton.base.errors import sendable_text
from pytriton.base.user_frames import FIRST_LINE, user_frames, user_traceback

if TYPE_CHECKING:
    from types import TracebackType


class RuleError(Exception):
    """A model broke a rule; only the text is shown, without class and traceback."""

    log_name = ""  # of its class


def describe(error: BaseException) -> str:
    """Returns `<class>: <text>`, a blank line, `At:` and the model's frames, innermost first."""
    if isinstance(error, RuleError):
        return sendable_text(str(error))
    text = f"{type(error).__name__}: {_message(error)}"
    places = [
        f"  {file}({line}): {function}\n"
        for file, line, function in user_frames(error.__traceback__)
    ]
    if places:
        text += "\n\nAt:\n" + "".join(places)
    return sendable_text(text)


def describe_fully(error: BaseException) -> str:
    """Returns `<class>: <text>` and the traceback without frames of ours, for the log."""
    if isinstance(error, RuleError):
        return sendable_text(str(error))
    trace = user_traceback(error) if user_frames(error.__traceback__) else None
    text = f"{type(error).__name__}: {_message(error)}\n{_traceback(error, trace)}"
    return sendable_text(text.rstrip("\n"))


def raised_at(error: BaseException) -> tuple[str, int]:
    """Returns the file and line of the model that raised an error; "" and 0 if unknown."""
    for file, line, _ in user_frames(error.__traceback__):
        return file, line
    if isinstance(error, SyntaxError):  # the file was not run, so it has no frame
        return error.filename or "", error.lineno or 0
    return "", 0


def _traceback(error: BaseException, trace: TracebackType | None) -> str:
    """Returns a traceback with its first line, by which the log knows it; "" if it says nothing."""
    text = "".join(traceback.format_exception(type(error), error, trace))
    if text.startswith(FIRST_LINE):
        return text
    # Without a frame there is no first line, and seldom more than the message.
    says_more = isinstance(error, SyntaxError) or error.__cause__ or error.__context__
    return FIRST_LINE + text if says_more else ""


def _message(error: BaseException) -> str:
    try:
        return str(error) or "<EMPTY MESSAGE>"
    except Exception:  # noqa: BLE001  the traceback still says enough
        return "<MESSAGE UNAVAILABLE DUE TO ANOTHER EXCEPTION>"
