# SPDX-License-Identifier: Apache-2.0
"""Runs `pytriton serve`; with `--reload`, the newest state of the code, each in a child process.

The `Reloader` notices changed files by their times and sizes. The child (`main`) reports on a
socket whether the models are served, and ends when that is closed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any

import msgspec

from pytriton.base.announcement import (
    Addresses,
    Announced,
    announcement,
    say,
    says_in_colour,
    slow_end_is_told,
    ways_to_end,
)
from pytriton.base.log_capture import keep_line
from pytriton.base.package import IMPORT_FOLDER
from pytriton.base.security import TritonSecurityConfig
from pytriton.exceptions import PyTritonError
from pytriton.tools.commands.serve.loading import ServeError, load, users_traceback, watched_files
from pytriton.tools.commands.serve.options import ServeOptions, read_options
from pytriton.triton import RemoteTriton, Triton
from pytriton.utils.terminal import Colour, paint

_INTERRUPTED = 130  # the exit code in a shell of a program that Ctrl-C ended
_CHECK_PERIOD_S = 1.0

# The folder of the package replaces the working directory at the start of `sys.path`, as a user's
# file may have the name of one of our modules.
_BOOTSTRAP = (
    "import sys; sys.path[0] = sys.argv.pop(1); "
    "from pytriton.tools.commands.serve.command import main; main(sys.argv[1:])"
)
_Stamp = tuple[int, int, int] | None  # of a file that does not exist
_LOOK_PERIOD_S = 0.2
_END_TIMEOUT_S = 5.0  # for children whose server has ended
_CHILD_END_TIMEOUT_S = 1.0  # for what Python does at the end of a process


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


class CodeReport(msgspec.Struct):
    """The result of loading one state of the code.

    Args:
        files: files to watch.
        error: why it is not served; empty if it is.
        models: names of the models.
        lines: the announcement.
        skipped: what is not served, with the reason.
        forgotten: what is probably meant to be served, but is not.
    """

    files: list[str]
    error: str = ""
    models: list[str] = []
    lines: list[str] = []
    skipped: list[str] = []
    forgotten: list[str] = []


class CodeProcess:
    """A process that imports the code, binds its models, and ends when it is told to."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._received = bytearray()

    def start(self, options: ServeOptions, addresses: Addresses, *, colours: bool) -> None:
        """Start the process."""
        document: dict[str, Any] = {
            "options": options.to_json(), "addresses": addresses, "colours": colours,
            "end": ways_to_end(),
        }  # fmt: skip
        self._socket, theirs = socket.socketpair()
        with theirs:
            descriptor = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOTSTRAP, IMPORT_FOLDER, str(descriptor)],
                stdin=subprocess.DEVNULL,
                pass_fds=(descriptor,),
            )
        # Not as an argument, which other users of the machine see: it has the access token.
        self._socket.sendall(json.dumps(document).encode() + b"\n")

    def fileno(self) -> int:
        """The socket, which can be read when there is news."""
        assert self._socket is not None
        return self._socket.fileno()

    def receive(self) -> CodeReport | None:
        """Returns the report if it is complete; EOFError if the process has ended."""
        assert self._socket is not None
        piece = self._socket.recv(1 << 16)
        if not piece:
            raise EOFError
        self._received += piece
        if not self._received.endswith(b"\n"):
            return None
        report = msgspec.json.decode(bytes(self._received), type=CodeReport)
        self._received.clear()
        return report

    def ask_to_end(self) -> None:
        """Let it finish its requests and end."""
        assert self._socket is not None
        self._socket.close()

    def has_ended(self) -> bool:
        """Whether the process has ended."""
        assert self._process is not None
        return self._process.poll() is not None

    def exit_code(self) -> int:
        """Waits for the end of the process, whose socket is closed already."""
        assert self._process is not None
        return self._process.wait()

    def end(self, timeout_s: float) -> None:
        """Wait for its end; one that takes too long is killed."""
        assert self._process is not None
        self.ask_to_end()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def abandon(self) -> None:
        """End it at once, because its code is out of date before it was served."""
        assert self._process is not None
        self._process.kill()
        self.end(0)


class WatchedFiles:
    """Files and their state when they were last looked at.

    Looking at a hundred files takes about a tenth of a millisecond, so it needs no service of the
    operating system, and works on every file system.
    """

    def __init__(self) -> None:
        self._stamps: dict[str, _Stamp] = {}

    def watch(self, paths: Iterable[str]) -> None:
        """Watch these files instead; those that were watched before keep their state."""
        self._stamps = {
            path: self._stamps[path] if path in self._stamps else _stamp(path) for path in paths
        }

    def changed(self) -> list[str]:
        """Returns the files that have changed since the last call, or appeared, or are gone."""
        changed = []
        for path, before in self._stamps.items():
            now = _stamp(path)
            if now != before:
                self._stamps[path] = now
                changed.append(path)
        return changed


def _stamp(path: str) -> _Stamp:
    try:
        status = os.stat(path)  # noqa: PTH116  three times as fast as with a Path
    except OSError:
        return None
    # The inode, because editors write a new file and give it the name of the old one.
    return status.st_mtime_ns, status.st_size, status.st_ino


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
            said = f"Serving the new code: {', '.join(report.models)}"
            self._screen.good(said)
            keep_line(logging.INFO, said)
        else:
            self._has_announced = True
            self._screen.lines(report.lines)
            self._screen.note("Changed files are served as soon as they are saved")
        self._screen.left_out(
            *([each for each in some if each not in self._told]
              for some in (report.skipped, report.forgotten))
        )  # fmt: skip
        self._told = {*report.skipped, *report.forgotten}

    def _on_failure(self, report: CodeReport) -> None:
        keep_line(logging.ERROR, "The code cannot be served", report.error)
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
        if code:
            keep_line(logging.ERROR, f"The process with the code ended with exit code {code}")
        if child is self._starting:
            self._starting = None
            if code:
                self._screen.bad(f"The code ended its process with exit code {code}. Save a file "
                                 "to try again")  # fmt: skip
        elif child is self._serving:
            self._serving = None
            self._screen.bad(f"The process with the models ended with exit code {code}: they are "
                             "not served any more. Save a file to start them again")  # fmt: skip


