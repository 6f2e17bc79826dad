# SPDX-License-Identifier: Apache-2.0
"""Real servers for tests, on free ports; they are forked from processes that have their imports."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pytriton.binding.server_process import (
    FOR_BOUND_MODELS,
    FOR_REPOSITORIES,
    LOAD_OF,
    ChildProcess,
    ServerProcess,
    start_process,
)
from pytriton.binding.template import Program, Template
from pytriton.client import DecoupledModelClient, ModelClient
from pytriton.triton import Triton, TritonConfig

LOOPBACK = "127.0.0.1"
_MAX_LOG_BYTES = 64 << 10

START_SETTING = "PYTRITON_TEST_SERVER_START"  # "spawn": servers are not forked
# What servers import until they are ready. One of repositories first forks the process from which
# its workers come, which have to be without the server's modules.
_MODULES = {
    FOR_BOUND_MODELS: ("pytriton.serving.server.main", "encodings.idna", "uvloop"),
    FOR_REPOSITORIES: (
        "pytriton.serving.server.repository_main",
        "pytriton.serving.server.worker_zygote",
    ),
}


class RunningServer:
    """A real server that a test has started.

    Attributes:
        triton: the `Triton` that started it, for everything else.
        http_url: the address of HTTP, such as `http://127.0.0.1:34567`.
        grpc_url: the address of gRPC, such as `grpc://127.0.0.1:34568`.
        metrics_url: the address of metrics, without `/metrics`.
    """

    def __init__(self, triton: Triton, log_path: Path) -> None:
        self.triton: Triton = triton
        addresses = triton.addresses
        self.http_url: str = addresses.http
        self.grpc_url: str = addresses.grpc
        self.metrics_url: str = addresses.metrics
        self._log_path = log_path
        self._clients = contextlib.ExitStack()

    def bind(self, *arguments: Any, **settings: Any) -> None:
        """Serve a function; the arguments are those of `Triton.bind`."""
        self.triton.bind(*arguments, **settings)

    def client(self, model: str, *, grpc: bool = False, **settings: Any) -> ModelClient:
        """Returns a client of a model; the server closes it at its end.

        Args:
            model: the name of the model.
            grpc: whether to ask over gRPC instead of HTTP.
            **settings: the other arguments of `ModelClient`.
        """
        url = self.grpc_url if grpc else self.http_url
        return self._clients.enter_context(ModelClient(url, model, **settings))

    def stream_client(self, model: str, **settings: Any) -> DecoupledModelClient:
        """Returns a client of a decoupled model, over gRPC; the server closes it at its end."""
        client = DecoupledModelClient(self.grpc_url, model, **settings)
        return self._clients.enter_context(client)

    @property
    def log(self) -> str:
        """The end of the server's log."""
        try:
            data = self._log_path.read_bytes()
        except FileNotFoundError:
            return ""
        return data[-_MAX_LOG_BYTES:].decode("utf-8", "replace")

    def stop(self) -> None:
        """Close the clients and end the server; this may be called twice."""
        try:
            self._clients.close()
        finally:
            self.triton.stop()


class StartServer:
    """Starts servers, and ends all of them at the end of its scope.

    Args:
        new_folder: Makes an empty folder for the files of a server.
    """

    def __init__(self, new_folder: Callable[[], Path]) -> None:
        self._new_folder = new_folder
        self.servers: list[RunningServer] = []

    def __call__(
        self,
        *functions: Callable[..., Any],
        model_repository: str | Path | None = None,
        **settings: Any,
    ) -> RunningServer:
        """Start a server, which is ready when this returns.

        Args:
            *functions: annotated functions to serve, each as the model of its name. Others are
                bound with `RunningServer.bind`.
            model_repository: a folder whose models are served, too.
            **settings: other fields of `TritonConfig`.
        """
        log_path = self._new_folder() / "server.log"
        ports = dict.fromkeys(("http_port", "grpc_port", "metrics_port"), 0)
        addresses = dict.fromkeys(("http_address", "grpc_address", "metrics_address"), LOOPBACK)
        config = {"log_file": log_path, **ports, **addresses, **settings}
        if model_repository is not None:
            config["model_repository"] = Path(model_repository)
        triton = Triton(config=TritonConfig(**config))
        try:
            for function in functions:
                triton.bind(function)
            with forked_servers():
                triton.run()
        except BaseException:
            triton.stop()
            raise
        server = RunningServer(triton, log_path)
        self.servers.append(server)
        return server

    def stop(self) -> None:
        """End all servers, also if one of them cannot be ended."""
        with contextlib.ExitStack() as stack:
            while self.servers:
                stack.callback(self.servers.pop().stop)


def is_forking() -> bool:
    """Whether servers are forked where it is safe."""
    return os.environ.get(START_SETTING) != "spawn"


class ServerTemplates:
    """The templates of servers, each started when the first server needs it."""

    def __init__(self) -> None:
        self._templates = {
            entry: Template(LOAD_OF[entry], modules) for entry, modules in _MODULES.items()
        }

    def start_process(self, entry: str, arguments: Sequence[str], descriptor: int) -> ChildProcess:
        """Fork a server where that is safe, or start it as usual; see `StartProcess`."""
        if not is_forking():
            return start_process(entry, arguments, descriptor)
        program = Program(f"pytriton.serving.server.{entry}", "main", ("-c", *arguments))
        with Path(os.devnull).open("rb") as nothing:
            forked = self._templates[entry].fork(
                program, streams=(nothing.fileno(), 1, 2), inherited=(descriptor,)
            )
        return forked or start_process(entry, arguments, descriptor)


_lock = threading.Lock()
_templates: list[ServerTemplates] = []
_users = 0


@contextlib.contextmanager
def forked_servers() -> Iterator[None]:
    """Let each `Triton` of this process fork its server while this is entered.

    The first one takes as long as usual, each other one a tenth of that. Where forking is not safe,
    and with `PYTRITON_TEST_SERVER_START=spawn` in the environment, servers are started as usual.
    """
    global _users  # noqa: PLW0603
    with _lock:
        if not _templates:
            _templates.append(ServerTemplates())
        _users += 1
        ServerProcess.start_process = _templates[0].start_process
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                ServerProcess.start_process = staticmethod(start_process)
