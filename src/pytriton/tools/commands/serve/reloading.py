# SPDX-License-Identifier: Apache-2.0
"""Serves the newest state of the code that works, each in a child process."""

from __future__ import annotations

import pathlib
import select
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytriton.base.announcement import slow_end_is_told
from pytriton.tools.commands.serve.child import CodeProcess
from pytriton.tools.commands.serve.loading import watched_files
from pytriton.tools.commands.serve.watching import WatchedFiles

if TYPE_CHECKING:
    from pytriton.tools.commands.serve.options import ServeOptions
    from pytriton.tools.commands.serve.screen import ServeScreen
    from pytriton.tools.commands.serve.servers import CommandServer
    from pytriton.tools.commands.serve.worker import CodeReport

_LOOK_PERIOD_S = 0.2
_END_TIMEOUT_S = 5.0  # for children whose server has ended


class Reloader:
    """Runs children: one that serves, one that is starting, and those that are ending."""

    def __init__(self, options: ServeOptions, server: CommandServer, screen: ServeScreen) -> None:
        self._options = options
        self._server = server
        self._screen = screen
        self._files = WatchedFiles()
        self._serving: CodeProcess | None = None
        self._starting: CodeProcess | None = None
        self._ending: list[CodeProcess] = []
        self._has_announced = False
        self._told: set[str] = set()  # why something is not served

    def run(self, stopped: threading.Event) -> bool:
        """Serve until the event is set; returns False if the server ended by itself."""
        self._files.watch(watched_files(self._options))
        self._starting = self._start()
        try:
            while not stopped.is_set():
                self.step(_LOOK_PERIOD_S)
                if not self._server.is_alive():
                    return stopped.is_set()
            return True
        finally:
            self._end()

    def _end(self) -> None:
        children = [each for each in (self._starting, self._serving, *self._ending) if each]
        try:
            with slow_end_is_told():
                self._server.stop()  # first, so that requests under way are answered
            for child in children:
                child.end(_END_TIMEOUT_S)
        except KeyboardInterrupt:
            # Without its models the server has nothing to wait for, and frees the ports at once.
            for child in children:
                child.abandon()
            raise

    def step(self, timeout_s: float) -> None:
        """Wait for news of the children, then look at the files once."""
        children = [each for each in (self._starting, self._serving) if each is not None]
        for child in select.select(children, [], [], timeout_s)[0]:
            self._on_news(child)
        self._ending = [each for each in self._ending if not each.has_ended()]
        changed = self._files.changed()
        if changed:
            self._on_change(changed)

    def _start(self) -> CodeProcess:
        child = CodeProcess()
        child.start(self._options, self._server.addresses, colours=self._screen.colours)
        return child

    def _on_change(self, changed: Sequence[str]) -> None:
        names = ", ".join(pathlib.Path(path).name for path in changed)
        self._screen.note(f"{names} changed")
        if self._starting is not None:
            self._starting.abandon()
        self._starting = self._start()

    def _on_news(self, child: CodeProcess) -> None:
        try:
            report = child.receive()
        except (EOFError, ConnectionError):
            self._on_end(child)
            return
        if report is None or child is not self._starting:
            return
        self._files.watch(sorted({*report.files, *watched_files(self._options)}))
        if report.error:
            self._on_failure(report)
        else:
            self._on_ready(child, report)

    def _on_ready(self, child: CodeProcess, report: CodeReport) -> None:
        if self._serving is not None:
            self._serving.ask_to_end()
            self._ending.append(self._serving)
        self._serving, self._starting = child, None
        if self._has_announced:
            self._screen.good(f"Serving the new code: {', '.join(report.models)}")
        else:
            self._has_announced = True
            self._screen.lines(report.lines)
            self._screen.note("Changed files are served as soon as they are saved")
        for reason in report.skipped:
            if reason not in self._told:
                self._screen.note(f"Not served: {reason}")
        self._told = set(report.skipped)

    def _on_failure(self, report: CodeReport) -> None:
        self._screen.lines(report.error.splitlines())
        if self._serving is not None:
            self._screen.bad("The new code cannot be served. The models are those of before; "
                             "save a file to try again")  # fmt: skip
        else:
            self._screen.bad("This cannot be served. Save a file to try again")

    def _on_end(self, child: CodeProcess) -> None:
        """A child ended by itself: after its report, or because its code ended the process."""
        code = child.exit_code()
        child.ask_to_end()
        if child is self._starting:
            self._starting = None
            if code:
                self._screen.bad(f"The code ended its process with exit code {code}. Save a file "
                                 "to try again")  # fmt: skip
        elif child is self._serving:
            self._serving = None
            self._screen.bad(f"The process with the models ended with exit code {code}: they are "
                             "not served any more. Save a file to start them again")  # fmt: skip
