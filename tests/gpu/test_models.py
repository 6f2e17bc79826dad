# SPDX-License-Identifier: Apache-2.0
"""Tensors of torch and cupy between models on a real GPU."""

from __future__ import annotations

import importlib.util
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.e2e.http_client import InferFailedError, call, infer
from tests.e2e.waiting import eventually
from tests.framework_backends.pytorch.torch_models import script
from tests.repository_e2e.model_files import config, ensemble, model
from tests.repository_e2e.server_process import starter

pytestmark = pytest.mark.e2e
ON_DEVICE = 'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }'
HEADER = """
import os
import numpy as np
import torch
import triton_python_backend_utils as pb_utils
from pytriton.runtime.pb_utils.runtime import current_runtime

def infer(name, tensor, **options):
    request = pb_utils.InferenceRequest(
        inputs=[tensor], requested_output_names=["Y"], model_name=name, **options)
    response = request.exec()
    if response.has_error():
        raise pb_utils.TritonModelException(response.error().message())
    return response.output_tensors()[0]

class TritonPythonModel:
    def initialize(self, args):
        torch.zeros(1, device="cuda")

    def execute(self, requests):
        return [pb_utils.InferenceResponse([self.answer(each.inputs()[0])]) for each in requests]
"""


def torch_code(body):
    lines = "".join(f"        {line}\n" for line in body.strip().splitlines())
    return f"{HEADER}\n    def answer(self, x):\n{lines}"


UPLOAD = 'return pb_utils.Tensor.from_dlpack("Y", torch.as_tensor(x.as_numpy()).cuda() + 1)'
DOUBLE = """
assert not x.is_cpu(), "expected an input on the GPU"
return pb_utils.Tensor.from_dlpack("Y", torch.from_dlpack(x) * 2)
"""
SLOW = """
assert not x.is_cpu(), "expected an input on the GPU"
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    y = torch.from_dlpack(x)
    for _ in range(200):
        y = torch.where(y.flip(-1).flip(-1) == y, y, torch.zeros_like(y))
    y = y * 2
    tensor = pb_utils.Tensor.from_dlpack("Y", y)
return tensor
"""
CUPY = """
import cupy
assert not x.is_cpu(), "expected an input on the GPU"
return pb_utils.Tensor.from_dlpack("Y", cupy.from_dlpack(x) * 2)
"""
CALLER = """
data = x.as_numpy()
command = int(data[0, 0])
gpu = pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, 0)
cpu = pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU)
if command == 0:
    known = [len(current_runtime().device._exports), os.getpid()]
    return pb_utils.Tensor("Y", np.array([known], np.float32))
sent = pb_utils.Tensor.from_dlpack("X", torch.as_tensor(data).cuda())
options = {3: {"preferred_memory": cpu}, 4: {"preferred_memory": gpu}}.get(command, {})
name = {2: "same", 4: "host"}.get(command, "double")
y = infer(name, sent, **options)
if command == 5:  # two small allocations, of which the driver may have made one block
    kept = infer("host", sent, preferred_memory=gpu)
    y = infer("host", sent, preferred_memory=gpu)
    y = infer("double", pb_utils.Tensor.from_dlpack("X", y))
if command == 6:
    y = infer("double", pb_utils.Tensor.from_dlpack("X", y))
values = y.as_numpy() if y.is_cpu() else torch.from_dlpack(y).cpu().numpy()
return pb_utils.Tensor("Y", np.array([[values[0, -1], y.is_cpu()]], np.float32))
"""
REPOSITORY = {
    "make": model(torch_code(UPLOAD)),
    "double": model(torch_code(DOUBLE), config(ON_DEVICE)),
    "slow": model(torch_code(SLOW), config(ON_DEVICE)),
    "cupy": model(torch_code(CUPY), config(ON_DEVICE)),
    "same": model(torch_code('return pb_utils.Tensor.from_dlpack("Y", x)'), config(ON_DEVICE)),
    "host": model(torch_code('return pb_utils.Tensor("Y", x.as_numpy() * 3)')),
    "caller": model(torch_code(CALLER)),
    "chain": ensemble("make", "double", "same", "double"),
    "slow_chain": ensemble("make", "slow", "slow", "double"),
    "cupy_chain": ensemble("make", "cupy", "double"),
}
COUNT = 1 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with starter(tmp_path_factory.mktemp("servers")) as start:
        yield start(REPOSITORY).await_ready()


def run(server, name, row):
    return infer(server.http_port, name, {"X": row.reshape(1, -1)})["Y"]


def counts(server):
    found = {}
    for line in call(server.metrics_port, "/metrics").body.decode().splitlines():
        if line.startswith("nv_inference_gpu_tensors_total{"):
            labels, value = line.split("} ")
            parts = dict(part.split("=") for part in labels.split("{")[1].split(","))
            found[parts["model"].strip('"'), parts["reason"].strip('"')] = int(float(value))
    return found


