# SPDX-License-Identifier: Apache-2.0
"""Compares the processor time that two checkouts of this project need for the same requests.

    python -m benchmarks.processor_overhead ../before . --rounds 5

Each round starts a server of each checkout, one after the other, sends both the same requests, and
reads the processor times of all processes of the server and of the process that binds the model. It
prints the medians, in microseconds for a request, and their relation. Wall time plays no part, so
other programs on the machine disturb it less.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from tests.free_ports import free_ports

CONNECTIONS = 32
SERVER = """
import sys
import numpy as np
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig
http, grpc, metrics = map(int, sys.argv[1:4])
config = TritonConfig(
    http_port=http, grpc_port=grpc, metrics_port=metrics, frontend_processes=0,
    **({"trace_config": [f"triton,file={sys.argv[4]}", "level=TIMESTAMPS", f"rate={sys.argv[5]}"]}
       if int(sys.argv[5]) else {}),
)
row = Tensor(name="x", dtype=np.float32, shape=(1,))
with Triton(config=config) as triton:
    size = ModelConfig(max_batch_size=64)
    triton.bind("Same", lambda requests: requests, [row], [row], config=size)
    triton.run()
    print("ready", flush=True)
    sys.stdin.read()
"""


def processor_s(pid: int) -> float:
    """The processor time of a process and of its children, as clock_getcpuclockid(3) names it."""
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    own = time.clock_gettime((~pid << 3) | 2)
    return own + sum(processor_s(int(child)) for child in children)


def message(number: int, *, has_ids: bool) -> bytes:
    tensor = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}
    document = {"inputs": [tensor]} | ({"id": f"request-{number:06}"} if has_ids else {})
    body = json.dumps(document)
    head = f"POST /v2/models/Same/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    return (head + body).encode()


async def send(port: int, count: int, clients: int, *, has_ids: bool) -> None:
    """Send requests over several connections, one after another on each."""
    numbers = iter(range(count))

    async def ask() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in numbers:
            writer.write(message(number, has_ids=has_ids))
            head = await reader.readuntil(b"\r\n\r\n")
            length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length))
        writer.close()

    await asyncio.gather(*[ask() for _ in range(clients)])


def measure(checkout: pathlib.Path, options: argparse.Namespace) -> float:
    """Returns the microseconds for each request of a fresh server of a checkout."""
    ports = free_ports(3)
    environment = os.environ | {"PYTHONPATH": str(checkout.resolve() / "src")}
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            [sys.executable, "-c", SERVER, *map(str, ports), f"{folder}/t.json", str(options.rate)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as server,
    ):
        assert server.stdin is not None
        assert server.stdout is not None
        while server.stdout.readline().strip() != b"ready":
            assert server.poll() is None, "the server has ended"
        ids = options.ids
        asyncio.run(send(ports[0], options.count // 10, options.clients, has_ids=ids))  # warm it up
        before = processor_s(server.pid)
        asyncio.run(send(ports[0], options.count, options.clients, has_ids=ids))
        used = processor_s(server.pid) - before
        server.stdin.close()
    count: int = options.count
    return used / count * 1e6


def main() -> None:
    """Measure, and print the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("before", type=pathlib.Path)
    parser.add_argument("after", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=20_000, help="requests in each round")
    parser.add_argument("--clients", type=int, default=CONNECTIONS)
    parser.add_argument("--ids", action="store_true", help="give each request an id")
    parser.add_argument("--rate", type=int, default=0, help="trace one in so many; 0: none")
    options = parser.parse_args()
    found: dict[str, list[float]] = {"before": [], "after": []}
    for _ in range(options.rounds):
        for name, values in found.items():
            values.append(measure(getattr(options, name), options))
    medians = {name: statistics.median(values) for name, values in found.items()}
    for name, values in found.items():
        print(f"{name}: {medians[name]:.2f} us ({', '.join(f'{each:.2f}' for each in values)})")
    print(f"difference: {(medians['after'] / medians['before'] - 1) * 100:+.1f} %")


if __name__ == "__main__":
    main()
