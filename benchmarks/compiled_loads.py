# SPDX-License-Identifier: Apache-2.0
"""An identity as a backend in C, on our server and on the real one, beside the same as `model.py`.

The backend is one of the tests, compiled when the row is measured; both servers run the same file.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import shutil
import subprocess
import tempfile

import numpy as np

import pytriton
from benchmarks import grpc_loads, http_loads, servers, turns
from benchmarks.measurement import Measurement
from benchmarks.servers import HERE, RunningServer, System
from benchmarks.table import Comparison
from benchmarks.turns import Contestant, Load

SUBJECT, TRITON = "C backend (this project)", "C backend (Triton)"
PYTHON, TRITON_PYTHON = "model.py (this project)", "model.py (Triton)"
TABLE = Comparison("Compiled backends", SUBJECT, peers=(TRITON, PYTHON, TRITON_PYTHON))

MODEL, PYTHON_MODEL = "IdentC", "Ident1"
SOURCE = HERE.parent / "tests" / "native_backend" / "backends" / "identity.c"
CONCURRENCIES = (1, 64)
X = np.ones((1, 1), np.float32)


def measure(peers: pathlib.Path | None, port: int, seconds: float) -> dict[str, list[Measurement]]:
    """Loads all servers in turns; see `turns`."""
    with tempfile.TemporaryDirectory() as folder:
        repository = compiled_repository(pathlib.Path(folder))
        return turns.measure(contestants(peers, repository), check, loads(), port, seconds)


def compiled_repository(folder: pathlib.Path) -> pathlib.Path:
    """A repository with the model and its backend in one folder, where both servers look for it."""
    model = shutil.copytree(HERE / "model_repository" / MODEL, folder / MODEL)
    headers = pathlib.Path(pytriton.__file__).parent / "include"
    library = model / "libtriton_identity.so"
    command = ["cc", "-O2", "-shared", "-fPIC", "-pthread", f"-I{headers}"]
    command += [str(SOURCE), "-o", str(library)]
    subprocess.run(command, check=True)
    return folder


def contestants(peers: pathlib.Path | None, repository: pathlib.Path) -> list[Contestant]:
    found = []
    for folder, compiled, python in ((None, SUBJECT, PYTHON), (peers, TRITON, TRITON_PYTHON)):
        if compiled == SUBJECT or folder is not None:
            start = functools.partial(_start_compiled, folder, repository)
            found.append(Contestant(compiled, start, MODEL))
            start = functools.partial(servers.repository, folder, [PYTHON_MODEL])
            found.append(Contestant(python, start, PYTHON_MODEL))
    return found


def _start_compiled(peers: pathlib.Path | None, repository: pathlib.Path, port: int) -> System:
    system = servers.repository(peers, [MODEL], port)
    return dataclasses.replace(system, repository=repository)


def check(server: RunningServer, model: str) -> None:
    """A server that answers wrongly is not worth measuring."""
    for x in (X, np.arange(1000, dtype=np.float32).reshape(1, 1000)):
        (output,) = grpc_loads.infer(server, model, {"x": x}).values()
        if output != x.tobytes():
            raise RuntimeError(f"{model} of {server.system.title} returned other bytes")


def loads() -> list[Load]:
    return [
        Load(f"{protocol} identity c={connections}", functools.partial(send, connections))
        for connections in CONCURRENCIES
        for protocol, send in (("HTTP", _http), ("gRPC", _grpc))
    ]


def _http(connections: int, server: RunningServer, model: str, seconds: float) -> float:
    return http_loads.wrk(server, "ident.lua", model, connections, seconds).rate


def _grpc(connections: int, server: RunningServer, model: str, seconds: float) -> float:
    request = grpc_loads.framed(grpc_loads.infer_request(model, {"x": X}))
    return grpc_loads.rate(server, request, connections, seconds, answer_bytes=X.nbytes)
