# SPDX-License-Identifier: Apache-2.0
"""Large tensors in shared memory of the client, beside the same over the wire.

On a tritonserver of its own, theirs or ours. The load comes from threads with raw sockets, which
fill the memory once and only name it afterwards.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from tritonclient.grpc import service_pb2

from benchmarks import http2, servers
from benchmarks.large_client import LargeTensorClient
from benchmarks.large_grpc_client import LargeCallClient
from benchmarks.measurement import Measurement
from benchmarks.servers import RunningServer, System

ROWS = ("shared",)
MEBIBYTES = 16
CONCURRENCIES = (1, 4)
TURNS = 3  # of each kind of load in turns; the best one counts, as the machine may be busy
REGION = "benchmark"
FOLDER = pathlib.Path("/dev/shm")  # noqa: S108  where Linux has shared memory
ANSWER_BYTES = 64 << 10

Call = Callable[[], object]


def measure(
    system: System, port: int, seconds: float, mebibytes: int = MEBIBYTES
) -> list[Measurement]:
    """Start a server with the identity model, and measure all loads."""
    command = [*system.command]
    if system.key == "repository":  # the other one of this release always allows it
        command.append("--allow-client-shm=true")
    system = dataclasses.replace(system, command=command, models=("Ident",))
    with servers.running(system, port) as server, _memory(server, mebibytes) as memory:
        return [
            figure
            for concurrency in CONCURRENCIES
            for figure in _measure(server, memory, concurrency, seconds)
        ]


def _measure(
    server: RunningServer, memory: Memory, concurrency: int, seconds: float
) -> list[Measurement]:
    with contextlib.ExitStack() as stack:
        places = range(concurrency)
        loads: dict[str, Sequence[Call]] = {
            "HTTP, wire": [_wire_call(stack, server, memory) for _ in places],
            "HTTP, shared memory": [_http_call(stack, server, memory, at) for at in places],
            "gRPC, shared memory": [_grpc_call(stack, server, memory, at) for at in places],
        }
        rates = dict.fromkeys(loads, 0.0)
        for _ in range(TURNS):
            for title, calls in loads.items():
                rates[title] = max(rates[title], _rate(calls, seconds))
        memory.check(concurrency)
    row = f"identity {memory.size >> 20} MiB c={concurrency}"
    return [Measurement(f"{row}, {title}", rate, "req/s") for title, rate in rates.items()]


def _rate(calls: Sequence[Call], seconds: float) -> float:
    """Calls a second, one at a time in each thread."""
    counts = [0] * len(calls)
    end = time.monotonic() + seconds

    def run(index: int) -> None:
        while time.monotonic() < end:
            calls[index]()
            counts[index] += 1

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.monotonic() - begin)


class Memory:
    """An object of shared memory with places for inputs and outputs."""

    def __init__(self, path: pathlib.Path, size: int, places: int) -> None:
        self.path = path
        self.size = size  # of a tensor
        self.places = places
        self.tensor = np.random.default_rng(0).random(size // 4, dtype=np.float32).tobytes()
        path.write_bytes((self.tensor + bytes(size)) * places)

    def parameters(self, place: int, *, is_output: bool) -> dict[str, int | str]:
        """Returns the parameters of a tensor."""
        return {
            "shared_memory_region": REGION,
            "shared_memory_offset": (2 * place + is_output) * self.size,
            "shared_memory_byte_size": self.size,
        }

    def check(self, places: int) -> None:
        """A server that writes other bytes is not worth measuring."""
        content = self.path.read_bytes()
        if content[: 2 * places * self.size] != self.tensor * 2 * places:
            raise RuntimeError("the identity model wrote other bytes than it was given")


@contextlib.contextmanager
def _memory(server: RunningServer, mebibytes: int) -> Iterator[Memory]:
    path = FOLDER / f"pytriton-benchmark-{server.port}"
    try:
        memory = Memory(path, mebibytes << 20, max(CONCURRENCIES))
        body = {"key": f"/{path.name}", "byte_size": 2 * memory.size * memory.places}
        url = f"{server.url}/v2/systemsharedmemory/region/{REGION}/register"
        with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=30):
            yield memory
    finally:
        path.unlink(missing_ok=True)


def _wire_call(stack: contextlib.ExitStack, server: RunningServer, memory: Memory) -> Call:
    client = LargeTensorClient(server.port, memory.size >> 20)
    stack.callback(client.close)
    return client.call


def _http_call(
    stack: contextlib.ExitStack, server: RunningServer, memory: Memory, place: int
) -> Call:
    x = {"name": "x", "shape": [1, memory.size // 4], "datatype": "FP32"}
    document = {
        "inputs": [{**x, "parameters": memory.parameters(place, is_output=False)}],
        "outputs": [{"name": "y", "parameters": memory.parameters(place, is_output=True)}],
    }
    body = json.dumps(document).encode()
    head = f"POST /v2/models/Ident/infer HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n"
    request = head.encode() + body
    connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def call() -> None:
        connection.sendall(request)
        answer = connection.recv(ANSWER_BYTES)
        while not answer.endswith(b"}"):  # it is short, and ends with its JSON
            answer += connection.recv(ANSWER_BYTES)
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"expected an answer with status 200, got {answer!r}")

    return call


def _grpc_call(
    stack: contextlib.ExitStack, server: RunningServer, memory: Memory, place: int
) -> Call:
    message = service_pb2.ModelInferRequest(model_name="Ident")
    x = message.inputs.add(name="x", datatype="FP32", shape=[1, memory.size // 4])
    y = message.outputs.add(name="y")
    for tensor, is_output in ((x, False), (y, True)):
        for key, value in memory.parameters(place, is_output=is_output).items():
            field = "string_param" if isinstance(value, str) else "int64_param"
            setattr(tensor.parameters[key], field, value)
    content = message.SerializeToString()
    connection = stack.enter_context(http2.connect(server.grpc_port))
    client = LargeCallClient(connection, ANSWER_BYTES)
    client.open()
    request = b"\0" + len(content).to_bytes(4, "big") + content
    return lambda: client.call(request)