def facts(server):
    exported, process = server.infer("caller", 0)
    return int(exported), int(process)


@pytest.mark.parametrize("name, factor", [("chain", 4), ("slow_chain", 8), ("cupy_chain", 4)])
def test_ensemble_computes_on_the_gpu(server, name, factor):
    if name == "cupy_chain" and importlib.util.find_spec("cupy") is None:
        pytest.skip("cupy is missing")
    before = counts(server)
    for start in range(5):
        row = np.arange(COUNT, dtype=np.float32) + start

        assert np.array_equal(run(server, name, row)[0], (row + 1) * factor)
    shared = {key: value - before.get(key, 0) for key, value in counts(server).items()}
    assert shared["double", ""] >= 5
    assert not any(value for (_, reason), value in shared.items() if reason)


@pytest.mark.parametrize(
    "command, factor, is_cpu", [(1, 2, 0), (2, 1, 0), (3, 2, 1), (4, 3, 0), (6, 4, 0)]
)
def test_call_has_its_tensors_where_they_belong(server, command, factor, is_cpu):
    row = np.full(COUNT, 5, np.float32)
    row[0] = command

    assert run(server, "caller", row).ravel().tolist() == [5 * factor, is_cpu]


def test_small_allocation_is_found_in_its_block(server):
    assert server.infer("caller", 5, 7.0) == [42.0, 0.0]


def test_memory_does_not_grow_and_is_given_back(server):
    row = np.full(8 << 20, 5, np.float32)  # 32 MiB
    row[0] = 1
    for _ in range(30):  # one of them is kept only as long as it is used
        run(server, "caller", row)

    assert eventually(lambda: facts(server)[0] == 0)


def test_producer_that_is_killed_harms_nobody(server):
    row = np.full(COUNT, 5, np.float32)
    row[0] = 1
    run(server, "caller", row)
    process = facts(server)[1]
    os.kill(process, signal.SIGKILL)

    def answer():
        try:
            return run(server, "caller", row).ravel().tolist()
        except InferFailedError:
            return None

    assert eventually(lambda: answer() == [10, 0])
    assert facts(server)[1] != process


def test_memory_of_expandable_segments_goes_through_the_host(tmp_path):
    environment = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    # Where the driver does not offer them, torch says so in a warning and does without.
    make = """
y = torch.as_tensor(x.as_numpy()).cuda() + 1
if not any(each["is_expandable"] for each in torch.cuda.memory_snapshot()):
    raise pb_utils.TritonModelException("torch has no expandable segments")
return pb_utils.Tensor.from_dlpack("Y", y)
"""
    lenient = torch_code(DOUBLE.replace("assert", "#")).replace(
        "torch.from_dlpack(x) * 2",
        "(torch.as_tensor(x.as_numpy()).cuda() if x.is_cpu() else torch.from_dlpack(x)) * 2",
    )
    repository = {
        "make": model(torch_code(make)),
        "double": model(lenient, config(ON_DEVICE)),
        "chain": ensemble("make", "double"),
    }
    with starter(tmp_path) as start:
        server = start(repository, environment=environment).await_ready()
        row = np.arange(COUNT, dtype=np.float32)
        try:
            found = run(server, "chain", row)[0]
        except InferFailedError as error:
            if "no expandable segments" not in str(error):
                raise
            pytest.skip("torch has no expandable segments here")

        assert np.array_equal(found, (row + 1) * 2)
        assert eventually(lambda: counts(server).get(("make", "cannot_export")) == 1)


def test_torchscript_model_computes_on_the_gpu(tmp_path):
    network = script("x", "return x.mul_(2)")  # a network may change its inputs
    settings = (
        'backend: "pytorch"\nmax_batch_size: 8\n'
        'input [{ name: "X" data_type: TYPE_FP32 dims: [ -1 ] }]\n'
        'output [{ name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }]\n'
        "instance_group [{ kind: KIND_GPU }]\n"
        "dynamic_batching { max_queue_delay_microseconds: 50000 }\n"
    )
    repository = {
        "make": REPOSITORY["make"],
        "script": {"1/model.pt": network, "config.pbtxt": settings},
        "chain": ensemble("make", "script", "script"),
    }
    with starter(tmp_path) as start:
        server = start(repository).await_ready()
        rows = [np.arange(COUNT, dtype=np.float32) + number for number in range(4)]
        with ThreadPoolExecutor(4) as threads:
            answers = list(threads.map(lambda row: run(server, "chain", row)[0], rows))

        assert all(np.array_equal(a, (row + 1) * 4) for a, row in zip(answers, rows, strict=True))
        assert eventually(lambda: counts(server).get(("script", "")) == 8)
