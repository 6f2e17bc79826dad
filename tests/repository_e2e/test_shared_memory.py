# SPDX-License-Identifier: Apache-2.0
"""Tensors in shared memory of clients, by the official clients, and clients that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import pathlib
import queue
import signal
import subprocess
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as triton_grpc_aio
import tritonclient.http as triton_http
import tritonclient.http.aio as triton_http_aio
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

from tests.e2e.waiting import DEADLINE_S, eventually
from tests.repository_e2e.model_files import (
    DECOUPLED,
    HOLD,
    code,
    config,
    decoupled_code,
    ensemble,
    model,
)

FOLDER = pathlib.Path("/dev/shm")
pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="objects are files in /dev/shm on Linux only"
)
ALLOWED = ["--allow-client-shm=true"]
LARGE = 1 << 20  # bytes, which are copied in a thread
ENTER = "open(os.path.join(os.path.dirname(__file__), 'entered'), 'w').close()\n"
REPOSITORY = {
    "plain": model(code("y = x + 1")),
    "echo": model(),
    "held": model(code(ENTER + HOLD + "\ny = x")),
    "cached": model(code("y = x + 1"), config("response_cache { enable: true }")),
    "chain": ensemble("plain", "plain"),
    "count": model(
        decoupled_code("for number in range(3): send(x + number)"),
        settings=config(DECOUPLED, max_batch_size=8),
    ),
}
CLIENTS = {"http": triton_http, "grpc": triton_grpc}


@pytest.fixture(scope="module", params=[0, 2], ids=["one process", "front ends"])
def server(start_module_server, request):
    flags = [*ALLOWED, f"--frontend-processes={request.param}", "--cache-config=local,size=1048576"]
    return start_module_server(REPOSITORY, flags=flags).await_ready()


@pytest.fixture(params=["http", "grpc"])
def protocol(request):
    return request.param


@contextlib.contextmanager
def open_client(server, protocol):
    with server.http_client() if protocol == "http" else server.grpc_client() as client:
        yield client


class Memory:
    """An object of shared memory of this test, and a name for the region."""

    def __init__(self, size):
        self.size = size
        self.name = f"region-{uuid.uuid4().hex}"
        self.key = f"/pytriton-test-{uuid.uuid4().hex}"
        self.handle = shm.create_shared_memory_region(self.name, self.key, size)

    @property
    def path(self):
        return FOLDER / self.key[1:]

    def write(self, array, offset=0):
        shm.set_shared_memory_region(self.handle, [array], offset)

    def read(self, shape, offset=0, dtype=np.float32):
        return shm.get_contents_as_numpy(self.handle, dtype, shape, offset).copy()

    def register(self, client, name=None, offset=0, size=None):
        client.register_system_shared_memory(
            name or self.name, self.key, self.size if size is None else size, offset
        )


@pytest.fixture
def make_memory():
    made = []

    def make(size=4096):
        made.append(Memory(size))
        return made[-1]

    yield make
    for memory in made:
        with contextlib.suppress(FileNotFoundError):
            shm.destroy_shared_memory_region(memory.handle)


def tensor(module, memory, array, offset=0, size=None, datatype="FP32"):
    made = module.InferInput("X", list(array.shape), datatype)
    made.set_shared_memory(memory.name, array.nbytes if size is None else size, offset)
    return made


def wanted(module, memory, size, offset=0):
    made = module.InferRequestedOutput("Y")
    made.set_shared_memory(memory.name, size, offset)
    return made


def test_memory_that_a_client_only_claims_to_have_is_not_read(server, protocol, make_memory):
    module = CLIENTS[protocol]
    memory = make_memory()
    size = 1 << 50  # bytes, more than any machine has; the object takes no memory
    os.truncate(memory.path, size)
    x = np.zeros((1, 1), np.float32)
    whole = module.InferInput("X", [1, size // 4], "FP32")
    whole.set_shared_memory(memory.name, size)
    with open_client(server, protocol) as client:
        memory.register(client, size=size)
        with pytest.raises(InferenceServerException, match=f"Expected 4, got {size}"):
            client.infer("plain", [tensor(module, memory, x, size=size)])
        with pytest.raises(InferenceServerException, match=f"there is no room for {size}"):
            client.infer("plain", [whole])
        result = client.infer("plain", [tensor(module, memory, x)])
        client.unregister_system_shared_memory(memory.name)

    assert result.as_numpy("Y").tolist() == [[1]]


@pytest.mark.parametrize("name, expected", [("plain", 1), ("echo", 0), ("chain", 2), ("cached", 1)])
@pytest.mark.parametrize("columns", [4, LARGE // 4], ids=["small", "large"])
def test_input_and_output_are_in_shared_memory(
    server, protocol, make_memory, name, expected, columns
):
    module = CLIENTS[protocol]
    x = np.arange(columns, dtype=np.float32).reshape(1, -1)
    memory = make_memory(2 * x.nbytes)
    memory.write(x)
    with open_client(server, protocol) as client:
        memory.register(client)
        for _ in range(3):
            result = client.infer(
                name,
                [tensor(module, memory, x)],
                outputs=[wanted(module, memory, x.nbytes, x.nbytes)],
            )
        client.unregister_system_shared_memory(memory.name)

    if protocol == "http":
        assert result.get_output("Y").keys() == {"name", "datatype", "shape"}
    else:
        assert list(result.get_response().raw_output_contents) == [b""]
    assert np.array_equal(memory.read(x.shape, x.nbytes), x + expected)


def test_asynchronous_clients_use_shared_memory(server, make_memory):
    x = np.arange(LARGE // 4, dtype=np.float32).reshape(1, -1)

    async def infer(module, client_class, port, memory):
        async with client_class(f"127.0.0.1:{port}") as client:
            await client.register_system_shared_memory(memory.name, memory.key, memory.size)
            inputs = [tensor(module, memory, x)]
            outputs = [wanted(module, memory, x.nbytes, x.nbytes)]
            await asyncio.gather(
                *(client.infer("plain", inputs, outputs=outputs) for _ in range(8))
            )

    for module, client_class, port in (
        (triton_http, triton_http_aio.InferenceServerClient, server.http_port),
        (triton_grpc, triton_grpc_aio.InferenceServerClient, server.grpc_port),
    ):
        memory = make_memory(2 * x.nbytes)
        memory.write(x)
        asyncio.run(infer(module, client_class, port, memory))

        assert np.array_equal(memory.read(x.shape, x.nbytes), x + 1)


@pytest.mark.parametrize("columns", [4, LARGE // 4], ids=["small", "large"])
def test_streams_use_shared_memory(server, make_memory, columns):
    x = np.arange(columns, dtype=np.float32).reshape(1, -1)
    memory = make_memory(2 * x.nbytes)
    memory.write(x)
    outputs = [wanted(triton_grpc, memory, x.nbytes, x.nbytes)]
    answers = queue.Queue()
    with server.grpc_client() as client:
        memory.register(client)
        client.start_stream(lambda result, error: answers.put(result or error))
        client.async_stream_infer("count", [tensor(triton_grpc, memory, x)], outputs=outputs)
        decoupled = [answers.get(timeout=DEADLINE_S) for _ in range(3)]
        assert np.array_equal(memory.read(x.shape, x.nbytes), x + 2)
        unknown = tensor(triton_grpc, memory, x)
        unknown.set_shared_memory("unknown", 16)
        client.async_stream_infer("plain", [unknown])
        client.async_stream_infer("plain", [tensor(triton_grpc, memory, x)], outputs=outputs)
        error, coupled = answers.get(timeout=DEADLINE_S), answers.get(timeout=DEADLINE_S)

    assert all(isinstance(each, triton_grpc.InferResult) for each in [*decoupled, coupled])
    assert "Unable to find shared memory region: 'unknown'" in str(error)
    assert np.array_equal(memory.read(x.shape, x.nbytes), x + 1)


def test_unregistering_waits_for_requests_that_use_the_region(server, protocol, make_memory):
    module = CLIENTS[protocol]
    x = np.arange(4, dtype=np.float32).reshape(1, -1)
    memory = make_memory()
    memory.write(x)
    entered = server.repository / "held" / "1" / "entered"
    entered.unlink(missing_ok=True)
    server.hold("held")
    with open_client(server, protocol) as client, ThreadPoolExecutor(1) as threads:
        memory.register(client)
        inputs = [tensor(module, memory, x)]
        running = threads.submit(infer_held, server, protocol, inputs, memory)
        try:
            assert eventually(entered.exists)
            client.unregister_system_shared_memory(memory.name)
            with pytest.raises(InferenceServerException, match="Unable to find shared memory"):
                client.infer("plain", inputs)
        finally:
            server.let_go("held")
        running.result(DEADLINE_S)

    assert np.array_equal(memory.read(x.shape, 16), x)


def infer_held(server, protocol, inputs, memory):
    with open_client(server, protocol) as client:
        client.infer("held", inputs, outputs=[wanted(CLIENTS[protocol], memory, 16, 16)])


def test_object_that_changes_its_size_all_the_time_kills_nobody(server, protocol, make_memory):
    module = CLIENTS[protocol]
    x = np.ones((1, LARGE // 4), np.float32)
    memory = make_memory(2 * x.nbytes)
    is_over = threading.Event()

    def change_sizes():
        while not is_over.is_set():
            for size in (0, 4096, memory.size // 2, memory.size):
                os.truncate(memory.path, size)

    pids = {server.pid, *(each.pid for each in server.descendants())}
    changing = threading.Thread(target=change_sizes)
    with open_client(server, protocol) as client:
        memory.register(client)
        changing.start()
        try:
            for _ in range(50):
                with contextlib.suppress(InferenceServerException):
                    client.infer(
                        "plain",
                        [tensor(module, memory, x)],
                        outputs=[wanted(module, memory, x.nbytes, x.nbytes)],
                    )
        finally:
            is_over.set()
            changing.join()

    assert pids <= {server.pid, *(each.pid for each in server.descendants())}
    assert server.infer("echo", 5.0) == [5.0]


def outcome(client, *arguments, **settings):
    """The error of an inference; an empty text if there is none."""
    try:
        client.infer(*arguments, **settings)
    except InferenceServerException as error:
        return error.message()
    return ""


def test_registering_and_unregistering_under_load_loses_nothing(server, protocol, make_memory):
    module = CLIENTS[protocol]
    x = np.ones((1, LARGE // 4), np.float32)
    memory = make_memory(2 * x.nbytes)
    memory.write(x)
    outputs = [wanted(module, memory, x.nbytes, x.nbytes)]
    outcomes = []
    is_over = threading.Event()

    def load():
        with open_client(server, protocol) as client:
            while not is_over.is_set():
                outcomes.append(
                    outcome(client, "plain", [tensor(module, memory, x)], outputs=outputs)
                )

    threads = [threading.Thread(target=load) for _ in range(2)]
    with open_client(server, protocol) as client:
        memory.register(client)
        for thread in threads:
            thread.start()
        try:
            for _ in range(40):
                client.unregister_system_shared_memory(memory.name)
                memory.register(client)
            assert eventually(lambda: "" in outcomes)
        finally:
            is_over.set()
            for thread in threads:
                thread.join()
        client.unregister_system_shared_memory()

    unknown = f"Unable to find shared memory region: '{memory.name}'"
    assert set(outcomes) <= {"", unknown}


def test_client_that_was_killed_leaves_the_server_alone(server, make_memory):
    script = """
