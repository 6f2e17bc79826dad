# SPDX-License-Identifier: Apache-2.0
"""A server of this command's own, for the time of a search."""

from __future__ import annotations

import pathlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from types import TracebackType
from typing import IO, TYPE_CHECKING

from pytriton.tools.commands.tune.search import Candidate
from pytriton.tools.perf.errors import PerfError
from pytriton.tools.perf.server.http_questions import HttpQuestions
from pytriton.tools.perf.server.questions import QuestionError, ServerAddress

if TYPE_CHECKING:
    from typing_extensions import Self

_START_S = 120.0
_END_S = 30.0
_LOOK_S = 0.05


class ReservedPorts:
    """Ports of this machine that nobody listens on.

    On Linux they stay bound until `close`, so that no other program gets one of them. A server can
    listen on them all the same.
    """

    def __init__(self, count: int) -> None:
        self._sockets = [socket.socket() for _ in range(count)]
        for each in self._sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind(("127.0.0.1", 0))
        self.numbers = [each.getsockname()[1] for each in self._sockets]
        if not sys.platform.startswith("linux"):
            self.close()

    def close(self) -> None:
        """Give them back; may be called twice."""
        for each in self._sockets:
            each.close()


def repository_command(repository: pathlib.Path, model: str) -> list[str]:
    """`tritonserver` on a repository, with one model loaded; nothing in the folder is changed.

    Raises:
        PerfError: There is no such folder.
    """
    if not repository.is_dir():
        raise PerfError(f"expected a model repository, {repository} is no folder")
    return [
        sys.executable, "-m", "pytriton.server",
        f"--model-repository={repository}",
        "--model-control-mode=explicit",
        f"--load-model={model}",
        "--http-address=127.0.0.1",
        "--grpc-address=127.0.0.1",
        "--log-info=false",  # so that errors are the end of the log, and not tables
    ]  # fmt: skip


def serve_command(target: str, token: str, candidate: Candidate | None = None) -> list[str]:
    """`pytriton serve` of a file, as it declares its model or with other settings."""
    # With "=": a random token may begin with a dash, as options do.
    command = [sys.executable, "-m", "pytriton", "serve", target, f"--access-token={token}"]
    if candidate is not None:
        command += serve_options(candidate)
    return command


def serve_options(candidate: Candidate) -> list[str]:
    """The options of `pytriton serve` that make a candidate."""
    options = ["--instances", str(candidate.instances)]
    if candidate.batch:
        options += ["--max-batch-size", str(candidate.batch)]
        options += ["--batch-delay-us", str(candidate.delay_us)]
    return options


class OwnServer:
    """A server that is started for a search, and again with other settings.

    Args:
        headers: Headers of questions to it.
    """

    def __init__(self, headers: Sequence[tuple[str, str]] = ()) -> None:
        self._ports = ReservedPorts(3)
        self.http_port, self.grpc_port, self._metrics_port = self._ports.numbers
        self.address = ServerAddress(f"127.0.0.1:{self.http_port}", headers=headers)
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.end()
        self._ports.close()

    def start(self, command: Sequence[str]) -> str:
        """Start it with a command, instead of the one before.

        Returns:
            The name of the model that it serves.

        Raises:
            PerfError: It does not start, or serves several models.
        """
        self.end()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as the server
        ports = {"http": self.http_port, "grpc": self.grpc_port, "metrics": self._metrics_port}
        flags = [f"--{name}-port={port}" for name, port in ports.items()]
        self._process = subprocess.Popen(
            [*command, *flags], stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
            start_new_session=True,
        )  # fmt: skip
        return self._await_model()

    def _await_model(self) -> str:
        assert self._process is not None
        questions = HttpQuestions(self.address)
        deadline_s = time.monotonic() + _START_S
        try:
            while time.monotonic() < deadline_s and self._process.poll() is None:
                try:
                    ready = questions.ready_models()
                except QuestionError:
                    ready = []
                if len(ready) > 1:
                    raise PerfError(
                        f"expected one model, the file has {', '.join(ready)}: "
                        "name one as FILE:NAME"
                    )
                if ready:
                    return ready[0]
                time.sleep(_LOOK_S)
        finally:
            questions.close()
        raise PerfError(f"the server did not start:\n{self._tail()}")

    def _tail(self) -> str:
        assert self._log is not None
        self._log.seek(0)
        return b"\n".join(self._log.read().splitlines()[-10:]).decode(errors="replace")

    def end(self) -> None:
        """End it; may be called twice."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._log is not None:
            self._log.close()
            self._log = None
