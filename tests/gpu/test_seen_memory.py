# SPDX-License-Identifier: Apache-2.0
"""GPU memory of clients and models on a real GPU: tensors, metrics, loads, the load generator."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys

import numpy as np
import pytest

from benchmarks.gpu_setup import Region
from pytriton.client.kserve.address import parse_address
from pytriton.client.kserve.errors import AskError
from pytriton.client.kserve.http_client import kserve_client
from tests.e2e.http_client import call
from tests.repository_e2e.model_files import config, model
from tests.repository_e2e.server_process import starter

pytestmark = [pytest.mark.gpu, pytest.mark.e2e]
COUNT = 1 << 20
SIZE = 4 * COUNT
ON_DEVICE = 'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }'
ON_GPU = "instance_group [{ kind: KIND_GPU count: 1 }]\n"
TOO_LARGE = 'parameters { key: "GPU_MEMORY_MIB" value { string_value: "100000000" } }\n' + ON_GPU

ECHO = """
import os
import numpy as np
import triton_python_backend_utils as pb_utils
{top}

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([self.answer(each.inputs()[0])]) for each in requests]

    def answer(self, x):
        {answer}
"""
HOST = ECHO.format(top="", answer='return pb_utils.Tensor("Y", x.as_numpy() + 1)')
SAME = ECHO.format(top="", answer='return pb_utils.Tensor.from_dlpack("Y", x)')
PID = ECHO.format(
    top="import torch\nkept = torch.zeros(64 << 20, dtype=torch.uint8, device='cuda')",
    answer='return pb_utils.Tensor("Y", np.full_like(x.as_numpy(), os.getpid()))',
)
PLUS = ECHO.format(
    top="import torch",
    answer='return pb_utils.Tensor.from_dlpack("Y", torch.from_dlpack(x) + 1)',
)
# The copies of inputs go on after the call, behind other work of the GPU.
LATE = ECHO.format(
    top="import torch\nwork = torch.rand(4096, 4096, device='cuda')",
    answer="""for _ in range(20): torch.mm(work, work)
        y = torch.as_tensor(x.as_numpy()).to("cuda", non_blocking=True)
        del x
        return pb_utils.Tensor.from_dlpack("Y", y + 1)""",
)
MODELS = {
    "host": model(HOST),
    "same": model(SAME, config(ON_DEVICE)),
    "large": model(HOST, config(TOO_LARGE)),
    "pid": model(PID),
    "plus": model(PLUS, config(ON_DEVICE)),
    "late": model(LATE),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    flags = ["--allow-client-shm=true", "--model-control-mode=explicit"]
    flags += ["--metrics-interval-ms=1"]
    flags += [f"--load-model={name}" for name in MODELS if name != "large"]
    with starter(tmp_path_factory.mktemp("servers")) as start:
        yield start(MODELS, flags=flags).await_ready()


@pytest.fixture
def client(server):
    client = kserve_client(parse_address(f"http://127.0.0.1:{server.http_port}"), {}, 60.0)
    yield client
    client.close()


@pytest.fixture
def regions(client):
    made = {name: Region(client, name, SIZE) for name in ("in", "out")}
    yield made
    for region in made.values():
        region.close()


def values(start=0):
    return np.arange(start, start + COUNT, dtype=np.float32)


def infer(server, name):
    """Send a request whose tensors are in both regions."""
    shared = [
        {"shared_memory_region": each, "shared_memory_byte_size": SIZE} for each in ("in", "out")
    ]
    x = {"name": "X", "datatype": "FP32", "shape": [1, COUNT], "parameters": shared[0]}
    body = {"inputs": [x], "outputs": [{"name": "Y", "parameters": shared[1]}]}
    answer = call(server.http_port, f"/v2/models/{name}/infer", body=json.dumps(body).encode())
    assert answer.status == 200, answer.body


@pytest.mark.parametrize("name, added", [("host", 1), ("same", 0)])
def test_tensors_stay_in_memory_of_the_client(server, regions, name, added):
    for start in (0, 5, 11):
        regions["in"].write(values(start))
        infer(server, name)

        assert np.array_equal(regions["out"].read(COUNT), values(start) + added)


def test_torch_computes_on_memory_of_the_client(server, regions):
    for start in (0, 3, 8):
        regions["in"].write(values(start))
        infer(server, "plus")

        assert np.array_equal(regions["out"].read(COUNT), values(start) + 1)


def test_inputs_whose_copies_go_on_after_the_call_are_whole(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=120)
    for start in range(12):
        data = values(start)
        x = {"name": "X", "datatype": "FP32", "shape": [1, COUNT]}
        head = {
            "inputs": [{**x, "parameters": {"binary_data_size": SIZE}}],
            "outputs": [{"name": "Y", "parameters": {"binary_data": True}}],
        }
        text = json.dumps(head).encode()
        headers = {"Inference-Header-Content-Length": str(len(text))}
        connection.request("POST", "/v2/models/late/infer", text + data.tobytes(), headers)
        answer = connection.getresponse()
        length = int(answer.headers["Inference-Header-Content-Length"])
        found = np.frombuffer(answer.read()[length:], np.float32)

        assert np.array_equal(found, data + 1)
    connection.close()


def test_memory_of_a_model_is_in_the_metrics_and_in_the_index(server, client):
    pytest.importorskip("pynvml")
    page = call(server.metrics_port, "/metrics").body.decode()
    index = json.loads(call(server.http_port, "/v2/repository/index", body=b"").body)
    lines = [line for line in page.splitlines() if line.startswith("nv_model_gpu_memory_bytes{")]
    if not lines:
        pytest.skip("NVML does not tell the memory of processes here")

    (line,) = [each for each in lines if 'model="pid"' in each]
    assert int(line.rpartition(" ")[2]) >= 64 << 20
    (entry,) = [each for each in index if each["name"] == "pid"]
    assert entry["gpu_memory_bytes"] >= 64 << 20


def test_our_copies_are_counted(server, regions):
    def count():
        page = call(server.metrics_port, "/metrics").body.decode()
        name = 'nv_inference_gpu_copy_bytes{model="host",'
        found = [line for line in page.splitlines() if line.startswith(name)]
        return sum(int(line.rpartition(" ")[2]) for line in found)

    before = count()
    infer(server, "host")

    assert count() - before == 2 * SIZE


def test_load_that_cannot_fit_is_refused(server, client):
    pytest.importorskip("pynvml")
    with pytest.raises(AskError, match="would need 100000000 MiB of its memory"):
        client.load("large")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_perf_keeps_tensors_in_gpu_memory(server, protocol):
    port = server.http_port if protocol == "http" else server.grpc_port
    words = f"-m same -u 127.0.0.1:{port} -i {protocol} --shared-memory cuda --shape X:1000000"
    words += " --output-shared-memory-size 4000000 --request-count 200 --no-progress"
    command = [sys.executable, "-m", "pytriton", "perf", *words.split()]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if protocol == "grpc" and "No module named 'grpc'" in found.stderr:
        pytest.skip("grpcio is not installed")

    assert found.returncode == 0, found.stderr
    assert "    Inference count: 200\n" in found.stdout


def test_kills_leave_no_memory_behind(tmp_path):
    words = f"--only kills --lanes 4 --kills 24 --json {tmp_path / 'f.json'}"
    command = [sys.executable, "-m", "benchmarks.gpu", *words.split()]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert found.returncode == 0, found.stdout + found.stderr
    figures = json.loads((tmp_path / "f.json").read_text())

    assert figures["kills"] == 24
    if "device memory that is lost" not in figures:
        pytest.skip("NVML does not tell the memory of the GPU")
    assert figures["device memory that is lost"] <= 64
