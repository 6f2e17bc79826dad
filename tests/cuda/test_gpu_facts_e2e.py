# SPDX-License-Identifier: Apache-2.0
"""What a real server tells of GPUs, and which loads it refuses, with stand-ins for both drivers."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.cuda import nvml_server
from tests.cuda.device_process import DeviceProcess
from tests.cuda.fake_library import library_folder, needs_compiler
from tests.cuda.test_cuda_regions_e2e import DEVICE, ON_DEVICE, SIZE, infer, register, values
from tests.e2e.http_client import call
from tests.repository_e2e.model_files import code, config, model
from tests.repository_e2e.server_process import starter

pytestmark = [needs_compiler, pytest.mark.e2e]
MIB = 1 << 20
NEEDS = 'parameters { key: "GPU_MEMORY_MIB" value { string_value: "100" } }'
ON_GPU = "instance_group [{ kind: KIND_GPU count: 3 }]\n"
REPOSITORY = {
    "pid": model(code("y = np.full_like(x, os.getpid())"), config()),
    "plain": model(code("y = x + 1")),
    "device": model(DEVICE, config(ON_DEVICE)),
    "large": model(code("y = x"), config(NEEDS + "\n" + ON_GPU)),
}
FLAGS = ["--allow-client-shm=true", "--model-control-mode=explicit", "--metrics-interval-ms=1"]
FLAGS += [f"--load-model={name}" for name in ("pid", "plain", "device")]


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    return tmp_path_factory.mktemp("nvml") / "facts.json"


@pytest.fixture(scope="module")
def server(tmp_path_factory, facts):
    facts.write_text(json.dumps({"total": 1000 * MIB, "free": 500 * MIB}))
    environment = {
        "LD_LIBRARY_PATH": str(library_folder()),
        "CUDA_VISIBLE_DEVICES": "0",
        "FAKE_NVML": str(facts),
    }
    command = (sys.executable, nvml_server.__file__)
    with starter(tmp_path_factory.mktemp("servers")) as start:
        settings = {"flags": FLAGS, "environment": environment, "command": command}
        yield start(REPOSITORY, **settings).await_ready()


@pytest.fixture
def client(server):
    with server.http_client() as client:
        yield client
        client.unregister_cuda_shared_memory()


@pytest.fixture
def device():
    process = DeviceProcess()
    yield process
    process.close()


def metrics(server):
    return call(server.metrics_port, "/metrics").body.decode()


def test_memory_of_instances_is_told_by_model(server, client, facts):
    from tritonclient.http import InferInput  # noqa: PLC0415

    x = InferInput("X", (1, 1), "FP32")
    x.set_data_from_numpy(np.zeros((1, 1), np.float32))
    pid = int(client.infer("pid", [x]).as_numpy("Y")[0, 0])
    processes = {str(pid): 70 * MIB, "1": MIB}
    facts.write_text(json.dumps({"total": 1000 * MIB, "free": 400 * MIB, "processes": processes}))
    page = metrics(server)
    index = {each["name"]: each for each in client.get_model_repository_index()}

    assert f'nv_gpu_memory_used_bytes{{gpu_uuid="GPU-fake-0"}} {600 * MIB}\n' in page
    labels = 'gpu_uuid="GPU-fake-0",model="pid",version="1"'
    assert f"nv_model_gpu_memory_bytes{{{labels}}} {70 * MIB}\n" in page
    assert f'instances="pid_0_0",pid="{pid}"}} {70 * MIB}\n' in page
    assert index["pid"]["gpu_memory_bytes"] == 70 * MIB
    assert "gpu_memory_bytes" not in index["plain"]


def test_bytes_of_our_own_copies_are_counted_by_model_and_direction(server, client, device):
    address = {name: register(client, device, name) for name in ("in", "out")}
    device.write(address["in"], values())
    for _ in range(3):
        infer(client, "http", "plain")
    infer(client, "http", "device")
    infer(client, "http", "device", outputs="")
    page = metrics(server)
    lines = [line for line in page.splitlines() if line.startswith("nv_inference_gpu_copy_bytes{")]

    assert lines == [
        f'nv_inference_gpu_copy_bytes{{model="device",direction="to_host",version="1"}} {SIZE}',
        f'nv_inference_gpu_copy_bytes{{model="plain",direction="to_gpu",version="1"}} {3 * SIZE}',
        f'nv_inference_gpu_copy_bytes{{model="plain",direction="to_host",version="1"}} {3 * SIZE}',
    ]


def test_load_that_does_not_fit_is_refused_before_it_starts(server, client, facts):
    facts.write_text(json.dumps({"total": 1000 * MIB, "free": 299 * MIB}))
    with pytest.raises(InferenceServerException) as refused:
        client.load_model("large")

    assert "3 instances of model 'large' on GPU 0 would need 300 MiB of its memory" in str(
        refused.value
    )
    assert "(GPU_MEMORY_MIB: 100), but 299 MiB are free" in str(refused.value)
    facts.write_text(json.dumps({"total": 1000 * MIB, "free": 300 * MIB}))
    client.load_model("large")
    assert client.is_model_ready("large")
    client.unload_model("large")