import sys, numpy as np, tritonclient.http as t, tritonclient.utils.shared_memory as shm
port, key = sys.argv[1:]
handle = shm.create_shared_memory_region("killed", key, 1 << 21)
client = t.InferenceServerClient(f"127.0.0.1:{port}")
client.register_system_shared_memory("killed", key, 1 << 21)
x = t.InferInput("X", [1, 1 << 18], "FP32")
x.set_shared_memory("killed", 1 << 20)
y = t.InferRequestedOutput("Y")
y.set_shared_memory("killed", 1 << 20, 1 << 20)
print("ready", flush=True)
while True:
    client.infer("plain", [x], outputs=[y])
"""
    key = f"/pytriton-test-{uuid.uuid4().hex}"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(server.http_port), key],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as client:
        try:
            assert client.stdout.readline() == b"ready\n"
        finally:
            client.send_signal(signal.SIGKILL)
    (FOLDER / key[1:]).unlink(missing_ok=True)

    assert server.infer("echo", 5.0) == [5.0]
    with server.http_client() as other:
        other.unregister_system_shared_memory("killed")


def test_regions_are_there_in_a_front_end_that_was_started_again(start_server, make_memory):
    server = start_server(
        {"plain": REPOSITORY["plain"]}, flags=[*ALLOWED, "--frontend-processes=2"]
    ).await_ready()
    x = np.ones((1, 4), np.float32)
    memory = make_memory()
    memory.write(x)
    with server.http_client() as client:
        memory.register(client)
    front_ends = [each for each in server.descendants() if "front end" in " ".join(each.cmdline())]
    workers = [each for each in front_ends if each.children() == []]
    for process in workers:
        process.kill()

    place = {"shared_memory_region": memory.name, "shared_memory_byte_size": 16}
    x_member = {"name": "X", "datatype": "FP32", "shape": [1, 4], "parameters": place}

    def serves():
        try:
            answer = server.post("/v2/models/plain/infer", {"inputs": [x_member]})
        except (OSError, http.client.HTTPException):
            return False
        return answer.json["outputs"][0]["data"] == [2.0, 2.0, 2.0, 2.0]

    assert eventually(serves)


@pytest.mark.parametrize("front_ends", [0, 2])
def test_shared_memory_is_off_unless_the_operator_allows_it(start_server, front_ends):
    flags = [f"--frontend-processes={front_ends}"]
    server = start_server({"plain": REPOSITORY["plain"]}, flags=flags).await_ready()
    disabled = (
        "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to "
        "enable."
    )

    for kind in ("system", "cuda"):
        for path, body in (
            ("region/r/register", {"key": "/k", "byte_size": 1}),
            ("region/r/unregister", None),
            ("unregister", None),
        ):
            answer = server.post(f"/v2/{kind}sharedmemory/{path}", body)
            assert (answer.status, answer.error) == (501, disabled)
        assert server.get(f"/v2/{kind}sharedmemory/status").json == []
    with server.grpc_client() as client:
        with pytest.raises(InferenceServerException, match="disabled") as caught:
            client.register_system_shared_memory("r", "/k", 1)
        with pytest.raises(InferenceServerException, match="disabled"):
            client.unregister_cuda_shared_memory("r")
        assert not client.get_system_shared_memory_status().regions
    assert caught.value.status() == "StatusCode.UNIMPLEMENTED"
