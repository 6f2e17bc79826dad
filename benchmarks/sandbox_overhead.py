# SPDX-License-Identifier: Apache-2.0
"""Compares models in sandboxes with the same ones without, on one server.

    python -m benchmarks.sandbox_overhead --rounds 40

Each round sends each model the same small requests, in another order each time. Rounds are short
and many, so that what else the machine does falls on all; there are several models of each kind, as
equal processes differ by some percent for all their lives. It prints requests in a second, and
the processor time of all processes of the server: the median of all rounds and the best tenth.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from benchmarks.principal_fairness import await_ready
from benchmarks.processor_overhead import processor_s
from tests.free_ports import free_ports

KINDS = {"free": "off", "confined": "on"}
MODELS = {f"{kind}{number}": kind for number in range(4) for kind in KINDS}
CODE = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("Y", pb_utils.get_input_tensor_by_name(request, "X").as_numpy())]
            )
            for request in requests
        ]
"""
CONFIG = """
backend: "python"
max_batch_size: 8
input [{ name: "X" data_type: TYPE_FP32 dims: [ -1 ] }]
output [{ name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }]
instance_group [{ kind: KIND_CPU }]
"""
PARAMETER = 'parameters {{ key: "SANDBOX" value {{ string_value: "{}" }} }}\n'


@contextlib.contextmanager
def serving() -> Iterator[tuple[int, int]]:
    """Serve all models; the process and the HTTP port of the server."""
    ports = free_ports(3)
    with tempfile.TemporaryDirectory() as folder:
        for name, kind in MODELS.items():
            place = pathlib.Path(folder, name)
            (place / "1").mkdir(parents=True)
            (place / "1" / "model.py").write_text(CODE)
            (place / "config.pbtxt").write_text(CONFIG + PARAMETER.format(KINDS[kind]))
        names = ("http", "grpc", "metrics")
        flags = [f"--{name}-port={port}" for name, port in zip(names, ports, strict=True)]
        command = [sys.executable, "-m", "pytriton.server", f"--model-repository={folder}"]
        command += [*flags, "--sandbox=on", "--sandbox-allow=off", "--http-address=127.0.0.1"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
            try:
                await_ready(ports[0])
                yield server.pid, ports[0]
            finally:
                server.terminate()


def message(name: str) -> bytes:
    tensor = {"name": "X", "shape": [1, 1], "datatype": "FP32", "data": [1]}
    body = json.dumps({"inputs": [tensor]})
    lines = (f"POST /v2/models/{name}/infer HTTP/1.1", f"Content-Length: {len(body)}")
    return ("\r\n".join((*lines, "Host: 127.0.0.1", "", body))).encode()


async def send(port: int, name: str, count: int, clients: int) -> None:
    """Send requests over several connections, one after another on each."""
    numbers = iter(range(count))
    text = message(name)

    async def ask() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in numbers:
            writer.write(text)
            head = await reader.readuntil(b"\r\n\r\n")
            assert b" 200 " in head, head
            length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length))
        writer.close()

    await asyncio.gather(*[ask() for _ in range(clients)])


def measure(pid: int, port: int, name: str, options: argparse.Namespace) -> tuple[float, float]:
    """Returns requests in a second, and microseconds of processor time for each."""
    used, began = processor_s(pid), time.perf_counter()
    asyncio.run(send(port, name, options.count, options.clients))
    elapsed = time.perf_counter() - began
    return options.count / elapsed, (processor_s(pid) - used) / options.count * 1e6


def main() -> None:
    """Measure, and print the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--count", type=int, default=200, help="requests in each round")
    parser.add_argument("--clients", type=int, default=16)
    options = parser.parse_args()
    rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
    costs: dict[str, list[float]] = {kind: [] for kind in KINDS}
    order = list(MODELS)
    with serving() as (pid, port):
        for name in MODELS:
            measure(pid, port, name, options)  # warm it up
        for _ in range(options.rounds):
            random.shuffle(order)
            for name in order:
                rate, cost = measure(pid, port, name, options)
                rates[MODELS[name]].append(rate)
                costs[MODELS[name]].append(cost)
    for what, found, best in (("requests/s", rates, -1), ("us of processor time", costs, 0)):
        tenths = {name: statistics.quantiles(values, n=10) for name, values in found.items()}
        for label, place in (("median", 4), ("best tenth", best)):
            free, confined = tenths["free"][place], tenths["confined"][place]
            shown = f"free {free:.1f}, confined {confined:.1f}, ratio {confined / free:.3f}"
            print(f"{what}, {label}: {shown}")


if __name__ == "__main__":
    main()
