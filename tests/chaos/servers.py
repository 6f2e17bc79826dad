# SPDX-License-Identifier: Apache-2.0
"""Real servers of a scene: how they are started, where their files are, and how they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.chaos import processes, resources, surroundings
from tests.chaos.processes import Process, Role
from tests.chaos.schedule import Scene, ServerKind
from tests.e2e.http_client import Answer, call, is_ready
from tests.e2e.waiting import DEADLINE_S, eventually
from tests.free_ports import free_ports
from tests.workload.models import SERVER_FLAGS

ROOT = Path(__file__).parents[2]
# A few hundred clients take all of them; the server keeps a quarter for itself.
DESCRIPTORS = 320
EXIT_TIMEOUT_S = 60
END_WITHIN_S = EXIT_TIMEOUT_S + DEADLINE_S
_TOKEN_HEADER = "triton-access-token"
_TOKEN = "chaos"
_LIMITED = ("bash", "-c", 'ulimit -n "$0" && exec "$@"')


class ChaosServer:
    """A started server, its folders and what it is asked from outside."""

    def __init__(self, scene: Scene, folder: Path, descriptors: int = DESCRIPTORS) -> None:
        self.scene = scene
        self.folder = folder
        self.repository = folder / "repository"
        self.temporary, self.disk = folder / "tmp", folder / "disk"
        for each in (self.repository, self.temporary, self.disk):
            each.mkdir(parents=True, exist_ok=True)
        self.has_disk = scene.can_fill_disk and surroundings.mount(
            self.disk, surroundings.DISK_BYTES
        )
        self.http_port, self.grpc_port, self.metrics_port = free_ports(3)
        self.descriptors = descriptors
        self.token = _TOKEN
        self.log, self.access_log = self.disk / "server.log", self.disk / "access.log"
        self.trace = self.disk / "trace"
        self._output = folder / "output"

    # Life

    def start(self, models: Sequence[str]) -> None:
        """Start it and wait until these models are served."""
        is_bound = self.scene.server is ServerKind.BOUND
        command = self._script_command() if is_bound else self._server_command()
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [*_LIMITED, str(self.descriptors), *command],
                cwd=self.folder,
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "PYTRITON_FRONTEND_PROCESSES": str(self.scene.front_ends),
                    "TMPDIR": str(self.temporary),
                    "PYTRITON_HOME": str(self.folder / "home"),
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        is_served = eventually(
            lambda: self.process.poll() is not None or all(map(self.is_ready, models))
        )
        if not is_served or self.process.poll() is not None:
            raise RuntimeError(f"the server did not get ready: {self.output[-4000:]}")

    def _server_command(self) -> Sequence[str]:
        ports = zip(("http", "grpc", "metrics"), self.ports, strict=True)
        return [
            sys.executable,
            "-m",
            "pytriton.server",
            f"--model-repository={self.repository}",
            "--model-control-mode=explicit",
            "--load-model=*",
            *(f"--{name}-port={port}" for name, port in ports),
            *(f"--{name}-address=127.0.0.1" for name in ("http", "grpc", "metrics")),
            f"--exit-timeout-secs={EXIT_TIMEOUT_S}",
            *SERVER_FLAGS,
            f"--log-file={self.log}",
            f"--access-log={self.access_log}",
            "--trace-config=mode=triton",
            f"--trace-config=triton,file={self.trace}",
            "--trace-config=level=TIMESTAMPS",
            "--trace-config=rate=50",
        ]

    def _script_command(self) -> Sequence[str]:
        settings = {
            "http_port": self.http_port,
            "grpc_port": self.grpc_port,
            "metrics_port": self.metrics_port,
            **{f"{name}_address": "127.0.0.1" for name in ("http", "grpc", "metrics")},
            "exit_timeout_secs": EXIT_TIMEOUT_S,
            "log_file": str(self.log),
            "access_log": str(self.access_log),
            "trace_config": [
                "mode=triton",
                f"triton,file={self.trace}",
                "level=TIMESTAMPS",
                "rate=50",
            ],
        }
        return [sys.executable, "-m", "tests.chaos.bound_server", json.dumps(settings), _TOKEN]

    @property
    def ports(self) -> tuple[int, int, int]:
        return (self.http_port, self.grpc_port, self.metrics_port)

    @property
    def output(self) -> str:
        """What it wrote beside its log."""
        return self._output.read_text(errors="replace")

    def log_tail(self, lines: int = 30) -> str:
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def end(self) -> tuple[int | None, float]:
        """End it with a signal; its exit code, or None if that took too long, and the seconds."""
        began_s = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        try:
            code: int | None = self.process.wait(END_WITHIN_S)
        except subprocess.TimeoutExpired:
            code = None
        return code, time.monotonic() - began_s

    def kill(self) -> None:
        """Kill what is left of it, by process id."""
        for each in self.family():
            each.send(signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        if self.has_disk:
            surroundings.unmount(self.disk)

    # Processes and what they hold

    def family(self) -> list[Process]:
        script = self.process.pid if self.scene.server is ServerKind.BOUND else None
        return processes.family(self.process.pid, script)

    def of_role(self, *roles: Role) -> list[Process]:
        return processes.of_role(self.family(), *roles)

    def snapshot(self) -> resources.Snapshot:
        shared = surroundings.SHARED_MEMORY if self.has_disk else self.temporary
        return resources.take(self.family(), self.temporary, shared)

    # Questions

    def ask(self, path: str, method: str = "GET") -> Answer:
        """Ask with the token that management needs."""
        body = None if method == "GET" else b"{}"
        return call(self.http_port, path, body, {_TOKEN_HEADER: _TOKEN}, method)

    def load(self, name: str) -> Answer:
        return self.ask(f"/v2/repository/models/{name}/load", method="POST")

    def unload(self, name: str) -> Answer:
        return self.ask(f"/v2/repository/models/{name}/unload", method="POST")

    def is_ready(self, model: str | None = None) -> bool:
        return is_ready(self.http_port, model)
