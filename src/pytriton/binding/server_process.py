# SPDX-License-Identifier: Apache-2.0
"""The server as a child process of the process that binds models, which starts and stops it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from pytriton.base.package import IMPORT_FOLDER
from pytriton.binding.server_link import ServerLink
from pytriton.exceptions import PyTritonRuntimeError
from pytriton.runtime.transport.control import ServerStart, Started
from pytriton.runtime.transport.link import stream_pair

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.runtime.functions.bound_config import AnyModel

logger = logging.getLogger(__name__)

# The folder that contains the package replaces the working directory at the start of `sys.path`,
# so that a user's file with the name of one of our modules is not imported instead. Modules are no
# garbage: looking for some while and after they are imported takes a tenth of a server's start.
_BOOTSTRAP = (
    "import gc, sys; sys.path[0] = sys.argv.pop(1); gc.disable(); "
    "from pytriton.base.openblas import load_without_threads; load_without_threads(); "
    "from pytriton.serving.server.{entry} import main; gc.freeze(); gc.enable(); main(sys.argv[1:])"
)


class ServerProcess:
    """A running server. `start` returns when its ports are open."""

    def __init__(self, on_exit: Callable[[ServerProcess], None]) -> None:
        self._on_exit = on_exit
        self._process: subprocess.Popen[bytes] | None = None
        self._link: ServerLink | None = None

    def start(
        self, config: dict[str, Any], timeout_s: float, *, awaits_models: bool = False
    ) -> Started:
        """Start the process with the settings of a `TritonConfig`.

        Args:
            config: The settings.
            timeout_s: How long the start may take.
            awaits_models: Whether the server is not ready before `report_serving`.

        Raises:
            PyTritonValidationError: A setting is wrong.
            PyTritonRuntimeError: A port could not be opened, or the process ended.
            TimeoutError: It did not start in time.
        """
        entry = "repository_main" if config.get("model_repository") else "main"
        ours, theirs = stream_pair()
        arguments = [
            sys.executable, "-c", _BOOTSTRAP.format(entry=entry), IMPORT_FOLDER,
            "--control-fd", str(theirs.fileno()), "--parent", str(os.getpid()),
        ]  # fmt: skip
        with theirs:
            self._process = subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),)
            )
        self._link = ServerLink(ours, self._on_end)
        try:
            return self._link.open(ServerStart(config, awaits_models), timeout_s)
        except BaseException:  # also KeyboardInterrupt
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
