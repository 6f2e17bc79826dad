# SPDX-License-Identifier: Apache-2.0
"""CUDA shared memory of clients, with a real server and a library that stands for CUDA's driver."""

from __future__ import annotations

import contextlib
import operator
import sys
from base64 import b64encode

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from tests.access_policies import PolicyFolder
from tests.cuda import gpu_server
from tests.cuda.device_process import DeviceProcess
from tests.cuda.fake_library import library_folder, needs_compiler
from tests.e2e.http_client import call
from tests.e2e.waiting import eventually
from tests.repository_e2e.model_files import HOLD, code, config, model
from tests.repository_e2e.server_process import starter

pytestmark = [needs_compiler, pytest.mark.e2e]
COUNT = 1 << 16
SIZE = 4 * COUNT
ON_DEVICE = 'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }'
# Returns its input, which has to be on the device, and says how many regions are open.
DEVICE = """
import ctypes
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = request.inputs()[0]
            assert not x.is_cpu(), "expected an input on the device"
            y = pb_utils.Tensor.from_dlpack("Y", x)
            responses.append(pb_utils.InferenceResponse([y]))
        return responses
"""
FACTS = """
import ctypes
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        library = ctypes.CDLL("libcuda.so.1")
        responses = []
        for request in requests:
            x = request.inputs()[0].as_numpy()
            opened = library.fake_cuda_opened_count() if x[0, 0] < 0 else x.sum()
            y = np.full_like(x, opened)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", y)]))
        return responses
"""
ENTER = "open(os.path.join(os.path.dirname(__file__), 'entered'), 'w').close()\n"
REPOSITORY = {
    "plain": model(code("y = x + 1")),
    "device": model(DEVICE, config(ON_DEVICE)),
    "facts": model(FACTS),
    "held": model(code(ENTER + HOLD + "\ny = x")),
    "dies": model(code("os._exit(3) if x[0, 0] == 13 else None\ny = x")),
}
CLIENTS = {"http": triton_http, "grpc": triton_grpc}


@contextlib.contextmanager
def start_with(folder, repository, flags=()):
    environment = {"LD_LIBRARY_PATH": str(library_folder()), "CUDA_VISIBLE_DEVICES": "0"}
    command = (sys.executable, gpu_server.__file__)
    flags = ["--allow-client-shm=true", *flags]
    with starter(folder) as start:
        settings = {"flags": flags, "environment": environment, "command": command}
        yield start(repository, **settings).await_ready()


@pytest.fixture(scope="module", params=[0, 2], ids=["one process", "front ends"])
def server(tmp_path_factory, request):
    flags = [f"--frontend-processes={request.param}"]
    with start_with(tmp_path_factory.mktemp("servers"), REPOSITORY, flags) as server:
        yield server


@pytest.fixture(params=["http", "grpc"])
def protocol(request):
    return request.param


@pytest.fixture
def client(server, protocol):
    with server.http_client() if protocol == "http" else server.grpc_client() as client:
        yield client
        client.unregister_cuda_shared_memory()


@pytest.fixture
def device():
    process = DeviceProcess()
    yield process
    process.close()


@pytest.fixture
def regions(client, device):
    """An input region and an output region, and their addresses in the client's process."""
    return {name: register(client, device, name) for name in ("in", "out")}


def register(client, device, name, size=SIZE):
    address, handle = device.allocate(size)
    client.register_cuda_shared_memory(name, b64encode(handle), 0, size)
    return address


def infer(client, protocol, name, *, shape=(1, COUNT), inputs="in", outputs="out", **options):
    library = CLIENTS[protocol]
    x = library.InferInput("X", shape, "FP32")
    size = int(np.prod(shape)) * 4
    x.set_shared_memory(inputs, size, options.get("offset", 0))
    y = library.InferRequestedOutput("Y")
    if outputs:
        y.set_shared_memory(outputs, options.get("room", size), 0)
    return client.infer(name, [x], outputs=[y], headers=options.get("headers"))


def values(start=0):
    return (np.arange(COUNT, dtype=np.float32) + start).reshape(1, COUNT)


