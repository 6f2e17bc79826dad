# SPDX-License-Identifier: Apache-2.0
"""The server as a child of the process that binds models, and the control connection to a server.

The connection has calls and replies; a process that joins a running server has it alone.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from pytriton.base.errors import ErrorCode
from pytriton.base.lazy_module import LazyModule
from pytriton.base.log_capture import LineSource, capture_again, capture_lines, release_lines
from pytriton.base.log_lines import LogOutbox
from pytriton.base.package import IMPORT_FOLDER
from pytriton.exceptions import PyTritonRuntimeError, PyTritonValidationError
from pytriton.runtime.transport.link import stream_pair

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Sequence

    from pytriton.base.log_lines import SentLines
    from pytriton.runtime.functions.bound_config import AnyModel
    from pytriton.runtime.transport import control
else:  # imported while the server imports its own modules
    control = LazyModule("pytriton.runtime.transport.control")

logger = logging.getLogger(__name__)

_LINES_TIMEOUT_S = 1.0  # for the last lines of the log
_OPENING_CALL = 0  # the number of the first message, `ServerStart` or `Join`
# The folder that contains the package replaces the working directory at the start of `sys.path`,
# so that a user's file with the name of one of our modules is not imported instead. Modules are no
# garbage: looking for some while and after they are imported takes a tenth of a server's start.
_BOOTSTRAP = (
    "import gc, sys; sys.path[0] = sys.argv.pop(1); gc.disable(); "
    "from pytriton.base.openblas import {load}; {load}(); "
    "from pytriton.serving.server.{entry} import main; gc.freeze(); gc.enable(); main(sys.argv[1:])"
)
FOR_BOUND_MODELS, FOR_REPOSITORIES = "main", "repository_main"  # what the process runs
# By that, the function with which it loads numpy.
LOAD_OF = {FOR_BOUND_MODELS: "load_for_copying", FOR_REPOSITORIES: "load_without_threads"}


class ServerGoneError(PyTritonRuntimeError):
    """There is no server, or it has ended; another one may be started later."""


class ServerLink:
    """A connection to a server, open until either side closes it."""

    def __init__(self, sock: socket.socket, on_end: Callable[[], None]) -> None:
        self._link = control.ControlLink(sock)
        self._on_end = on_end
        self._calls = itertools.count(1)
        self._answers: dict[int, control.CallDone | control.Started] = {}
        self._changed = threading.Condition()
        self._send_lock = threading.Lock()
        self._process = os.getpid()
        self._lines: LogOutbox | None = None  # None: the server does not keep them
        self._lines_taken = threading.Event()
        self.has_ended: bool = False

    def open(
        self, message: control.ServerStart | control.Join, timeout_s: float
    ) -> control.Started:
        """Start the receiving thread, send the first message, and wait for the reply.

        Raises:
            PyTritonValidationError: A setting or an argument is wrong.
            PyTritonRuntimeError: The server refused.
            ServerGoneError: The server has ended, or is stopping.
            TimeoutError: The server did not answer in time.
        """
        threading.Thread(
            target=self._receive_messages, name="pytriton-control", daemon=True
        ).start()
        self._send(message)
        is_join = isinstance(message, control.Join)
        what = "joining it" if is_join else "the start of the server"
        answer = self._await_answer(_OPENING_CALL, what, timeout_s)
        if isinstance(answer, control.CallDone):
            if is_join and answer.error_code == ErrorCode.UNAVAILABLE:
                raise ServerGoneError(answer.error)
            raise _error_of(answer)
        if answer.keeps_lines:
            self._lines = LogOutbox(self._send_lines)
            capture_lines(self._lines)
        return answer

    def bind(self, model: AnyModel, on_unrecoverable: Callable[[], None], timeout_s: float) -> None:
        """Serve a model; returns when it is ready."""
        message = model.message()
        model.line_source = None
        if self._lines is not None:
            capture_again(self._lines)
            model.line_source = LineSource(model.name, self._lines)
        sockets, concurrency = model.open_instances(on_unrecoverable)
        call = next(self._calls)
        try:
            self._send(
                control.Bind(
                    call,
                    message,
                    model.version,
                    concurrency,
                    model.initial_states(),
                    model.ray,
                    model.takes_parameters,
                    model.documentation,
                    model.nullable,
                ),
                [sock.fileno() for sock in sockets],
            )
        finally:
            for sock in sockets:
                sock.close()
        try:
            self._wait_for(call, f"loading of model {model.name}", timeout_s)
        except (TimeoutError, KeyboardInterrupt):
            with contextlib.suppress(PyTritonRuntimeError):  # the server has ended
                self._send_unbind(model)  # else it is served some time, though this has failed
            raise

    def unbind(self, model: AnyModel, timeout_s: float) -> None:
        """Remove a model from the server."""
        self._wait_for(self._send_unbind(model), f"unloading of model {model.name}", timeout_s)

    def unbind_all(self, models: Iterable[AnyModel], timeout_s: float) -> None:
        """Remove models, all at the same time; `close` removes those that fail."""
        end = time.monotonic() + timeout_s
        calls = {}
        with contextlib.suppress(
            PyTritonRuntimeError
        ):  # the server has ended, and the models with it
            for model in models:
                calls[self._send_unbind(model)] = f"unloading of model {model.name}"
        for call, what in calls.items():
            try:
                self._wait_for(call, what, max(0.0, end - time.monotonic()))
            except (PyTritonRuntimeError, TimeoutError) as error:  # noqa: PERF203  there are only a few models
                logger.debug("%s failed: %s", what, error)

    def _send_unbind(self, model: AnyModel) -> int:
        call = next(self._calls)
        self._send(control.Unbind(call, model.name, model.version))
        return call

    def report_serving(self) -> None:
        """Let the server be ready, as its first models are served."""
        self._send(control.ModelsServed())

    def request_stop(self) -> None:
        """Request that the server finishes open requests and then ends."""
        self._end_lines(_LINES_TIMEOUT_S)
        self._send(control.ServerStop())

    def close(self) -> None:
        """Close the connection; the server then removes the models of this process."""
        self._end_lines(_LINES_TIMEOUT_S)
        self._link.shut_down()

    def _send_lines(self, lines: SentLines) -> None:
        """Send lines, and wait until the server has read them: its socket never fills with them."""
        self._lines_taken.clear()
        try:
            self._send(control.LinesLogged(lines))
        except PyTritonRuntimeError as error:
            raise ConnectionError(str(error)) from error
        self._lines_taken.wait()
        if self.has_ended:
            raise ConnectionError("the server ended")

    def _end_lines(self, timeout_s: float) -> None:
        if self._lines is not None:
            release_lines(self._lines)
            self._lines.close(timeout_s)

    def _send(
        self,
        message: control.ServerStart
        | control.Join
        | control.Bind
        | control.Unbind
        | control.ModelsServed
        | control.ServerStop
        | control.LinesLogged,
        descriptors: list[int] | None = None,
    ) -> None:
        try:
            with self._send_lock:
                self._link.send(message, descriptors or ())
        except OSError as error:
            if os.getpid() != self._process:
                raise PyTritonRuntimeError(
                    f"Expected process {self._process}, which is connected to the server, got its "
                    f"child {os.getpid()}: a forked process needs its own object"
                ) from error
            raise ServerGoneError("the server is not running") from error

    def _wait_for(self, call: int, what: str, timeout_s: float) -> None:
        answer = self._await_answer(call, what, timeout_s)
        if isinstance(answer, control.CallDone) and answer.error:
            raise _error_of(answer)

    def _await_answer(
        self, call: int, what: str, timeout_s: float
    ) -> control.CallDone | control.Started:
        with self._changed:
            if not self._changed.wait_for(
                lambda: call in self._answers or self.has_ended, timeout_s
            ):
                raise TimeoutError(f"{what} did not end within {timeout_s:g} s")
        answer = self._answers.pop(call, None)
        if answer is None:
            raise ServerGoneError(f"the server ended during {what}")
        return answer

    def _receive_messages(self) -> None:
        try:
            while True:
                message = self._link.receive()
                if isinstance(message, control.LinesTaken):
                    self._lines_taken.set()
                    continue
                with self._changed:
                    if isinstance(message, control.Started):
                        self._answers[_OPENING_CALL] = message
                    elif isinstance(message, control.CallDone):
                        self._answers[message.call] = message
                    self._changed.notify_all()
        except (EOFError, OSError, ValueError) as error:
            logger.debug("the connection to the server ended: %r", error)
            with self._send_lock:
                self._link.close()
        with self._changed:
            self.has_ended = True
            self._changed.notify_all()
        self._lines_taken.set()
        self._end_lines(0.0)
        self._on_end()


def _error_of(answer: control.CallDone) -> PyTritonRuntimeError | PyTritonValidationError:
    if answer.error_code in (ErrorCode.INVALID_ARG, ErrorCode.UNSUPPORTED):
        return PyTritonValidationError(answer.error)
    return PyTritonRuntimeError(answer.error)


class ChildProcess(Protocol):
    """A process that was started, such as a `subprocess.Popen`."""

    @property
    def pid(self) -> int:
        """Its process id."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended; raises `subprocess.TimeoutExpired`."""

    def kill(self) -> None:
        """Send SIGKILL."""