# The child process


def main(arguments: list[str]) -> None:
    """Serve until the socket is closed, whose descriptor is the argument.

    The parent has sent a line of JSON on it that says what to serve and where.
    """
    (descriptor,) = arguments
    _leave_signals_to_parent()
    # Python takes a compiled file for that of a source which is saved again in the same second.
    sys.dont_write_bytecode = True
    with socket.socket(fileno=int(descriptor)) as parent:
        with parent.makefile("rb") as sent:
            document = json.loads(sent.readline())
        _serve_code(parent, document)
        # Threads that the user's code has left would otherwise keep this process for ever.
        deadline = threading.Timer(_CHILD_END_TIMEOUT_S, os._exit, (0,))
        deadline.daemon = True
        deadline.start()


def _leave_signals_to_parent() -> None:
    """Let signals for all processes of a terminal or a service pass: the parent ends this one.

    Processes that the user's code starts have the usual handlers.
    """
    signals = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: None) for number in signals}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    os.register_at_fork(after_in_child=restore)


def _serve_code(parent: socket.socket, document: dict[str, Any]) -> None:
    options = ServeOptions.from_json(document["options"])
    # The server ends first, and that is no error here.
    logging.getLogger("pytriton.binding.remote_triton").setLevel(logging.CRITICAL)
    binder = CommandBinder(Addresses(*document["addresses"]))
    try:
        loaded = load(options, binder)
        binder.connect()
    except Exception as error:  # noqa: BLE001  the parent shows it
        text = str(error) if isinstance(error, ServeError) else users_traceback(error)
        _send(parent, CodeReport(watched_files(options), error=text))
        return
    lines = binder.announcement(colours=document["colours"], end=document["end"])
    left_out = (loaded.skipped, loaded.forgotten)
    _send(parent, CodeReport(watched_files(options), "", loaded.names, lines, *left_out))
    parent.recv(1)  # ends when the parent closes its side, or itself ends
    binder.stop()


def _send(parent: socket.socket, report: CodeReport) -> None:
    parent.sendall(msgspec.json.encode(report) + b"\n")


class CommandServer(Triton):
    """A server whose log shows only what the user asked for, and whose advice names options."""

    def __init__(self, options: ServeOptions) -> None:
        super().__init__(
            config=options.server_config(),
            security_config=TritonSecurityConfig(access_token=options.access_token),
        )
        self._log_level = options.log_level

    def launch(self) -> None:
        """Start it without models, which another process binds; it is not ready before."""
        self._launch(awaits_models=True)

    def _report_serving(self) -> None:
        if self._models:  # otherwise the process that binds them reports
            super()._report_serving()

    @property
    def addresses(self) -> Addresses:
        """Its addresses for clients on this machine; that of the page has the token.

        A browser does not send what follows the hash.
        """
        addresses = self._addresses()
        token = self._config.page_token or self.get_access_token()
        if not addresses.page or not token:
            return addresses
        return addresses._replace(page=f"{addresses.page}#token={token}")

    def announcement(self, *, colours: bool) -> list[str]:
        """Returns the lines that say what is served and where."""
        return _announcement(self, self.addresses, colours=colours)

    def _server_settings(self) -> dict[str, Any]:
        return super()._server_settings() | {"log_info": self._log_level != "warning"}

    @staticmethod
    def _port_hint(field: str) -> str:
        option = f"--{field.replace('_', '-')}"
        return (
            f"Stop the program that uses it, or choose another port with {option}; 0 takes a free "
            "one."
        )


class CommandBinder(RemoteTriton):
    """Binds models to the server of the command from another process."""

    def __init__(self, addresses: Addresses) -> None:
        super().__init__(url=addresses.http)
        self._server_addresses = addresses

    def announcement(self, *, colours: bool, end: str) -> list[str]:
        """Returns the lines that say what is served and where, and how it is ended."""
        return _announcement(self, self._server_addresses, colours=colours, end=end)


def _announcement(
    triton: CommandServer | CommandBinder, addresses: Addresses, *, colours: bool, end: str = ""
) -> list[str]:
    models = [Announced(model.config, model.examples) for model in triton._models.values()]  # noqa: SLF001  of the two classes above
    return announcement(addresses, models, colours=colours, end=end)


class ServeScreen:
    """Writes lines."""

    def __init__(self) -> None:
        self.colours = says_in_colour()

    def lines(self, lines: Sequence[str]) -> None:
        """Write lines as they are."""
        say(lines)

    def note(self, text: str) -> None:
        """Write a line that is less important than others."""
        self._write(text, Colour.DIM)

    def left_out(self, skipped: Sequence[str], forgotten: Sequence[str]) -> None:
        """Write what is not served, with the reasons; what was probably forgotten is a warning."""
        for reason in skipped:
            self.note(f"Not served: {reason}")
        for reason in forgotten:
            self._write(f"Not served: {reason}", Colour.YELLOW)

    def good(self, text: str) -> None:
        """Write a line on something that worked."""
        self._write(text, Colour.GREEN)

    def bad(self, text: str) -> None:
        """Write a line on something that failed."""
        self._write(text, Colour.RED)

    def _write(self, text: str, colour: Colour) -> None:
        say([paint(text, colour) if self.colours else text])
