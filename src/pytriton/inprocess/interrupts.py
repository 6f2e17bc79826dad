# SPDX-License-Identifier: Apache-2.0
"""Keeps signal handlers of a program out of code that they must not interrupt with an exception.

Python runs handlers in the main thread, between any two steps of whatever it does there. Ctrl-C
raises KeyboardInterrupt like that, and in the middle of the engine it would leave it half changed.
"""

from __future__ import annotations

import importlib
import signal
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

# The functions under those of `signal`, which turn numbers into enums: 1 us instead of 20.
_signal = importlib.import_module("_signal")
_set_handler: Callable[[int, Any], Any] = _signal.signal
_get_handler: Callable[[int], Any] = _signal.getsignal
_SIGINT = int(signal.SIGINT)
_OTHERS = tuple(
    int(getattr(signal, name))
    for name in ("SIGALRM", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGVTALRM", "SIGPROF")
    if hasattr(signal, name)
)
_main_thread = threading.main_thread()


def can_defer_handlers() -> bool:
    """Returns whether no handler but that of SIGINT can raise an exception in this thread."""
    if threading.get_ident() != _main_thread.ident:
        return True
    for number in _OTHERS:  # noqa: SIM110  a generator takes a third longer, for each request
        if callable(_get_handler(number)):
            return False
    return True


def without_interrupts(
    on_interrupt: Callable[[], object] | None, function: Callable[..., T], *arguments: Any
) -> T:
    """Call a function; the handler of a SIGINT that comes meanwhile is called after it.

    Args:
        on_interrupt: Called at once when SIGINT comes, to let the function return soon; None for a
            function that takes only microseconds.
        function: The function.
        *arguments: Its arguments.

    Returns:
        The function's result.
    """
    handler = _get_handler(_SIGINT) if threading.get_ident() == _main_thread.ident else None
    if not callable(handler):
        return function(*arguments)
    frames: list[Any] = []

    def note(_number: int, frame: Any) -> None:
        frames.append(frame)
        if on_interrupt is not None:
            on_interrupt()

    _set_handler(_SIGINT, note)
    try:
        result = function(*arguments)
    finally:
        _set_handler(_SIGINT, handler)
    if frames:
        handler(_SIGINT, frames[0])
    return result
