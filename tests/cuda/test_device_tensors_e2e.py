# SPDX-License-Identifier: Apache-2.0
"""Tensors in GPU memory between models, with a real server and a library that stands for CUDA's."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc.aio as triton_grpc

from tests.cuda import gpu_server
from tests.cuda.fake_library import library_folder, needs_compiler
from tests.e2e.http_client import InferFailedError, call, infer
from tests.e2e.waiting import eventually
from tests.repository_e2e.model_files import config, ensemble, model
from tests.repository_e2e.server_process import starter

pytestmark = [needs_compiler, pytest.mark.e2e]
ON_DEVICE = 'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }'
HEADER = """
import ctypes
import os
import numpy as np
import triton_python_backend_utils as pb_utils
from pytriton.runtime.cuda.device_array import copy_to_device
from pytriton.runtime.pb_utils.runtime import current_runtime
from pytriton.runtime.pb_utils.tensor import DeviceTensor

library = ctypes.CDLL("libcuda.so.1")
DEVICE = 0

def upload(name, array):
    return DeviceTensor.of_device(name, copy_to_device(array, DEVICE))

def values(tensor):
    return tensor.as_numpy() if tensor.is_cpu() else tensor.to_wire()[2].copy()

def exported():
    return len(current_runtime().device._exports)

def infer(name, tensor, **options):
    request = pb_utils.InferenceRequest(
        inputs=[tensor], requested_output_names=["Y"], model_name=name, **options)
    response = request.exec()
    if response.has_error():
        raise pb_utils.TritonModelException(response.error().message())
    return response.output_tensors()[0]

class TritonPythonModel:
    def initialize(self, args):
        global DEVICE
        DEVICE = int(args["model_instance_device_id"])
        self.name = args["model_name"]

    def execute(self, requests):
        return [pb_utils.InferenceResponse([self.answer(each.inputs()[0])]) for each in requests]
"""


def device_code(body):
    lines = "".join(f"        {line}\n" for line in body.strip().splitlines())
    return f"{HEADER}\n    def answer(self, x):\n{lines}"


# Of a caller, the first element says what to do, and the answer has facts after the result.
CALLER = """
data = x.as_numpy()
command = int(data[0, 0])
gpu = pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, 0)
cpu = pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU)
if command == 0:  # facts
    known = [exported(), library.fake_cuda_opened_count(), os.getpid()]
    return pb_utils.Tensor("Y", np.array([known], np.float32))
if command == 1:
    y = infer("double", upload("X", data))
elif command == 2:
    y = infer("same", upload("X", data))
elif command == 3:
    y = infer("double", upload("X", data), preferred_memory=cpu)
elif command == 4:
    y = infer("host", upload("X", data), preferred_memory=gpu)
elif command == 5:
    y = infer("host", upload("X", data))
elif command == 6:
    y = infer("double", pb_utils.Tensor.from_dlpack("X", infer("double", upload("X", data))))
elif command == 7:
    library.fake_cuda_fail(b"cuIpcGetMemHandle", 1)
    try:
        y = infer("double", upload("X", data))
    finally:
        library.fake_cuda_fail(b"cuIpcGetMemHandle", 0)
elif command == 8:
    y = infer("cannot", upload("X", data))
elif command == 9:
    y = infer("dies", upload("X", data))
elif command == 11:
    y = infer("cached", pb_utils.Tensor("X", data))
elif command == 10:
    y = infer("far", upload("X", data))
result = values(y)[0, -1]
return pb_utils.Tensor("Y", np.array([[result, y.is_cpu()]], np.float32))
"""
DOUBLE = """
assert not x.is_cpu(), "expected an input on the device"
return upload("Y", values(x) * 2)
"""
CANNOT = device_code('return upload("Y", values(x) * 2)').replace(
    "        self.name",
    '        library.fake_cuda_fail(b"cuIpcOpenMemHandle_v2", 1)\n        self.name',
)
# Calls another model, which it awaits.
AWAITING = (
    HEADER[: HEADER.index("    def execute")]
    + """
    async def execute(self, requests):
        return [await self.answer(request.inputs()[0].as_numpy()) for request in requests]

    async def answer(self, data):
        request = pb_utils.InferenceRequest(
            inputs=[upload("X", data)], requested_output_names=["Y"], model_name="cannot_awaited")
        response = await request.async_exec()
        if response.has_error():
            raise pb_utils.TritonModelException(response.error().message())
        tensor = response.output_tensors()[0]
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", values(tensor))])
"""
)
# Answers with the number of requests that it got together.
COUNTING = device_code('return upload("Y", values(x) * 0 + self.count)').replace(
    "    def execute(self, requests):\n",
    "    def execute(self, requests):\n        self.count = len(requests)\n",
)
BATCHES = "max_queue_delay_microseconds: 60000000 preferred_batch_size: [4]"
# Takes whole batches, as our backends of frameworks do, and adds the number of their rows.
WHOLE = """
import numpy as np
from pytriton.runtime.cuda.device_array import copy_to_device
from pytriton.runtime.pb_utils.gpu_arrays import GpuArray

