# SPDX-License-Identifier: Apache-2.0
"""Compares a model.py in a sandbox with the same one without, on one server.

    python -m benchmarks.sandbox_overhead --rounds 150

Each round sends both models the same small requests, one model after the other, and the next round
in the other order. Rounds are short and many, so that what else the machine does falls on both. It
prints requests in a second, and the processor time of all processes of the server: the median of
all rounds and the best tenth, with the ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import pathlib
import statistics
import tempfile
import time

from benchmarks.processor_overhead import processor_s
from tests.repository_e2e.model_files import code, config, model, write_model
from tests.repository_e2e.server_process import ServerProcess

OFF = 'parameters { key: "SANDBOX" value { string_value: "off" } }'
MODELS = {"free": model(code(), config(OFF)), "confined": model()}


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


def measure(server: ServerProcess, name: str, options: argparse.Namespace) -> tuple[float, float]:
    """Returns requests in a second, and microseconds of processor time for each."""
    used, began = processor_s(server.pid), time.perf_counter()
    asyncio.run(send(server.http_port, name, options.count, options.clients))
    elapsed = time.perf_counter() - began
    return options.count / elapsed, (processor_s(server.pid) - used) / options.count * 1e6


def main() -> None:
    """Measure, and print the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--count", type=int, default=200, help="requests in each round")
    parser.add_argument("--clients", type=int, default=16)
    options = parser.parse_args()
    rates: dict[str, list[float]] = {name: [] for name in MODELS}
    costs: dict[str, list[float]] = {name: [] for name in MODELS}
    with tempfile.TemporaryDirectory() as text:
        folder = pathlib.Path(text)
        for name, files in MODELS.items():
            write_model(folder / "models" / name, files)
        flags = ["--sandbox=on", "--sandbox-allow=off"]
        with ServerProcess(folder, [folder / "models"], flags) as server:
            server.await_ready()
            for name in MODELS:
                measure(server, name, options)  # warm it up
            for turn in range(options.rounds):
                for name in sorted(MODELS, reverse=bool(turn % 2)):
                    rate, cost = measure(server, name, options)
                    rates[name].append(rate)
                    costs[name].append(cost)
    for what, found, best in (("requests/s", rates, -1), ("us of processor time", costs, 0)):
        tenths = {name: statistics.quantiles(values, n=10) for name, values in found.items()}
        for label, place in (("median", 4), ("best tenth", best)):
            free, confined = tenths["free"][place], tenths["confined"][place]
            shown = f"free {free:.1f}, confined {confined:.1f}, ratio {confined / free:.3f}"
            print(f"{what}, {label}: {shown}")


if __name__ == "__main__":
    main()
