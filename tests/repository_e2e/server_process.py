# SPDX-License-Identifier: Apache-2.0
"""The real `tritonserver` command as a process, and repositories for it to serve.

Machines with a GPU import this, which have few packages: no collector of traces belongs here.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from tests.e2e.http_client import Answer, call, infer, is_ready
from tests.e2e.waiting import DEADLINE_S, eventually
from tests.free_ports import free_ports
from tests.repository_e2e.model_files import Files, write_model
from tests.started_command import COMMAND, python_path, start

PORT_NAMES = ("http", "grpc", "metrics")


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # also of a zombie, which counts until its parent has reaped it
        return []


def _is_front_end(process: psutil.Process) -> bool:
    return "front end" in " ".join(_words(process))


def is_worker_zygote(process: psutil.Process) -> bool:
    title = " ".join(_words(process))
    # A program has the module's name in its title until it is ready.
    return "zygote of workers" in title or "pytriton.runtime.worker_process.zygote" in title


class ServerProcess:
    """A started command. Everything that it starts stays in its session, and is found by that."""

    def __init__(
        self,
        folder: Path,
        repositories: Sequence[Path],
        flags: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        ports: Sequence[int] = (),
        command: Sequence[str] = COMMAND,
    ) -> None:
        self.folder = folder  # the working directory
        self.repository = repositories[0]
        self.http_port, self.grpc_port, self.metrics_port = ports or free_ports(3)
        self._stdout_path, self._stderr_path = folder / "stdout", folder / "stderr"
        addresses = [
            f"--{name}-{what}={value}"
            for name, port in zip(PORT_NAMES, self.ports, strict=True)
            for what, value in (("address", "127.0.0.1"), ("port", port))
        ]
        paths = [f"--model-repository={path}" for path in repositories]
        with self._stdout_path.open("wb") as out, self._stderr_path.open("wb") as err:
            self.process = start(
                [*command, *paths, *addresses, *flags],
                folder,
                {**os.environ, "PYTHONPATH": python_path(), **(environment or {})},
                out.fileno(),
                err.fileno(),
            )
        self.pid = self.process.pid

    @property
    def ports(self) -> tuple[int, int, int]:
        return (self.http_port, self.grpc_port, self.metrics_port)

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        for process in (*self.descendants(), self.process):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()

    # Output

    @property
    def stdout(self) -> str:
        return self._stdout_path.read_text()

    @property
    def stderr(self) -> str:
        return self._stderr_path.read_text()

    @property
    def output(self) -> str:
        return self.stdout + self.stderr

    # Life

    def await_ports(self) -> ServerProcess:
        """Wait until the server listens, as its log says."""
        eventually(lambda: "Started Metrics" in self.stdout or self.process.poll() is not None)
        assert "Started Metrics" in self.stdout, self.output
        return self

    def await_ready(self) -> ServerProcess:
        self.await_ports()
        assert eventually(lambda: is_ready(self.http_port)), self.output
        return self

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def exit_code(self, deadline_s: float = DEADLINE_S) -> int:
        return self.process.wait(deadline_s)

    def end(self) -> int:
        """End it in order; its exit code."""
        self.signal()
        return self.exit_code()

    # Processes

    def descendants(self) -> list[psutil.Process]:
        """What else lives in its session, zombies included unless nobody of it is their parent."""
        return [each for pid in psutil.pids() if (each := self._member(pid)) is not None]

    def model_processes(self) -> list[psutil.Process]:
        """Its processes without those of front ends."""
        children = psutil.Process(self.pid).children(recursive=True)
        return [each for each in children if not _is_front_end(each)]

    def _member(self, pid: int) -> psutil.Process | None:
        try:
            if pid == self.pid or os.getsid(pid) != self.pid:
                return None
            process = psutil.Process(pid)
            # An orphan is for the machine's first process to reap, whenever it does.
            if process.status() == psutil.STATUS_ZOMBIE and os.getsid(process.ppid()) != self.pid:
                return None
        except (ProcessLookupError, psutil.NoSuchProcess):
            return None
        return process

    def zygote(self) -> psutil.Process:
        (zygote,) = self.zygotes()
        return zygote

    def zygotes(self) -> list[psutil.Process]:
        """The process that forks workers, not the one that forks front ends."""
        children = psutil.Process(self.pid).children()
        return [each for each in children if is_worker_zygote(each)]

    def workers(self) -> list[psutil.Process]:
        workers = []
        for zygote in self.zygotes():
            with contextlib.suppress(psutil.NoSuchProcess):
                workers += zygote.children()
        return workers

    def worker_titles(self) -> list[str]:
        """What its workers are called in lists of processes; those that just end are left out."""
        titles = []
        for worker in self.workers():
            with contextlib.suppress(psutil.NoSuchProcess):
                titles.append(" ".join(worker.cmdline()))
        return titles

    def zombies(self) -> list[psutil.Process]:
        return [each for each in self.descendants() if _is_zombie(each)]

    def descriptor_count(self) -> int:
        return psutil.Process(self.pid).num_fds()

    # Clients

    def get(self, path: str) -> Answer:
        return call(self.http_port, path)

    def post(self, path: str, document: Any = None, timeout_s: float = DEADLINE_S) -> Answer:
        body = b"" if document is None else json.dumps(document).encode()
        return call(self.http_port, path, body, timeout_s=timeout_s)

    def load(self, name: str, **parameters: Any) -> Answer:
        document = {"parameters": parameters} if parameters else None
        return self.post(f"/v2/repository/models/{name}/load", document)

    def unload(self, name: str, **parameters: Any) -> Answer:
        document = {"parameters": parameters} if parameters else None
        return self.post(f"/v2/repository/models/{name}/unload", document)

    def index(self) -> dict[str, dict[str, str]]:
        """The last row of each model."""
        return {row["name"]: row for row in self.post("/v2/repository/index").json}

    def infer(self, name: str, *row: float, version: str = "", **members: Any) -> list[float]:
        """The row that a model answers a row with."""
        x = np.array([row or (1.0,)], np.float32)
        path = f"{name}/versions/{version}" if version else name
        return infer(self.http_port, path, {"X": x}, **members)["Y"].ravel().tolist()

    def serves(self, name: str) -> bool:
        return is_ready(self.http_port, name)

    @contextlib.contextmanager
    def http_client(self, **settings: Any):
        with triton_http.InferenceServerClient(f"127.0.0.1:{self.http_port}", **settings) as client:
            yield client

    @contextlib.contextmanager
    def grpc_client(self):
        with triton_grpc.InferenceServerClient(f"127.0.0.1:{self.grpc_port}") as client:
            yield client

    def hold(self, name: str) -> None:
        """Let version 1 of a model wait where its code has HOLD."""
        (self.repository / name / "1" / "hold").touch()

    def let_go(self, name: str) -> None:
        (self.repository / name / "1" / "hold").unlink()

    def write(self, name: str, files: Files) -> None:
        """Write files of a model into the repository."""
        write_model(self.repository / name, files)


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextlib.contextmanager
def starter(folder):
    """Starts servers of repositories, each a dict of models; kills what is left of them."""
    numbers = itertools.count(1)
    with contextlib.ExitStack() as stack:

        def start(*repositories, **settings) -> ServerProcess:
            place = folder / f"server{next(numbers)}"
            paths = []
            for number, models in enumerate(repositories):
                paths.append(place / f"models{number}")
                paths[-1].mkdir(parents=True)
                for name, files in models.items():
                    write_model(paths[-1] / name, files)
            server = ServerProcess(place, paths, **settings)
            return stack.enter_context(server)

        yield start