class TritonPythonModel:
    takes_gpu_arrays = True

    def execute_batch(self, batch):
        x = batch.inputs["X"]
        data = x if isinstance(x, np.ndarray) else x.copy()
        y = (data + len(data) * 10 + isinstance(x, np.ndarray) * 1000).astype(np.float32)
        return {"Y": GpuArray.over(copy_to_device(y, 0))}
"""
REPOSITORY = {
    "make": model(device_code('return upload("Y", values(x) + 1)')),
    "double": model(device_code(DOUBLE), config(ON_DEVICE)),
    "same": model(device_code('return pb_utils.Tensor.from_dlpack("Y", x)'), config(ON_DEVICE)),
    "host": model(device_code('return pb_utils.Tensor("Y", x.as_numpy() * 3)')),
    "caller": model(device_code(CALLER)),
    "cannot": model(CANNOT, config(ON_DEVICE)),
    "cannot_either": model(CANNOT, config(ON_DEVICE)),
    "cannot_awaited": model(CANNOT, config(ON_DEVICE)),
    "awaits_cannot": model(AWAITING),
    "to_cannot": ensemble("make", "cannot_either"),
    "dies": model(device_code("os._exit(3)"), config(ON_DEVICE)),
    "cached": model(
        device_code('return upload("Y", values(x) * 7)'), config("response_cache { enable: true }")
    ),
    "far": model(
        device_code('return pb_utils.Tensor("Y", values(x) * x.is_cpu())'),
        config(ON_DEVICE + "\ninstance_group [{ kind: KIND_GPU gpus: [1] }]"),
    ),
    "chain": ensemble("make", "double", "same", "double"),
    "ends_on_host": ensemble("make", "host"),
    "batched": model(COUNTING, config(f"{ON_DEVICE}\ndynamic_batching {{ {BATCHES} }}")),
    "whole": model(WHOLE, config(f"dynamic_batching {{ {BATCHES} }}")),
    "to_whole": ensemble("make", "whole", "double"),
    "to_batched": ensemble("make", "batched"),
}
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "0,1", "FAKE_CUDA_DEVICES": "2"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with starter(tmp_path_factory.mktemp("servers")) as start:
        environment = {**ENVIRONMENT, "LD_LIBRARY_PATH": str(library_folder())}
        command = (sys.executable, gpu_server.__file__)
        settings = {"environment": environment, "command": command}
        yield start(
            REPOSITORY, flags=["--cache-config=local,size=1048576"], **settings
        ).await_ready()


def counts(server):
    """The values of the metric, by model and reason."""
    found = {}
    for line in call(server.metrics_port, "/metrics").body.decode().splitlines():
        if line.startswith("nv_inference_gpu_tensors_total{"):
            labels, value = line.split("} ")
            parts = dict(part.split("=") for part in labels.split("{")[1].split(","))
            found[parts["model"].strip('"'), parts["reason"].strip('"')] = int(float(value))
    return found


def counted(server, before, model, reason):
    return counts(server).get((model, reason), 0) - before.get((model, reason), 0)


def facts(server):
    exported, opened, process = server.infer("caller", 0)
    return int(exported), int(opened), int(process)


def test_ensemble_passes_tensors_from_step_to_step_on_the_device(server):
    before = counts(server)
    for value in range(3):
        assert server.infer("chain", value, 7.0)[1] == 32.0
    shared = {name: counted(server, before, name, "") for name in ("double", "same")}

    assert shared == {"double": 6, "same": 3}


def test_small_requests_that_come_together_stay_on_the_device_too(server):
    """Others like them travel as columns, which are in host memory."""

    async def ask(client: triton_grpc.InferenceServerClient, number: int) -> float:
        tensor = triton_grpc.InferInput("X", [1, 1], "FP32")
        tensor.set_data_from_numpy(np.array([[number]], np.float32))
        return (await client.infer("chain", [tensor])).as_numpy("Y").item()

    async def ask_all() -> list[float]:
        async with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
            for _ in range(3):
                answers = await asyncio.gather(*(ask(client, number) for number in range(32)))
        return answers

    before = counts(server)
    answers = asyncio.run(ask_all())

    assert answers == [4.0 * (number + 1) for number in range(32)]
    assert counted(server, before, "double", "") == 2 * 96


def test_step_that_takes_its_input_on_the_host_gets_it_there(server):
    before = counts(server)

    assert server.infer("ends_on_host", 1.0, 2.0) == [6.0, 9.0]
    assert counts(server) == before


@pytest.mark.parametrize(
    "command, factor, is_cpu",
    [(1, 2, 0), (2, 1, 0), (3, 2, 1), (4, 3, 0), (5, 3, 1), (6, 4, 0)],
    ids=["double", "own memory back", "prefers host", "prefers GPU", "host", "passed on"],
)
def test_call_of_another_model_has_its_tensors_where_they_belong(server, command, factor, is_cpu):
    assert server.infer("caller", command, 5.0) == [5.0 * factor, is_cpu]


def test_memory_is_opened_once_and_given_back_after_each_call(server):
    before = facts(server)[1]
    for _ in range(20):
        server.infer("caller", 1, 5.0)

    assert eventually(lambda: facts(server)[0] == 0)
    # Each answer of the fake's model is an allocation of its own, of which few stay open.
    assert facts(server)[1] <= before + 32


def test_memory_that_cannot_be_exported_goes_through_the_host(server):
    before = counts(server)

    with pytest.raises(InferFailedError, match="expected an input on the device"):
        server.infer("caller", 7, 5.0)
    assert eventually(lambda: counted(server, before, "caller", "cannot_export") == 1)


def test_call_whose_memory_cannot_be_opened_is_repeated_through_the_host(server):
    before = counts(server)

    assert server.infer("caller", 8, 5.0) == [10.0, 0.0]
    assert server.infer("caller", 8, 5.0) == [10.0, 0.0]
    assert eventually(lambda: counted(server, before, "caller", "cannot_open") == 1)
    assert eventually(lambda: facts(server)[0] == 0)


def test_ensemble_whose_memory_cannot_be_opened_goes_through_the_host_from_then_on(server):
    with pytest.raises(InferFailedError, match=r"503: .*cannot be opened"):
        server.infer("to_cannot", 1.0)

    assert server.infer("to_cannot", 1.0) == [4.0]


def test_call_after_an_awaited_one_whose_memory_cannot_be_opened_goes_through_the_host(server):
    with pytest.raises(InferFailedError, match="cannot be opened"):
        server.infer("awaits_cannot", 1.0)

    assert server.infer("awaits_cannot", 1.0) == [2.0]


def answers(server, command):
    try:
        return server.infer("caller", command, 5.0)
    except InferFailedError:
        return None


def test_model_on_another_device_gets_its_input_on_the_host(server):
    before = counts(server)

    assert server.infer("caller", 10, 5.0) == [5.0, 1.0]
    assert eventually(lambda: counted(server, before, "caller", "other_device") == 1)


def test_outputs_that_the_server_keeps_come_on_the_host(server):
    first = server.infer("caller", 11, 5.0)
    again = server.infer("caller", 11, 5.0)

    assert first == again == [35.0, 1.0]


def test_memory_is_given_back_by_a_consumer_that_dies(server):
    with pytest.raises(InferFailedError, match="not healthy"):
        server.infer("caller", 9, 5.0)

    assert eventually(lambda: facts(server)[0] == 0)


def test_producer_that_dies_does_not_harm_consumers(server):
    assert server.infer("caller", 1, 5.0) == [10.0, 0.0]
    process = facts(server)[2]
    os.kill(process, signal.SIGKILL)

    assert eventually(lambda: answers(server, 1) == [10.0, 0.0])
    assert facts(server)[2] != process


def test_requests_with_tensors_on_the_device_share_batches(server):
    with ThreadPoolExecutor(4) as threads:
        sizes = list(threads.map(lambda value: server.infer("to_batched", value)[0], range(4)))

    assert sizes == [4.0] * 4


def test_whole_batch_is_joined_on_the_device_and_its_outputs_stay_there(server):
    before = counts(server)
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda value: server.infer("to_whole", value)[0], range(4)))

    assert answers == [(value + 1 + 40) * 2 for value in range(4)]
    assert counted(server, before, "whole", "") == 4
    assert counted(server, before, "double", "") == 4


def test_model_of_whole_batches_takes_inputs_of_clients_from_the_host(server):
    large = np.full((4, 1 << 15), 5, np.float32)
    answer = infer(server.http_port, "whole", {"X": large})["Y"]

    assert np.array_equal(answer, large + 1040)
