# SPDX-License-Identifier: Apache-2.0
"""What the tests of flaws share: models, ways to send what is wrong, and memory of processes."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import socket
from collections.abc import Iterable, Iterator
from typing import Any

import grpc
import psutil
import pytest
from tritonclient.grpc import service_pb2

from pytriton.base.security import VALID_TRITON_ENDPOINTS
from tests.e2e.http_client import Answer, call
from tests.e2e.waiting import DEADLINE_S
from tests.repository_e2e.model_files import (
    DECOUPLED,
    HOLD,
    code,
    config,
    decoupled_code,
    model,
)
from tests.repository_e2e.server_process import ServerProcess

# How often tests repeat what needs luck to fail.
COUNT = int(os.environ.get("PYTRITON_SECURITY_COUNT", "200"))

MIB = 1 << 20
BODY_LIMIT = 8 * MIB
FORWARDED = "^(forwarded_|triton_|sequence_|priority$|timeout$|headers$|binary_data_output$)"
FLAGS = (
    "--model-control-mode=explicit",
    "--load-model=*",
    "--allow-client-shm=true",
    "--log-verbose=1",
    f"--http-max-input-size={BODY_LIMIT}",
    f"--http-header-forward-pattern={FORWARDED}",
    f"--grpc-header-forward-pattern={FORWARDED}",
)
# All that a server can be asked for needs a secret, on every port.
GROUPS = ",".join(sorted(VALID_TRITON_ENDPOINTS))
SECRET = "the-secret-of-the-operator"
HTTP_TOKEN = {"token": SECRET}
GRPC_TOKEN = [("triton-grpc-protocol-token", SECRET)]
ROUTES_OF_VERTEX_AI = {"AIP_PREDICT_ROUTE": "/predict", "AIP_HEALTH_ROUTE": "/health"}
# Answers with the parameters of the request as it sees them.
PARAMETERS = code().replace(
    "np.asarray(y, np.float32)", "np.array([[request.parameters().encode()]], np.object_)"
)
ENTER = "open(os.path.join(os.path.dirname(__file__), 'entered'), 'w').close()\n"
CHAT = """
import numpy as np
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        text = pb_utils.Tensor("text_output", np.array([b"hello"], np.object_))
        return [pb_utils.InferenceResponse([text]) for _ in requests]