@pytest.mark.parametrize("name", ["plain", "device"])
def test_tensors_go_from_the_clients_memory_to_the_model_and_back(
    client, protocol, device, regions, name
):
    for start in range(3):
        device.write(regions["in"], values(start))
        result = infer(client, protocol, name)
        answer = device.read(regions["out"], (1, COUNT))

        assert np.array_equal(answer, values(start) + (name == "plain"))
        output = result.get_output("Y")
        shape = output["shape"] if protocol == "http" else output.shape
        assert list(shape) == [1, COUNT]


def test_output_may_come_in_the_answer(client, protocol, device, regions):
    device.write(regions["in"], values())
    result = infer(client, protocol, "device", outputs="")

    assert np.array_equal(result.as_numpy("Y"), values())


def test_input_may_begin_inside_of_its_region(client, protocol, device, regions):
    device.write(regions["in"], values())
    infer(client, protocol, "plain", shape=(2, 8), offset=400)

    expected = np.arange(100, 116, dtype=np.float32).reshape(2, 8) + 1
    assert np.array_equal(device.read(regions["out"], (2, 8)), expected)


def test_status_names_the_regions(client, protocol, regions):
    status = client.get_cuda_shared_memory_status()
    if protocol == "grpc":
        named = {name: each.byte_size for name, each in status.regions.items()}
        status = [{"name": name, "device_id": 0, "byte_size": named[name]} for name in named]

    status.sort(key=operator.itemgetter("name"))  # a map of protobuf has no order
    assert status == [{"name": name, "device_id": 0, "byte_size": SIZE} for name in ("in", "out")]


def test_regions_are_opened_once_and_closed_when_they_are_unregistered(
    client, protocol, device, regions
):
    for _ in range(5):
        infer(client, protocol, "facts")
    asked = np.full((1, 1), -1, np.float32)

    def opened():
        library = CLIENTS[protocol]
        x = library.InferInput("X", (1, 1), "FP32")
        x.set_data_from_numpy(asked)
        return client.infer("facts", [x]).as_numpy("Y")[0, 0]

    assert opened() == 2
    client.unregister_cuda_shared_memory("in")
    assert eventually(lambda: opened() == 1)
    client.unregister_system_shared_memory()
    assert opened() == 1
    client.unregister_cuda_shared_memory()
    assert eventually(lambda: opened() == 0)


@pytest.mark.parametrize("name", ["plain", "device"])
def test_handle_that_means_nothing_is_an_error_of_each_request(
    server, client, protocol, device, name
):
    client.register_cuda_shared_memory("bad", b64encode(b"x" * 63 + b"\0"), 0, SIZE)
    register(client, device, "out")

    for _ in range(2):
        with pytest.raises(InferenceServerException, match="region 'bad' cannot be opened"):
            infer(client, protocol, name, inputs="bad")
    assert "region 'bad' cannot be opened" not in server.output  # it is no failure of the model


def test_client_that_is_killed_harms_nobody(server, client, protocol):
    victim = DeviceProcess()
    register(client, victim, "in")
    register(client, victim, "out")
    infer(client, protocol, "plain")
    victim.kill()

    infer(client, protocol, "plain")  # its memory lives as long as somebody has it open
    client.unregister_cuda_shared_memory()
    with pytest.raises(InferenceServerException, match="Unable to find shared memory region"):
        infer(client, protocol, "plain")
    victim.close()
    assert server.get("/v2/health/ready").status == 200


def test_worker_that_dies_leaves_nothing_and_its_heir_opens_anew(client, protocol, device, regions):
    device.write(regions["in"], np.full((1, COUNT), 13, np.float32))
    with pytest.raises(InferenceServerException):
        infer(client, protocol, "dies")
    device.write(regions["in"], values())

    def answers():
        try:
            infer(client, protocol, "dies")
        except InferenceServerException:
            return False
        return np.array_equal(device.read(regions["out"], (1, COUNT)), values())

    assert eventually(answers)