class StartProcess(Protocol):
    """Starts the process of a server."""

    def __call__(self, entry: str, arguments: Sequence[str], descriptor: int) -> ChildProcess:
        """Start a process that runs `main` of an entry with arguments; it inherits a descriptor."""


def start_process(entry: str, arguments: Sequence[str], descriptor: int) -> ChildProcess:
    """Start a new Python; see `StartProcess`."""
    code = _BOOTSTRAP.format(load=LOAD_OF[entry], entry=entry)
    return subprocess.Popen(
        [sys.executable, "-c", code, IMPORT_FOLDER, *arguments],
        stdin=subprocess.DEVNULL,
        pass_fds=(descriptor,),
    )


class ServerProcess:
    """A running server. `start` returns when its ports are open.

    Attributes:
        start_process: how processes are started; tests have a faster way.
    """

    start_process: ClassVar[StartProcess] = staticmethod(start_process)

    def __init__(self, on_exit: Callable[[ServerProcess], None]) -> None:
        self._on_exit = on_exit
        self._process: ChildProcess | None = None
        self._link: ServerLink | None = None

    def start(
        self,
        config: dict[str, Any],
        timeout_s: float,
        *,
        awaits_models: bool = False,
        meanwhile: Callable[[], None] | None = None,
    ) -> control.Started:
        """Start the process with the settings of a `TritonConfig`.

        If `awaits_models` is set, the server is not ready before `report_serving`. `meanwhile` is
        called while the server imports its modules.

        Raises:
            PyTritonValidationError: A setting is wrong.
            PyTritonRuntimeError: A port could not be opened, or the process ended.
            TimeoutError: It did not start in time.
        """
        entry = FOR_REPOSITORIES if config.get("model_repository") else FOR_BOUND_MODELS
        ours, theirs = stream_pair()
        arguments = ["--control-fd", str(theirs.fileno()), "--parent", str(os.getpid())]
        with theirs:
            self._process = self.start_process(entry, arguments, theirs.fileno())
        try:
            if meanwhile is not None:
                meanwhile()
            self._link = ServerLink(ours, self._on_end)
            return self._link.open(control.ServerStart(config, awaits_models), timeout_s)
        except BaseException:  # also KeyboardInterrupt
            if self._link is None:
                ours.close()
            self.kill()
            raise

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None
        return self._process.pid

    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._link is not None and not self._link.has_ended

    def bind(self, model: AnyModel, on_unrecoverable: Callable[[], None], timeout_s: float) -> None:
        """Serve a model; returns when it is ready."""
        assert self._link is not None
        self._link.bind(model, on_unrecoverable, timeout_s)

    def unbind(self, model: AnyModel, timeout_s: float) -> None:
        """Remove a model from the server."""
        assert self._link is not None
        self._link.unbind(model, timeout_s)

    def report_serving(self) -> None:
        """Let the server be ready, as its first models are served."""
        assert self._link is not None
        self._link.report_serving()

    def stop(self, timeout_s: float) -> None:
        """Let running requests finish, then stop; a process that takes too long is killed."""
        assert self._link is not None
        assert self._process is not None
        try:
            self._link.request_stop()
        except PyTritonRuntimeError:
            logger.debug("the server was gone already")
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            logger.warning("the server did not end within %g s and is killed", timeout_s)
            self.kill()

    def kill(self) -> None:
        """End the process at once."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def _on_end(self) -> None:
        assert self._process is not None
        self._process.wait()
        self._on_exit(self)
