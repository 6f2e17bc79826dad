# SPDX-License-Identifier: Apache-2.0
"""How each measured system is started, found ready, and stopped."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

HERE = pathlib.Path(__file__).resolve().parent
MODELS = ("AddSub", "Ident", "repeat_int32")
CACHE_MODELS = ("AddSub", "AddSubCached")
OURS = "pytriton (this project)"
OUR_TRITONSERVER = "tritonserver (this project)"
NVIDIA_PYTRITON = "NVIDIA PyTriton"
TRITON = "Triton + python_backend"
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 40.0


@dataclass(frozen=True)
class System:
    """A server that can be measured: what to run, and under which name it appears in the table.

    `repository` is the folder of a `tritonserver`, theirs or ours, which loads `models` of it; the
    others bind functions.
    """

    key: str
    title: str
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    models: tuple[str, ...] = MODELS
    repository: pathlib.Path | None = None

    @property
    def arguments(self) -> list[str]:
        if self.repository is None:
            return self.command
        loads = [f"--load-model={model}" for model in self.models]
        repository = f"--model-repository={self.repository}"
        return [*self.command, repository, "--model-control-mode=explicit", *loads]


@dataclass(frozen=True)
class RunningServer:
    """A system that answers: its root process, its HTTP port and how long the start took."""

    system: System
    pid: int
    port: int
    start_to_ready_s: float

    @property
    def grpc_port(self) -> int:
        return self.port + 1

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def metrics_url(self) -> str:
        return f"http://127.0.0.1:{self.port + 2}/metrics"


def known_systems(peers: pathlib.Path | None, port: int) -> list[System]:
    """Ours first, as either of the two is used, then the peers that are under `peers`."""
    serve = str(HERE / "serve_models.py")
    systems = [
        System("ours", OURS, [sys.executable, serve, str(port)]),
        _tritonserver("repository", OUR_TRITONSERVER, [_our_tritonserver()], port),
    ]
    python = peers / "venv" / "bin" / "python" if peers else None
    if peers is None or python is None or not python.exists():
        return systems
    command = [str(python), serve, str(port)]
    systems.append(System("pytriton", NVIDIA_PYTRITON, command, _environment(python)))
    command, environment = real_triton(peers)
    systems.append(_tritonserver("triton", TRITON, command, port, environment))
    return systems


def serving(option: str, models: Iterable[str], port: int) -> System:
    """Ours again, with the bound functions that an option of serve_models.py names."""
    command = [sys.executable, str(HERE / "serve_models.py"), str(port), option]
    return System("serving", f"pytriton with {option}", command, models=tuple(models))


def repository(peers: pathlib.Path | None, models: Iterable[str], port: int) -> System:
    """Our `tritonserver`, or that of the peers, with other models of the repository."""
    key = "repository" if peers is None else "triton"
    (system,) = (one for one in known_systems(peers, port) if one.key == key)
    return dataclasses.replace(system, models=tuple(models))


def with_users_models(system: System, models: Iterable[str], instances: int) -> System:
    """A system with the models that get requests as users send them, of that many instances."""
    chosen = dataclasses.replace(system, models=tuple(models))
    if system.repository is None:
        options = ["--users", json.dumps({"instances": instances})]
        return dataclasses.replace(chosen, command=[*system.command, *options])
    if instances == 1:
        return chosen
    return dataclasses.replace(chosen, repository=_copy_of(system.repository, models, instances))


def _copy_of(repository: pathlib.Path, models: Iterable[str], instances: int) -> pathlib.Path:
    """A repository whose models have more instances; it is left where the system puts such files.

    Triton takes the number of instances from the files of models alone.
    """
    folder = pathlib.Path(tempfile.mkdtemp(prefix="model_repository"))
    for model in models:
        shutil.copytree(repository / model, folder / model)
        config = folder / model / "config.pbtxt"
        config.write_text(config.read_text().replace("count: 1 ", f"count: {instances} "))
    return folder


def cached_system(port: int) -> System:
    """Ours again, with the response cache; the peers' is no part of what is measured."""
    system = serving("--cache", CACHE_MODELS, port)
    return dataclasses.replace(system, key="cached", title="pytriton with a response cache")


def tritonserver_with(options: Sequence[str], port: int) -> System:
    """Our `tritonserver` with more options, and only the smallest of the models."""
    command = [_our_tritonserver(), *options]
    system = _tritonserver("observed", "tritonserver with other settings", command, port)
    return dataclasses.replace(system, models=("AddSub",))


def real_triton(peers: pathlib.Path) -> tuple[list[str], dict[str, str]]:
    """The Triton binary that NVIDIA PyTriton carries, with its own Python backend.

    Returns:
        The command, and what its environment needs.
    """
    python = peers / "venv" / "bin" / "python"
    query = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    site = subprocess.run([str(python), "-c", query], check=True, capture_output=True, text=True)
    packages = pathlib.Path(site.stdout.strip())
    command = [
        str(packages / "pytriton" / "tritonserver" / "bin" / "tritonserver"),
        f"--backend-directory={peers / 'backends'}",
    ]
    libraries = f"{packages / 'nvidia_pytriton.libs'}:/usr/lib/x86_64-linux-gnu"
    extra = {"PYTHONPATH": str(packages), "LD_LIBRARY_PATH": libraries}
    return command, {**_environment(python), **extra}


def _environment(python: pathlib.Path) -> dict[str, str]:
    """What a program of a virtual environment needs, without activating it."""
    return {
        "PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "VIRTUAL_ENV": str(python.parent.parent),
    }


def _our_tritonserver() -> str:
    """The command that installing this package put beside the interpreter."""
    return str(pathlib.Path(sysconfig.get_path("scripts")) / "tritonserver")


def _tritonserver(
    key: str, title: str, command: list[str], port: int, environment: dict[str, str] | None = None
) -> System:
    """Both are started with the same options."""
    ports = [f"--http-port={port}", f"--grpc-port={port + 1}", f"--metrics-port={port + 2}"]
    repository = HERE / "model_repository"
    return System(key, title, [*command, *ports], environment or {}, repository=repository)


@contextlib.contextmanager
def running(system: System, port: int) -> Iterator[RunningServer]:
    """Runs a system for the length of the block; its output is shown only if it fails to start."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    with tempfile.TemporaryFile() as log:
        begin = time.perf_counter()
        process = subprocess.Popen(
            system.arguments,
            env={**environment, **system.environment},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            try:
                _wait_ready(process, port, system.models)
            except RuntimeError as error:
                log.seek(0)
                tail = log.read()[-4000:].decode(errors="replace")
                raise RuntimeError(
                    f"{system.title}: {error}; its output ends with:\n{tail}"
                ) from error
            yield RunningServer(system, process.pid, port, time.perf_counter() - begin)
        finally:
            _stop(process)


def _wait_ready(process: subprocess.Popen[bytes], port: int, models: tuple[str, ...]) -> None:
    paths = ["/v2/health/ready", *(f"/v2/models/{model}/ready" for model in models)]
    deadline = time.monotonic() + START_TIMEOUT_S
    while not all(_answers_ok(f"http://127.0.0.1:{port}{path}") for path in paths):
        if process.poll() is not None:
            raise RuntimeError(f"ended with exit code {process.returncode} before it was ready")
        if time.monotonic() > deadline:
            raise RuntimeError(f"not ready after {START_TIMEOUT_S:.0f} s")
        time.sleep(0.01)


def _answers_ok(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """SIGINT first, as from a terminal; whatever is left of the process group is killed."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
