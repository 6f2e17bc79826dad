# SPDX-License-Identifier: Apache-2.0
"""Runs `pytriton serve`."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING

from pytriton.base.announcement import slow_end_is_told
from pytriton.exceptions import PyTritonError
from pytriton.tools.commands.serve.loading import ServeError, load
from pytriton.tools.commands.serve.options import read_options
from pytriton.tools.commands.serve.reloading import CommandServer, Reloader, ServeScreen

if TYPE_CHECKING:
    from pytriton.tools.commands.serve.options import ServeOptions

_INTERRUPTED = 130  # the exit code in a shell of a program that Ctrl-C ended
_CHECK_PERIOD_S = 1.0


def run(arguments: list[str], _show: Callable[[str], None], complain: Callable[[str], None]) -> int:
    """Serve the models that the arguments name, until a signal ends it.

    Returns the exit code: 0 after SIGTERM, 1 if they cannot be served, 130 after Ctrl-C.
    """
    options = read_options(arguments)
    ending, screen = _Ending(), ServeScreen()
    with ending.on_signals():
        try:
            is_ended_by_user = _serve(options, ending, screen)
        except (ServeError, PyTritonError, OSError, TimeoutError) as error:
            complain(str(error))
            return 1
    if not is_ended_by_user:
        complain("The server ended.")
        return 1
    screen.note("Ended")
    return _INTERRUPTED if ending.is_interrupt else 0


class _Ending:
    """Whether a signal has asked for the end, and which."""

    def __init__(self) -> None:
        self.is_asked = threading.Event()
        self.is_interrupt = False
        self.is_loading = False

    @contextlib.contextmanager
    def on_signals(self) -> Iterator[None]:
        """Let SIGINT and SIGTERM ask for the end."""
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:  # as for a background job of a shell
                signal.signal(number, self._ask)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _ask(self, number: int, _frame: FrameType | None) -> None:
        is_again = self.is_asked.is_set()
        self.is_interrupt = number == signal.SIGINT
        self.is_asked.set()
        if self.is_loading or is_again:
            # The code of a user is interrupted; so is an orderly end that takes too long.
            raise KeyboardInterrupt


def _serve(options: ServeOptions, ending: _Ending, screen: ServeScreen) -> bool:
    """Serve until the end is asked for; returns False if the server ended by itself."""
    server = CommandServer(options)
    try:
        if options.reload:
            server.launch()
            return Reloader(options, server, screen).run(ending.is_asked)
        ending.is_loading = True
        loaded = load(options, server)
        ending.is_loading = False
        server.run()
        screen.lines(server.announcement(colours=screen.colours))
        screen.left_out(loaded.skipped, loaded.forgotten)
        while server.is_alive() and not ending.is_asked.wait(_CHECK_PERIOD_S):
            pass
        return ending.is_asked.is_set()
    except KeyboardInterrupt:
        return True
    finally:
        with slow_end_is_told():
            server.stop()
