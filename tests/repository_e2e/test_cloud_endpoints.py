# SPDX-License-Identifier: Apache-2.0
"""Servers as SageMaker and Vertex AI start and ask them, and as the page about them says."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys

import pytest

from tests.e2e.http_client import call
from tests.e2e.waiting import eventually
from tests.free_ports import free_ports
from tests.repository_e2e.model_files import HELD, HOLD, code, model, write_model
from tests.repository_e2e.server_process import COMMAND
from tests.snippets import snippets

ROUTES = {"AIP_PREDICT_ROUTE": "/predict", "AIP_HEALTH_ROUTE": "/health"}
BODY = b'{"inputs":[{"name":"X","datatype":"FP32","shape":[1,2],"data":[1,2]}]}'
PLUS = {"plus": model(code("y = x + 1"))}
TWO = {**PLUS, "twice": model(code("y = 2 * x"))}


def outputs(answer):
    assert answer.status == 200, answer.body
    return answer.json["outputs"][0]["data"]


@pytest.fixture(params=["one process", "front ends"])
def processes(request):
    return {"PYTRITON_FRONTEND_PROCESSES": "2" if request.param == "front ends" else "0"}


@pytest.fixture
def vertex_ai(start_server, processes):
    """Starts a server as Vertex AI does; returns it and its port."""

    def start(*models, flags=(), **variables):
        (port,) = free_ports(1)
        environment = {
            **processes,
            **ROUTES,
            "AIP_MODE": "PREDICTION",
            "AIP_HTTP_PORT": str(port),
            **variables,
        }
        return start_server(*models, flags=flags, environment=environment), port

    return start


@pytest.fixture
def sagemaker(start_server, processes):
    """Starts a server for SageMaker; returns it and its port."""

    def start(*models, flags=(), **variables):
        (port,) = free_ports(1)
        flags = ("--allow-sagemaker=true", f"--sagemaker-port={port}", *flags)
        return start_server(*models, flags=flags, environment={**processes, **variables}), port

    return start


def test_vertex_ai_needs_no_flags(vertex_ai):
    server, port = vertex_ai(PLUS)
    server.await_ports()

    assert f"Started Vertex AI HTTPService at 0.0.0.0:{port}" in server.stdout
    assert "Started HTTPService" not in server.stdout
    assert "Started GRPCInferenceService" not in server.stdout
    assert call(port, "/health").status == 200
    assert outputs(call(port, "/predict", BODY)) == [2.0, 3.0]
    assert server.end() == 0


def test_repository_of_vertex_ai_is_the_default(tmp_path):
    write_model(tmp_path / "plus", PLUS["plus"])
    (port,) = free_ports(1)
    variables = {**ROUTES, "AIP_MODE": "PREDICTION", "AIP_STORAGE_URI": str(tmp_path)}
    process = subprocess.Popen(
        [*COMMAND, "--allow-metrics=false", f"--vertex-ai-port={port}"],
        stdout=subprocess.DEVNULL,
        env={**os.environ, **variables},
    )
    try:
        assert eventually(lambda: is_served(port))
        assert outputs(call(port, "/predict", BODY)) == [2.0, 3.0]
    finally:
        process.terminate()
        process.wait()


def is_served(port):
    with contextlib.suppress(OSError):
        return call(port, "/health").status == 200
    return False


def test_sagemaker_pings_and_invokes(sagemaker):
    server, port = sagemaker(TWO, SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="twice")
    server.await_ready()

    assert f"Started Sagemaker HTTPService at 0.0.0.0:{port}" in server.stdout
    assert call(port, "/ping").status == 200
    assert outputs(call(port, "/invocations", BODY)) == [2.0, 4.0]
    assert server.infer("plus", 1.0) == [2.0]


def test_taken_port_is_named(processes, start_server):
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        flags = ("--allow-sagemaker=true", f"--sagemaker-port={port}")
        server = start_server(PLUS, flags=flags, environment=processes)

        assert server.exit_code() == 1
    assert (
        f"failed to start Sagemaker service: Unavailable - Socket '0.0.0.0:{port}' already in use"
    ) in server.stderr


def test_invocation_in_flight_is_answered_at_the_end(sagemaker):
    begin = "open(os.path.join(os.path.dirname(__file__), 'begun'), 'w').close()"
    held = {"held": {**model(code(f"{begin}\n{HOLD}\ny = x")), **HELD}}
    server, port = sagemaker(held, SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="held")
    server.await_ready()
    head = b"POST /invocations HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(
        BODY
    )
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(head + BODY)
        assert eventually((server.repository / "held" / "1" / "begun").exists)
        server.signal(signal.SIGTERM)
        assert eventually(lambda: "Waiting for in-flight requests" in server.stdout)
        server.let_go("held")

        assert client.recv(4096).startswith(b"HTTP/1.1 200 OK\r\n")
    assert server.exit_code() == 0


PAGE = pathlib.Path(__file__).parents[2] / "docs" / "cloud_endpoints.md"


def answers(port):
    with contextlib.suppress(OSError):
        return call(port, "/ping").status == 200
    return False


def test_script_of_the_page_serves_sagemaker(tmp_path):
    (script,) = snippets(PAGE, "bash")
    assert "--model-repository=/opt/ml/model " in script.text
    path = tmp_path / "serve"
    path.write_text(script.text.replace("/opt/ml/model ", f"{tmp_path} "))
    path.chmod(0o755)
    (port,) = free_ports(1)
    programs = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
    process = subprocess.Popen(
        [path, "serve"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PATH": programs, "SAGEMAKER_BIND_TO_PORT": str(port)},
    )
    try:
        assert eventually(lambda: answers(port))
        assert call(port, "/models").json == {"models": []}
    finally:
        process.terminate()
        assert process.wait() == 0