def test_request_that_waits_while_its_region_vanishes_gets_an_error(
    server, client, protocol, device, regions
):
    if protocol != "grpc":
        pytest.skip("one protocol is enough: the engine decides")
    folder = server.repository / "held" / "1"
    (folder / "hold").touch()
    device.write(regions["in"], values())
    results = []

    def on_answer(result, error):
        results.append((result, error))

    x = triton_grpc.InferInput("X", (1, COUNT), "FP32")
    x.set_shared_memory("in", SIZE)
    y = triton_grpc.InferRequestedOutput("Y")
    y.set_shared_memory("out", SIZE)
    try:
        client.async_infer("held", [x], callback=on_answer, outputs=[y])
        assert eventually((folder / "entered").exists)
        client.async_infer("held", [x], callback=on_answer, outputs=[y])
        assert eventually(lambda: pending_count(server) == 1)
        client.unregister_cuda_shared_memory("in")
    finally:
        (folder / "hold").unlink()
        (folder / "entered").unlink(missing_ok=True)
    assert eventually(lambda: len(results) == 2)

    errors = [str(error) for _, error in results if error is not None]
    assert len(errors) == 1
    assert "Unable to find cuda shared memory region: 'in'" in errors[0]


def pending_count(server):
    """How many requests wait for the model `held`."""
    prefix = 'nv_inference_pending_request_count{model="held"'
    lines = call(server.metrics_port, "/metrics").body.decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(prefix))


def test_request_that_repeats_uses_the_memory_that_has_the_name_now(
    client, protocol, device, regions
):
    for start in range(4):
        device.write(regions["in"], values(start))
        infer(client, protocol, "device")
    client.unregister_cuda_shared_memory("in")
    client.unregister_cuda_shared_memory("out")
    source, target = (register(client, device, name) for name in ("in", "out"))
    answers = []
    for start in range(10, 14):
        device.write(source, values(start))
        answers.append(infer(client, protocol, "device").get_response())

    assert np.array_equal(device.read(target, COUNT), values(13).ravel())
    assert np.array_equal(device.read(regions["out"], COUNT), values(3).ravel())
    assert all(answer == answers[0] for answer in answers)


def test_request_that_repeats_is_refused_without_its_region(client, protocol, device, regions):
    for _ in range(4):
        infer(client, protocol, "device")
    client.unregister_cuda_shared_memory("out")

    with pytest.raises(InferenceServerException, match="shared memory region: 'out'"):
        infer(client, protocol, "device")


def test_answers_to_a_request_that_repeats_say_what_the_model_has_returned(
    client, protocol, regions
):
    shapes = ((1, COUNT), (2, COUNT // 2)) * 4
    outputs = [infer(client, protocol, "device", shape=each).get_output("Y") for each in shapes]

    told = [each["shape"] if protocol == "http" else each.shape for each in outputs]
    assert [tuple(each) for each in told] == list(shapes)


POLICY = """
[principals.owner]
apis = ["*"]
[principals.guest]
apis = ["inference"]
models = ["plain"]
"""


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_request_that_repeats_is_refused_for_those_who_may_not_use_its_model(
    tmp_path, device, protocol
):
    policy = PolicyFolder(tmp_path, POLICY)
    keys = {name: {"authorization": f"Bearer {policy.key(name)}"} for name in ("owner", "guest")}
    flags = [f"--auth-config={policy.path}"]
    with contextlib.ExitStack() as stack:
        repository = {"device": REPOSITORY["device"]}
        server = stack.enter_context(start_with(tmp_path / "servers", repository, flags))
        open_client = server.http_client if protocol == "http" else server.grpc_client
        client = stack.enter_context(open_client())
        for name in ("in", "out"):
            raw = b64encode(device.allocate(SIZE)[1])
            client.register_cuda_shared_memory(name, raw, 0, SIZE, headers=keys["owner"])
        for _ in range(4):
            infer(client, protocol, "device", headers=keys["owner"])

        with pytest.raises(InferenceServerException, match="guest"):
            infer(client, protocol, "device", headers=keys["guest"])
