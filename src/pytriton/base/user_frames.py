# SPDX-License-Identifier: Apache-2.0
"""The frames of a traceback that belong to users: where their code failed, and how it got there.

Frames of this package are hidden, because a user can do nothing about them. An exception that has
no other frames is a fault of ours, or of what a function returned, and keeps all of them.
"""

from __future__ import annotations

import functools
import inspect
import os
import traceback
import types
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pytriton.base.errors import sendable_text
from pytriton.base.package import PACKAGE_FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

Function = TypeVar("Function", bound="Callable[..., Any]")

MAX_CHARACTERS = 8000  # of a short traceback
FIRST_LINE = "Traceback (most recent call last):\n"
_USER_FUNCTION = "_pytriton_user_function"
_CHECK = "_pytriton_check"
_OURS = str(PACKAGE_FOLDER) + os.sep
_HIDDEN = (_OURS, "<frozen importlib")
# Code that users call and did not write. Its frames are shown, but are not the place to look at.
_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep  # noqa: PTH120  as paths of frames are
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


class UserFrame(NamedTuple):
    """A place in a file that is not ours."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line} in {self.function}"  # noqa: PTH119  it may be no path


def user_frames(trace: TracebackType | None) -> list[UserFrame]:
    """Returns the frames, innermost first, without those of this package and of importlib."""
    frames = []
    while trace is not None:
        code = trace.tb_frame.f_code
        if not is_hidden(code.co_filename):
            frames.append(UserFrame(code.co_filename, trace.tb_lineno, code.co_name))
        trace = trace.tb_next
    return frames[::-1]


def own_frame(error: BaseException) -> UserFrame | None:
    """Returns the place where a user looks first; None if only our code was running.

    That is the innermost frame of a file that was not installed, else the innermost that is not
    ours. A file that could not be compiled has no frame: its place is the one in the error.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return UserFrame(error.filename, error.lineno or 0, "<module>")
    frames = user_frames(error.__traceback__)
    return next((each for each in frames if not _is_library(each.file)), next(iter(frames), None))


def with_user_function(ours: Function, users: Any) -> Function:
    """Note which callable of a user a function of ours calls, for `definition_of`.

    It is not `__wrapped__`, as the two have different signatures.
    """
    setattr(inspect.unwrap(ours), _USER_FUNCTION, users)
    return ours


def with_check(ours: Function, check: Callable[[Any], object]) -> Function:
    """Note what raises InputValueError for the inputs of a request that a function cannot take.

    The function does so for a batch, before it does anything else.
    """
    setattr(inspect.unwrap(ours), _CHECK, check)
    return ours


def check_of(function: Any) -> Callable[[Any], object] | None:
    """Returns what `with_check` has noted; None if there is nothing."""
    check: Callable[[Any], object] | None = getattr(inspect.unwrap(function), _CHECK, None)
    return check


def definition_of(function: Any) -> UserFrame | None:
    """Returns where a user has defined a callable; None if that is not known."""
    function = inspect.unwrap(function)
    function = inspect.unwrap(getattr(function, _USER_FUNCTION, function))
    while isinstance(function, functools.partial):
        function = inspect.unwrap(function.func)
    code = getattr(function, "__code__", None)
    if code is None:  # an object is called as its class says
        code = getattr(type(function).__call__, "__code__", None)
    if code is None or is_hidden(code.co_filename):
        return None
    return UserFrame(code.co_filename, code.co_firstlineno, code.co_name)


def user_traceback(error: BaseException) -> TracebackType | None:
    """Returns the traceback of an exception without our frames, or all of it if it has no others.

    It can be the third member of an `exc_info`, which handlers of `logging` know how to write.
    """
    shown = []
    trace = error.__traceback__
    while trace is not None:
        if not is_hidden(trace.tb_frame.f_code.co_filename):
            shown.append(trace)
        trace = trace.tb_next
    if not shown:
        return error.__traceback__
    made: TracebackType | None = None
    for each in reversed(shown):
        made = types.TracebackType(made, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return made


def short_traceback(error: BaseException, max_characters: int = MAX_CHARACTERS) -> str:
    """Returns a traceback as Python writes it, without our frames unless it has only those.

    So are the exceptions that caused it. It does not end with a line break, and what is too long
    for `max_characters` loses its middle.
    """
    described = traceback.TracebackException.from_exception(error)
    _hide_our_frames(described)
    text = "".join(described.format()).rstrip("\n")
    return sendable_text(_without_middle(text, max_characters))


def is_hidden(file: str) -> bool:
    """Returns whether a file of a frame is one of ours, or of the machinery of imports."""
    return file.startswith(_HIDDEN)


def _is_library(file: str) -> bool:
    return file.startswith((_STANDARD_LIBRARY, "<")) or any(each in file for each in _INSTALLED)


def _hide_our_frames(described: traceback.TracebackException) -> None:
    seen = set()
    pending: list[traceback.TracebackException | None] = [described]
    while pending:
        each = pending.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        shown = [frame for frame in each.stack if not is_hidden(frame.filename)]
        if shown:
            each.stack = traceback.StackSummary(shown)
        pending += [each.__cause__, each.__context__]
        pending += getattr(each, "exceptions", None) or []  # of a group, since Python 3.11


def _without_middle(text: str, max_characters: int) -> str:
    """Returns text with whole lines of its middle left out, as its ends say what happened."""
    if len(text) <= max_characters:
        return text
    begin = text[: max_characters // 4].rpartition("\n")[0]
    end = text[-(max_characters - len(begin)) :].partition("\n")[2]
    if not end:  # the last line alone is too long
        return text[:max_characters] + " ..."
    return f"{begin}\n  ...\n{end}"
