# SPDX-License-Identifier: Apache-2.0
"""Measures candidates: on a running server by its repository API, or on a server of its own."""

from __future__ import annotations

import json
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, Protocol

import numpy as np

from pytriton.client.kserve.records import KserveClient
from pytriton.tools.commands.perf.session import PerfTarget
from pytriton.tools.commands.tune.search import Candidate, Trial, changed_config, present_candidate
from pytriton.tools.perf.errors import PerfError
from pytriton.tools.perf.load.plan import Concurrency, LoadPlan
from pytriton.tools.perf.load.process_load import ProcessLoad
from pytriton.tools.perf.measuring.results import Live
from pytriton.tools.perf.measuring.source import LoadSource, WindowRules
from pytriton.tools.perf.measuring.summary import SummaryRules, summarise
from pytriton.tools.perf.server_state import QuestionError, ServerAddress, questions_of

if TYPE_CHECKING:
    from typing_extensions import Self

_START_S = 120.0
_END_S = 30.0
_LOOK_S = 0.05

_WINDOWS = 3
_PATIENCE_S = 30.0  # for the first answer in a window: models and machines may be slow


class ReservedPorts:
    """Free ports of this machine.

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

    def __exit__(self, *_: object) -> None:
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
        questions = questions_of(self.address)
        deadline_s = time.monotonic() + _START_S
        try:
            while time.monotonic() < deadline_s and self._process.poll() is None:
                try:
                    index = questions.index()
                except QuestionError:
                    index = []
                ready = sorted(
                    {str(each["name"]) for each in index if each.get("state") == "READY"}
                )
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


class Changeable(Protocol):
    """A model whose configuration can be changed."""

    def load(self, candidate: Candidate) -> None:
        """Let it have a candidate's values; raises PerfError if that does not work."""

    def restore(self) -> None:
        """Let it be as it was before; may be called twice."""


class RepositoryModel:
    """A model of a repository, on a server that loads models when it is told to.

    Args:
        questions: The server.
        name: The model.
        config: Its configuration before.
    """

    def __init__(self, questions: KserveClient, name: str, config: Mapping[str, Any]) -> None:
        self._questions = questions
        self._name = name
        self._config = config
        self._is_changed = False

    def load(self, candidate: Candidate) -> None:
        self._is_changed = True
        self._questions.load(self._name, changed_config(self._config, candidate))

    def check_control(self) -> None:
        """Find out whether the server lets models be loaded.

        Raises:
            PerfError: It does not.
        """
        try:
            self.load(present_candidate(self._config))
        except QuestionError as error:
            self._is_changed = False
            raise PerfError(
                f"the configuration cannot be changed: {error}. Let this command start a server: "
                "FILE.py:function for a function, --model-repository FOLDER MODEL for a model of a "
                "repository. A server that runs needs --model-control-mode=explicit"
            ) from error

    def restore(self) -> None:
        """Load it from its files, or by its values if that gives something else."""
        if not self._is_changed:
            return
        self._questions.load(self._name)
        if _comparable(self._questions.model_config(self._name)) != _comparable(self._config):
            self._questions.load(self._name, json.dumps(self._config))
        self._is_changed = False


class ServedFile:
    """A function of a file, served again for each candidate.

    Args:
        server: The server that is started again.
        target: The file, and the function in it.
        token: The access token of the server.
    """

    def __init__(self, server: OwnServer, target: str, token: str) -> None:
        self._server = server
        self._target = target
        self._token = token

    def load(self, candidate: Candidate) -> None:
        self._server.start(serve_command(self._target, self._token, candidate))

    def restore(self) -> None:
        """Nothing to do: the file was not changed."""


def _comparable(config: Mapping[str, Any]) -> str:
    return json.dumps(config, sort_keys=True)


class Interrupted(Exception):  # noqa: N818  it is no error
    """The search was interrupted, as by Ctrl-C."""


class Trials:
    """Measures candidates of one model.

    Args:
        target: The server with the model.
        model: What its configuration is changed with.
        concurrency: Requests under way.
        window_s: Length of a window, of which a trial has three.
        make_load: Makes the load generator.
        is_interrupted: Whether the search is interrupted.
    """

    def __init__(
        self,
        target: PerfTarget,
        model: Changeable,
        concurrency: int,
        window_s: float,
        make_load: Callable[[LoadPlan], ProcessLoad],
        is_interrupted: Callable[[], bool],
    ) -> None:
        self._target = target
        self._model = model
        self._level = Concurrency(concurrency)
        self._window_s = window_s
        self._make_load = make_load
        self._is_interrupted = is_interrupted
        self._loaded: Candidate | None = None

    def measure(self, candidate: Candidate, watch: Callable[[Live], None]) -> Trial:
        """Load a candidate and measure it; one that cannot be loaded is a trial with a problem.

        Raises:
            Interrupted: The search is interrupted.
        """
        try:
            self._load(candidate)
        except PerfError as error:
            return Trial(candidate, problem=str(error).splitlines()[0])
        source = LoadSource(
            lambda: self._make_load(self._target.plan),
            self._target.statistics,
            WindowRules(self._window_s, patience_s=_PATIENCE_S),
            self._is_interrupted,
        )
        try:
            return self._windows(candidate, source, watch)
        finally:
            source.end(at_once=True)

    def _windows(
        self, candidate: Candidate, source: LoadSource, watch: Callable[[Live], None]
    ) -> Trial:
        source.begin(self._level)
        # The first window warms the model up.
        windows = [source.window(watch) for _ in range(_WINDOWS + 1)][1:]
        if any(window.is_cut for window in windows):
            raise Interrupted
        rules = SummaryRules(is_decoupled=self._target.model.is_decoupled)
        whole = summarise(windows, rules)
        rates = np.array([summarise([window], rules).throughput for window in windows])
        if whole.latency is None:
            texts = "; ".join(list(whole.errors)[:2]) or "no request was answered"
            return Trial(candidate, problem=texts)
        counted = whole.server.model if whole.server is not None else None
        return Trial(
            candidate,
            throughput=whole.throughput,
            p50_us=whole.latency.percentiles[50],
            p99_us=whole.latency.percentiles[99],
            noise=float(np.abs(rates / rates.mean() - 1).max()) if rates.mean() else 0.0,
            mean_batch=counted.inferences / counted.executions
            if counted is not None and counted.executions
            else 0.0,
        )

    def _load(self, candidate: Candidate) -> None:
        if candidate == self._loaded:
            return
        self._loaded = None
        self._model.load(candidate)
        self._loaded = candidate
