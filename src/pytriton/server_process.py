# SPDX-License-Identifier: Apache-2.0
"""The server as a child process: started, spoken to, watched and ended by the one that binds."""

from __future__ import annotations

import itertools
import logging
import os
import pathlib
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

from pytriton.errors import ErrorCode
from pytriton.exceptions import PyTritonRuntimeError, PyTritonValidationError
from pytriton.transport.control import (
    Bind,
    ControlLink,
    Done,
    Start,
    Started,
    Stop,
    Unbind,
)
from pytriton.transport.link import stream_pair

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.backend.bound_model import BoundModel

logger = logging.getLogger(__name__)

# The folder that holds the package replaces the working directory as the first place to import
# from: a file of the user's called like a module of ours must not be taken for it.
_BOOTSTRAP = (
    "import sys; sys.path[0] = sys.argv.pop(1); "
    "from pytriton.server.main import main; main(sys.argv[1:])"
)
_PACKAGE_PARENT = str(pathlib.Path(__file__).parent.parent)


class ServerProcess:
    """A running server. `start` returns once its ports are open."""

    def __init__(self, on_exit: Callable[[ServerProcess], None]) -> None:
        self._on_exit = on_exit
        self._calls = itertools.count(1)
        self._answers: dict[int, Done] = {}
        self._changed = threading.Condition()
        self._started: Started | None = None
        self._has_ended = False
        self._process: subprocess.Popen[bytes] | None = None
        self._link: ControlLink | None = None
        self._send_lock = threading.Lock()

    def start(self, config: dict[str, Any], timeout_s: float) -> Started:
        """Start the process with the settings of a `TritonConfig`.

        Raises:
            PyTritonValidationError: A setting is wrong.
            PyTritonRuntimeError: A port could not be had, or the process ended.
            TimeoutError: It did not answer in time.
        """
        ours, theirs = stream_pair()
        arguments = [
            sys.executable, "-c", _BOOTSTRAP, _PACKAGE_PARENT,
            "--control-fd", str(theirs.fileno()), "--parent", str(os.getpid()),
        ]  # fmt: skip
        with theirs:
            self._process = subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),)
            )
        self._link = ControlLink(ours)
        try:
            threading.Thread(target=self._listen, name="pytriton-control", daemon=True).start()
            self._send(Start(config))
            return self._await_started(timeout_s)
        except BaseException:  # the user's interrupt too
            self.kill()
            raise

    def _await_started(self, timeout_s: float) -> Started:
        with self._changed:
            if not self._changed.wait_for(self._is_start_over, timeout_s):
                raise TimeoutError(f"the server did not start within {timeout_s:g} s")
        if self._started is None:
            self._raise_failure(self._answers.pop(0, None), "the server ended while it started")
        assert self._started is not None
        return self._started

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None
        return self._process.pid

    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and not self._has_ended

    def bind(
        self, model: BoundModel, on_unrecoverable: Callable[[], None], timeout_s: float
    ) -> None:
        """Have a model served; returns once it is ready."""
        message = model.message()
        sockets, concurrency = model.open_instances(on_unrecoverable)
        call = next(self._calls)
        try:
            self._send(
                Bind(call, message, model.version, concurrency),
                [sock.fileno() for sock in sockets],
            )
        finally:
            for sock in sockets:
                sock.close()
        self._wait_for(call, f"loading of model {model.name}", timeout_s)

    def unbind(self, model: BoundModel, timeout_s: float) -> None:
        """Take a model away."""
        call = next(self._calls)
        self._send(Unbind(call, model.name, model.version))
        self._wait_for(call, f"unloading of model {model.name}", timeout_s)

    def stop(self, timeout_s: float) -> None:
        """Let what runs finish, then end; a process that takes too long is killed."""
        assert self._process is not None
        try:
            self._send(Stop())
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

    def _send(
        self, message: Start | Bind | Unbind | Stop, descriptors: list[int] | None = None
    ) -> None:
        assert self._link is not None
        try:
            with self._send_lock:
                self._link.send(message, descriptors or ())
        except OSError as error:
            raise PyTritonRuntimeError("the server is not running") from error

    def _wait_for(self, call: int, what: str, timeout_s: float) -> None:
        with self._changed:
            if not self._changed.wait_for(
                lambda: call in self._answers or self._has_ended, timeout_s
            ):
                raise TimeoutError(f"{what} did not end within {timeout_s:g} s")
        answer = self._answers.pop(call, None)
        if answer is None or answer.error:
            self._raise_failure(answer, f"the server ended during {what}")

    @staticmethod
    def _raise_failure(answer: Done | None, otherwise: str) -> None:
        if answer is None:
            raise PyTritonRuntimeError(otherwise)
        if answer.error_code in (ErrorCode.INVALID_ARG, ErrorCode.UNSUPPORTED):
            raise PyTritonValidationError(answer.error)
        raise PyTritonRuntimeError(answer.error)

    def _is_start_over(self) -> bool:
        return self._started is not None or 0 in self._answers or self._has_ended

    def _listen(self) -> None:
        assert self._link is not None
        assert self._process is not None
        try:
            while True:
                message = self._link.receive()
                with self._changed:
                    if isinstance(message, Started):
                        self._started = message
                    elif isinstance(message, Done):
                        self._answers[message.call] = message
                    self._changed.notify_all()
        except (EOFError, OSError):
            pass
        self._process.wait()
        self._link.close()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()
        self._on_exit(self)
