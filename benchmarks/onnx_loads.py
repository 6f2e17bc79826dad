# SPDX-License-Identifier: Apache-2.0
"""The same ONNX model in several ways: our backend, and a session that Python code calls.

All have one instance, one thread, and the same batching. Code in Python also runs the session once
for a batch: as a bound function, and as a `model.py` of our server and of the real one.
"""

from __future__ import annotations

import functools
import json
import pathlib
import tempfile
from collections.abc import Sequence

import numpy as np

from benchmarks import grpc_loads, http_loads, mlp, servers, turns
from benchmarks.measurement import Measurement
from benchmarks.mlp import WIDTH
from benchmarks.servers import RunningServer
from benchmarks.table import Comparison
from benchmarks.turns import Contestant, Load

SUBJECT = "ONNX backend (this project)"
BOUND, PYTHON = "bound function (this project)", "model.py (this project)"
TRITON = "model.py (Triton)"
TABLE = Comparison("ONNX Runtime", SUBJECT, peers=(BOUND, PYTHON, TRITON))

MODEL, PYTHON_MODEL = "Mlp", "MlpPython"
SMALL, LARGE = "ONNX MLP", "ONNX MLP 1 MiB"
ROWS = {SMALL: 1, LARGE: 2**14}  # of 16 numbers, in a request
CONCURRENCIES = {SMALL: (1, 16, 64), LARGE: (1, 16)}


def measure(peers: pathlib.Path | None, port: int, seconds: float) -> dict[str, list[Measurement]]:
    """Loads all servers in turns; see `turns`."""
    with tempfile.TemporaryDirectory() as folder:
        return turns.measure(contestants(peers), check, loads(pathlib.Path(folder)), port, seconds)


def contestants(peers: pathlib.Path | None) -> list[Contestant]:
    bound = functools.partial(servers.serving, "--onnx", [MODEL])
    known = [
        Contestant(SUBJECT, functools.partial(servers.repository, None, [MODEL]), MODEL),
        Contestant(BOUND, bound, MODEL),
    ]
    for title, folder in ((PYTHON, None), (TRITON, peers)):
        if title == PYTHON or folder is not None:
            start = functools.partial(servers.repository, folder, [PYTHON_MODEL])
            known.append(Contestant(title, start, PYTHON_MODEL))
    return known


def tensors() -> dict[str, np.ndarray]:
    """What is sent; with few digits, as JSON mostly has them."""
    random = np.random.default_rng(1)
    return {
        row: random.normal(size=(count, WIDTH)).round(4).astype(np.float32)
        for row, count in ROWS.items()
    }


def check(server: RunningServer, model: str) -> None:
    """A server that computes something else is not worth measuring."""
    for x in tensors().values():
        y = np.frombuffer(grpc_loads.infer(server, model, {"x": x})["y"], np.float32)
        if not np.allclose(y.reshape(x.shape), mlp.expected(x), rtol=1e-4, atol=1e-4):
            raise RuntimeError(f"{model} of {server.system.title} computed other values")


def loads(folder: pathlib.Path) -> list[Load]:
    """The loads over HTTP and gRPC; the folder gets the bodies of HTTP requests."""
    found = []
    for row, x in tensors().items():
        body, arguments = _json_body(x) if row == SMALL else _binary_body(x)
        file = folder / row
        file.write_bytes(body)
        for connections in CONCURRENCIES[row]:
            http = functools.partial(_http, [str(file), *arguments], connections)
            grpc = functools.partial(_grpc, x, connections)
            found.append(Load(f"HTTP {row} c={connections}", http))
            found.append(Load(f"gRPC {row} c={connections}", grpc))
    return found


def _json_body(x: np.ndarray) -> tuple[bytes, list[str]]:
    data = [float(str(value)) for value in x.ravel()]
    tensor = {"name": "x", "shape": x.shape, "datatype": "FP32", "data": data}
    return json.dumps({"inputs": [tensor]}).encode(), []


def _binary_body(x: np.ndarray) -> tuple[bytes, list[str]]:
    tensor = {"name": "x", "shape": x.shape, "datatype": "FP32"}
    document = {
        "inputs": [{**tensor, "parameters": {"binary_data_size": x.nbytes}}],
        "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
    }
    head = json.dumps(document).encode()
    return head + x.tobytes(), [str(len(head))]


def _http(
    arguments: Sequence[str], connections: int, server: RunningServer, model: str, seconds: float
) -> float:
    return http_loads.wrk(server, "request.lua", model, connections, seconds, arguments).rate


def _grpc(
    x: np.ndarray, connections: int, server: RunningServer, model: str, seconds: float
) -> float:
    request = grpc_loads.framed(grpc_loads.infer_request(model, {"x": x}))
    return grpc_loads.rate(server, request, connections, seconds, answer_bytes=x.nbytes)
