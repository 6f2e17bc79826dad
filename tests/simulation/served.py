# SPDX-License-Identifier: Apache-2.0
"""The systems that run on the simulated machine.

A program with bound functions and its server, or `tritonserver` with a model repository; with front
ends in the server's process or in processes of their own.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import pathlib
import signal
from typing import Any

from pytriton.binding.server_process import ServerProcess
from pytriton.exceptions import PyTritonRuntimeError
from pytriton.runtime.functions.bound_model import BoundModel
from pytriton.serving.server import serving as repository_serving
from pytriton.serving.server.command.lifecycle import Exit
from pytriton.serving.server.command.run import run as run_server
from pytriton.serving.server.command.startup import ProgressLine
from pytriton.serving.server.options.endpoints import Surroundings
from pytriton.serving.server.options.server_options import ServerOptions
from tests.simulation.event_loop import SimulatedLoop
from tests.simulation.machine import SECOND_NS, Machine, SimulatedProcess
from tests.workload import models
from tests.workload.calls import Port

PORTS = {Port.HTTP: 8000, Port.GRPC: 8001, Port.METRICS: 8002}
START_S = 120.0
_EXIT_MARGIN_S = 5.0  # as `Triton.stop` has it
_SETTINGS = {"http_port": 8000, "grpc_port": 8001, "metrics_port": 8002}


@dataclasses.dataclass(frozen=True, slots=True)
class ServedPlan:
    """What is served, and how.

    Args:
        front_ends: processes of HTTP and gRPC; 0: in the server's process.
        repository: the folder of a model repository; None: bound functions.
        names: of the models; empty: all.
        descriptor_limit: of each process.
        settings: more settings of the server.
    """

    front_ends: int = 0
    repository: pathlib.Path | None = None
    names: tuple[str, ...] = ()
    descriptor_limit: int = 4096
    settings: tuple[tuple[str, Any], ...] = ()


class Served:
    def __init__(self, machine: Machine, plan: ServedPlan) -> None:
        self.machine = machine
        self.plan = plan
        self.is_ready = False
        self.is_stopped = False
        self.failure = ""
        self.main: SimulatedProcess | None = None
        self._rebound: list[str] = []  # models that the program is to bind again

    def start(self) -> None:
        """Start it, and let time pass until it serves; raises RuntimeError if it does not."""
        machine = self.machine
        program = self._serve_repository if self.plan.repository else self._serve_functions
        name = "tritonserver" if self.plan.repository else "program"
        self.main = machine.start_process(name, program)
        self.main.descriptor_limit = self.plan.descriptor_limit
        end_ns = machine.now_ns + round(START_S * SECOND_NS)
        if not machine.run(lambda: self.is_ready or self.main.is_over, end_ns):
            raise RuntimeError(f"the server did not start: {self.failure or machine.errors}")

    def stop(self, timeout_s: float = 60.0) -> bool:
        """Stop it as its user would; returns whether everything ended in time."""
        machine = self.machine
        self.begin_stop()
        end_ns = machine.now_ns + round(timeout_s * SECOND_NS)
        return machine.run(lambda: not machine.live_count, end_ns)

    def begin_stop(self) -> None:
        self.is_stopped = True
        assert self.main is not None
        if self.plan.repository:
            handler = self.main.signal_handlers.get(signal.SIGTERM)
            assert handler is not None, "the server handles no SIGTERM"
            handler(signal.SIGTERM, None)
        else:
            self.machine.wake(self.main.main_thread)

    @property
    def exit_timeout_s(self) -> int:
        """How long the server waits for requests that are under way when it is to stop."""
        return int(dict(self.plan.settings).get("exit_timeout_secs", 30))

    @property
    def server(self) -> SimulatedProcess:
        return next(
            process
            for process in self.machine.processes
            if process.name in ("server", "tritonserver")
        )

    def processes(self, word: str) -> list[SimulatedProcess]:
        return [each for each in self.machine.processes if word in each.name and not each.is_over]

    def _settings(self) -> dict[str, Any]:
        return {
            **_SETTINGS,
            **models.TRITON_SETTINGS,
            "frontend_processes": self.plan.front_ends,
            **dict(self.plan.settings),
        }

    # A program with bound functions

    def _serve_functions(self) -> None:
        server = ServerProcess(lambda _: None)
        server.start(self._settings(), 60.0)
        bound = {}
        for model in models.bound_models():
            if not self.plan.names or model.name in self.plan.names:
                bound[model.name] = self._bind(server, model)
        self.is_ready = True
        while not self.is_stopped:
            while self._rebound:
                name = self._rebound[0]
                server.unbind(bound[name], 60.0)
                bound[name].close(5.0)
                (model,) = (each for each in models.bound_models() if each.name == name)
                bound[name] = self._bind_in_time(server, model)
                self._rebound.remove(name)
            if not self.is_stopped:
                self.machine.wait()
        server.stop(self.exit_timeout_s + _EXIT_MARGIN_S)
        for each in bound.values():
            each.close(5.0)

    def _bind(self, server: ServerProcess, model: models.BoundModel) -> BoundModel:
        bound = BoundModel(
            model.name, model.infer_func, model.inputs, model.outputs, 1, model.config
        )
        server.bind(bound, lambda: None, 60.0)
        return bound

    def _bind_in_time(self, server: ServerProcess, model: models.BoundModel) -> BoundModel:
        """Bind a model as soon as the machine has threads and descriptors for that."""
        while True:
            try:
                return self._bind(server, model)
            except (OSError, RuntimeError, PyTritonRuntimeError) as error:  # noqa: PERF203
                self.machine.note("program", f"could not bind '{model.name}': {error}")
                self.machine.sleep(SECOND_NS // 10)

    @property
    def is_binding(self) -> bool:
        return bool(self._rebound)

    def bind_again(self, name: str) -> None:
        """Let the program remove a model and bind a new one in its place."""
        assert self.main is not None
        self._rebound.append(name)
        self.machine.wake(self.main.main_thread)

    # `tritonserver`

    def _serve_repository(self) -> None:
        settings = {
            **self._settings(),
            "model_repository": [str(self.plan.repository)],
            "model_control_mode": "explicit",
            "load_model": list(self.plan.names) or ["*"],
        }
        options = ServerOptions.from_triton_config(
            settings, is_command=True, surroundings=Surroundings(cores=2)
        )
        loop = SimulatedLoop(self.machine)
        build = functools.partial(self._build)
        outcome = loop.run_until_complete(run_server(options, build, ProgressLine(io.StringIO())))
        if outcome is Exit.AT_ONCE:  # tasks are left as they are
            self.machine.process.end(Exit.FAILED.value)
        loop.close()
        self.machine.process.end(outcome.value)

    async def _build(self, options: ServerOptions, loop: Any) -> Any:
        serving = await repository_serving.build(options, loop)
        open_ports = serving.open_ports

        async def open_and_tell() -> Any:
            ports = await open_ports()
            self.is_ready = True
            return ports

        serving.open_ports = open_and_tell
        return serving