"""
CHAT_CONFIG = """
backend: "python"
input [{ name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }]
output [{ name: "text_output" data_type: TYPE_STRING dims: [ 1 ] }]
instance_group [{ kind: KIND_CPU }]
parameters { key: "openai" value { string_value: "chat,completions" } }
"""
REPOSITORY = {
    "echo": model(),
    "flat": model(settings=config(max_batch_size=0)),
    "held": model(code(ENTER + HOLD + "\ny = x")),
    "count": model(decoupled_code("for number in range(3): send(x + number)"), config(DECOUPLED)),
    "turns": model(
        settings=config(
            "sequence_batching { max_sequence_idle_microseconds: 60000000 direct { } }",
            max_batch_size=1,
        )
    ),
    "wide": model(code("y = np.ones((1, 1 << 20))")),
    "parameters": model(
        PARAMETERS,
        config().replace('name: "Y" data_type: TYPE_FP32', 'name: "Y" data_type: TYPE_STRING'),
    ),
    "chat": {"1/model.py": CHAT, "config.pbtxt": CHAT_CONFIG},
}

# The paths of all requests that have a body, with a body that is right.
X = {"name": "X", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}
POSTS = {
    "/v2/models/echo/infer": {"inputs": [X]},
    "/v2/models/echo/versions/1/infer": {"inputs": [X]},
    "/v2/models/echo/generate": {"X": [1]},
    "/v2/models/count/generate_stream": {"X": [1]},
    "/v2/repository/index": {},
    "/v2/repository/models/echo/load": {},
    "/v2/repository/models/missing/unload": {},
    "/v2/logging": {},
    "/v2/trace/setting": {},
    "/v2/models/echo/trace/setting": {},
    "/v2/systemsharedmemory/region/r/register": {"key": "/missing", "byte_size": 1},
    "/v2/systemsharedmemory/region/r/unregister": {},
    "/v2/cudasharedmemory/region/r/register": {"raw_handle": {"b64": ""}, "byte_size": 1},
    "/v2/cudasharedmemory/region/r/unregister": {},
    "/v1/chat/completions": {"model": "chat", "messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"model": "chat", "prompt": "hi"},
}


def infer(server: ServerProcess, name: str = "echo", **changes: Any) -> Answer:
    """Ask a model with a request, of whose only input some members are changed."""
    return server.post(f"/v2/models/{name}/infer", {"inputs": [{**X, **changes}]})


def infer_text(server: ServerProcess, text: str, name: str = "echo") -> Answer:
    """Ask a model with a text that may not be JSON."""
    return call(server.http_port, f"/v2/models/{name}/infer", text.encode())


def grpc_request(
    name: str = "echo",
    shape: Iterable[int] = (1, 2),
    data: bytes | None = b"\0" * 8,
    outputs: Iterable[str] = (),
    **parameters: Any,
) -> service_pb2.ModelInferRequest:
    request = service_pb2.ModelInferRequest(model_name=name)
    request.inputs.add(name="X", datatype="FP32", shape=shape)
    if data is not None:
        request.raw_input_contents.append(data)
    for output in outputs:
        request.outputs.add(name=output)
    for key, value in parameters.items():
        set_parameter(request.parameters[key], value)
    return request


def set_parameter(parameter: Any, value: bool | float | str) -> None:
    kinds = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
    setattr(parameter, kinds[type(value)], value)


def grpc_error(method: Any, request: Any, **settings: Any) -> grpc.RpcError:
    """The error of a call, which has to fail, and not because it took too long."""
    with pytest.raises(grpc.RpcError) as caught:
        method(request, timeout=DEADLINE_S, **settings)
    assert caught.value.code() is not grpc.StatusCode.DEADLINE_EXCEEDED
    return caught.value


def raw_answer(port: int, *parts: bytes) -> bytes:
    """All that a server answers to bytes; an answer may come, and the end, before all are sent."""
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as client:
        with contextlib.suppress(ConnectionError):
            for part in parts:
                client.sendall(part)
        received = bytearray()
        with contextlib.suppress(ConnectionError):
            while part := client.recv(65536):
                received += part
        return bytes(received)


def status_of(answer: bytes) -> int:
    """The status of the first answer; 0 if there is none."""
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def head(path: str, *lines: str, method: str = "POST") -> bytes:
    """The head of a request, after whose answer the connection ends."""
    fields = "".join(f"{line}\r\n" for line in lines)
    return (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{fields}\r\n".encode()
    )


def pending_count(server: ServerProcess, name: str) -> int:
    """How many requests wait for a model."""
    page = call(server.metrics_port, "/metrics").body.decode()
    lines = [
        line for line in page.splitlines() if line.startswith("nv_inference_pending_request_count")
    ]
    return sum(int(float(line.split()[-1])) for line in lines if f'model="{name}"' in line)


# Processes


def processes(server: ServerProcess) -> set[int]:
    """The processes that must outlive every client: all but those that read large JSON."""
    return {server.pid, *(each.pid for each in server.descendants() if _outlives_clients(each))}


def _outlives_clients(process: psutil.Process) -> bool:
    try:
        return "-c" not in process.cmdline()
    except psutil.NoSuchProcess:  # it has just ended
        return False


class Peak:
    """How far the memory of any process of a server has grown at most."""

    def __init__(self, server: ServerProcess) -> None:
        self._before = {pid: _resident(pid, "VmRSS") for pid in processes(server)}
        for pid in self._before:
            pathlib.Path(f"/proc/{pid}/clear_refs").write_text("5")  # begin to measure again

    def growth_bytes(self) -> int:
        return max(_resident(pid, "VmHWM") - before for pid, before in self._before.items())


def _resident(pid: int, which: str) -> int:
    try:
        lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    found = [line.split()[1] for line in lines if line.startswith(f"{which}:")]
    return int(found[0]) * 1024 if found else 0


@contextlib.contextmanager
def unchanged(*folders: pathlib.Path) -> Iterator[None]:
    """Checks that nothing was written, created or removed in folders."""
    before = [snapshot(folder) for folder in folders]
    yield
    for folder, former in zip(folders, before, strict=True):
        assert snapshot(folder) == former


def snapshot(folder: pathlib.Path) -> dict[str, bytes | None]:
    """Every file with its content, and every folder; not what a server says, which it may."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
        if path.name not in ("stdout", "stderr", "entered", "hold")
        and "__pycache__" not in path.parts
    }


def config_override(**changes: Any) -> str:
    """A configuration as load requests have it."""
    tensor = {"data_type": "TYPE_FP32", "dims": [-1]}
    return json.dumps(
        {
            "backend": "python",
            "max_batch_size": 8,
            "input": [{"name": "X", **tensor}],
            "output": [{"name": "Y", **tensor}],
            "instance_group": [{"kind": "KIND_CPU"}],
            **changes,
        }
    )


def listening(server: ServerProcess) -> list[tuple[str, int]]:
    """The addresses at which others can reach a process of a server."""
    found = []
    for pid in processes(server):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += psutil.Process(pid).net_connections("inet")
    return [tuple(each.laddr) for each in found if each.status == psutil.CONN_LISTEN]
