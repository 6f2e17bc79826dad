# SPDX-License-Identifier: Apache-2.0
"""How much of its share a principal keeps while another one floods the server.

    python -m benchmarks.principal_fairness [--seconds 5] [--front-ends 0 2]

A model answers batches of 8 after 20 ms. `bob` has 8 connections, `flood` has 64; on each of them,
one request follows the other. The share of bob is a half of what the model can do, or what he gets
alone if that is less. The same is measured without quotas, where the order of arrival decides. The
last rows are a limit of requests, over all connections and front ends, and a flood that it refuses.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.free_ports import free_ports
from tests.named_principals import HEADER, QUOTAS

ROOT = Path(__file__).parents[1]
PATIENCE_S = 60.0
WARM_UP_S = 1.0
FEW, MANY = 8, 64  # connections
RATE, BURST = 200.0, 200.0
MODEL = """import time
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep({sleep_s})
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.ones((1, 1), np.float32))])
            for _ in requests
        ]
"""
CONFIG = """backend: "python"
max_batch_size: 8
input {{ name: "X" data_type: TYPE_FP32 dims: [1] }}
output {{ name: "Y" data_type: TYPE_FP32 dims: [1] }}
instance_group {{ kind: KIND_CPU count: 1 }}
dynamic_batching {{ {policy} }}
"""
FULL = "default_queue_policy { max_queue_size: 32 }"
BODY = json.dumps(
    {"inputs": [{"name": "X", "shape": [1, 1], "datatype": "FP32", "data": [1]}]}
).encode()


def write_models(folder: Path) -> None:
    """Write a slow model, the same with a bounded queue, and one that answers at once."""
    kinds = {"slow": (0.02, ""), "bounded": (0.02, FULL), "quick": (0, "")}
    for name, (sleep_s, policy) in kinds.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "1" / "model.py").write_text(MODEL.format(sleep_s=sleep_s))
        (folder / name / "config.pbtxt").write_text(CONFIG.format(policy=policy))


@contextlib.contextmanager
def serving(front_ends: int, quotas: dict[str, Any]) -> Iterator[int]:
    """Starts a server; yields its port."""
    ports = free_ports(3)
    with tempfile.TemporaryDirectory() as folder:
        write_models(Path(folder))
        names = zip(("http", "grpc", "metrics"), ports, strict=True)
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.named_principals"),
                *(f"--model-repository={folder}", f"--frontend-processes={front_ends}"),
                *(f"--{name}-port={port}" for name, port in names),
            ],
            cwd=ROOT,
            env={**os.environ, QUOTAS: json.dumps(quotas)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            await_ready(ports[0])
            yield ports[0]
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


def await_ready(port: int) -> None:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        with contextlib.suppress(urllib.error.URLError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready").close()
            return
        time.sleep(0.1)
    raise TimeoutError(f"no server is ready after {PATIENCE_S:g} s")


async def send(port: int, model: str, principal: str, count: int, seconds: float) -> list[int]:
    """Send requests on each of `count` connections, one after the other.

    Returns how many were answered and refused after the server had time to warm up.
    """
    lines = (
        f"POST /v2/models/{model}/infer HTTP/1.1",
        "Host: 127.0.0.1",
        f"{HEADER}: {principal}",
        f"Content-Length: {len(BODY)}",
    )
    message = "\r\n".join((*lines, "", "")).encode() + BODY
    begin = time.monotonic() + WARM_UP_S
    end = begin + seconds
    counts = [0, 0]

    async def ask() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (now := time.monotonic()) < end:
            writer.write(message)
            head = await reader.readuntil(b"\r\n\r\n")
            length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length))
            if now >= begin:
                counts[b" 200 " not in head[:16]] += 1
        writer.close()

    await asyncio.gather(*[ask() for _ in range(count)])
    return counts


def measure(port: int, model: str, loads: dict[str, int], seconds: float) -> dict[str, list[float]]:
    """Returns how many requests of each principal were answered and refused in a second.

    `loads` has the number of connections of each; each has a process of its own.
    """
    running = {
        principal: subprocess.Popen(
            [
                *(sys.executable, "-m", "benchmarks.principal_fairness", "--load"),
                *(str(port), model, principal, str(count), str(seconds)),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
        )
        for principal, count in loads.items()
    }
    rates = {}
    for principal, process in running.items():
        output, _ = process.communicate(timeout=seconds + PATIENCE_S)
        rates[principal] = [count / seconds for count in json.loads(output)]
    return rates


def show(front_ends: int, name: str, *columns: str) -> None:
    place = f"{front_ends} front ends" if front_ends else "one process"
    print(f"{place:13}  {name:44}", *columns, flush=True)


def measure_shares(front_ends: int, seconds: float) -> None:
    """Measure what bob keeps of his share beside a flood."""
    weighted = {"flood": {"weight": 3.0}, "bob": {"weight": 1.0}}
    kinds: dict[str, dict[str, Any]] = {
        "equal weights": {"flood": {}, "bob": {}},
        "weights 3:1": weighted,
        "no quotas": {},
    }
    for kind, quotas in kinds.items():
        part = quotas.get("bob", {}).get("weight", 1.0) / (
            sum(each.get("weight", 1.0) for each in quotas.values()) or 2.0
        )
        with serving(front_ends, quotas) as port:
            for model in ("slow", "bounded", "quick"):
                alone = measure(port, model, {"bob": FEW}, seconds)["bob"][0]
                flood = measure(port, model, {"flood": MANY}, seconds)["flood"][0]
                both = measure(port, model, {"bob": FEW, "flood": MANY}, seconds)
                whole = max(alone, flood)
                share = min(alone, part * whole)
                bob = both["bob"][0]
                show(
                    front_ends,
                    f"{kind}, {model} model",
                    f"alone {alone:5.0f}/s, flood alone {flood:5.0f}/s,",
                    f"together {bob:5.0f}/s and {both['flood'][0]:5.0f}/s:",
                    f"{bob / share:.2f} of its share of {share:.0f}/s",
                )


def measure_limit(front_ends: int, seconds: float) -> None:
    """Measure how exact a limit is, and what a flood beyond its limit costs another one."""
    limits = [
        {"models": ["quick"], "requests_per_s": RATE, "burst": BURST},
        {"models": ["slow"], "requests_per_s": RATE / 10},
    ]
    with serving(front_ends, {"flood": {"quotas": limits}, "bob": {}}) as port:
        answered, refused = measure(port, "quick", {"flood": 16}, seconds)["flood"]
        show(
            front_ends,
            f"limit of {RATE:g} requests/s, 16 connections",
            f"{answered:.1f}/s answered ({answered / RATE - 1:+.1%}), {refused:.0f}/s refused",
        )
        alone = measure(port, "slow", {"bob": FEW}, seconds)["bob"][0]
        both = measure(port, "slow", {"bob": FEW, "flood": MANY}, seconds)
        show(
            front_ends,
            f"flood beyond {RATE / 10:g} requests/s, slow model",
            f"bob alone {alone:.0f}/s, beside it {both['bob'][0]:.0f}/s,",
            f"flood {both['flood'][0]:.0f}/s and {both['flood'][1]:.0f}/s refused",
        )


def main() -> None:
    """Measure, and print the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--front-ends", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--load", nargs=5, help=argparse.SUPPRESS)  # one process of clients
    options = parser.parse_args()
    if options.load:
        port, model, principal, count, seconds = options.load
        sent = send(int(port), model, principal, int(count), float(seconds))
        print(json.dumps(asyncio.run(sent)))
        return
    for front_ends in options.front_ends:
        measure_shares(front_ends, options.seconds)
        measure_limit(front_ends, options.seconds)


if __name__ == "__main__":
    main()
