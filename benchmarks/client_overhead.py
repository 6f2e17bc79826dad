# SPDX-License-Identifier: Apache-2.0
"""Usage: python -m benchmarks.client_overhead [SECONDS]   our ModelClient beside bare tritonclient.

Both ask the same server for the same thing, in turns, and each row is the median of the rounds. Of
`tritonclient.http` every thread has a client of its own, as it demands; of everything else, one.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http

from benchmarks import servers
from pytriton.client import ModelClient

PORT = 18400
ROUNDS = 5
WARM_UP_CALLS = 50

Call = Callable[[], object]


@dataclass(frozen=True)
class Load:
    """What is asked: a model, the size of each of its inputs, and by how many threads."""

    title: str
    model: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    size: int
    threads: int

    def arrays(self) -> dict[str, np.ndarray]:
        return {name: np.ones((1, self.size), np.float32) for name in self.inputs}


LOADS = (
    Load("AddSub, 1 thread", "AddSub", ("a", "b"), ("add", "sub"), 1, 1),
    Load("AddSub, 16 threads", "AddSub", ("a", "b"), ("add", "sub"), 1, 16),
    Load("identity 1 MiB, 1 thread", "Ident", ("x",), ("y",), 2**18, 1),
)


def our_calls(url: str, load: Load) -> list[Call]:
    client = ModelClient(url, load.model)
    arrays = tuple(load.arrays().values())
    return [lambda: client.infer_batch(*arrays)] * load.threads


def bare_calls(url: str, load: Load) -> list[Call]:
    scheme, address = url.split("://")
    if scheme == "grpc":
        shared = tritonclient.grpc.InferenceServerClient(address)
        return [bare_call(tritonclient.grpc, shared, load)] * load.threads
    return [
        bare_call(tritonclient.http, tritonclient.http.InferenceServerClient(address), load)
        for _ in range(load.threads)
    ]


def bare_call(library: Any, client: Any, load: Load) -> Call:
    arrays = load.arrays()

    def call() -> object:
        inputs = []
        for name, array in arrays.items():
            tensor = library.InferInput(name, array.shape, "FP32")
            inputs.append(tensor.set_data_from_numpy(array))
        outputs = [library.InferRequestedOutput(name) for name in load.outputs]
        result = client.infer(load.model, inputs, outputs=outputs, request_id="0")
        return {name: result.as_numpy(name) for name in load.outputs}

    return call


def calls_per_s(
    make_calls: Callable[[str, Load], list[Call]], url: str, load: Load, s: float
) -> float:
    """Calls of all threads together; clients are made by the thread that uses them."""
    ready = threading.Barrier(load.threads)
    counts = [0] * load.threads
    shared = None if make_calls is bare_calls and url.startswith("http") else make_calls(url, load)

    def work(index: int) -> None:
        call = shared[index] if shared else make_calls(url, load)[0]
        for _ in range(WARM_UP_CALLS):
            call()
        ready.wait()
        end = time.perf_counter() + s
        while time.perf_counter() < end:
            call()
            counts[index] += 1

    threads = [threading.Thread(target=work, args=(index,)) for index in range(load.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / s


def measure(url: str, load: Load, seconds: float) -> tuple[float, float]:
    rates: dict[Any, list[float]] = {our_calls: [], bare_calls: []}
    for _ in range(ROUNDS):
        for make_calls, measured in rates.items():
            measured.append(calls_per_s(make_calls, url, load, seconds))
    ours, bare = (statistics.median(measured) for measured in rates.values())
    return ours, bare


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    (system, *_) = servers.known_systems(None, PORT)
    print("| load | ours [calls/s] | bare tritonclient [calls/s] | time of a call, ours : bare |")
    print("|---|--:|--:|--:|")
    with servers.running(system, PORT) as server:
        urls = {
            "HTTP": f"http://127.0.0.1:{server.port}",
            "gRPC": f"grpc://127.0.0.1:{server.grpc_port}",
        }
        for protocol, url in urls.items():
            for load in LOADS:
                ours, bare = measure(url, load, seconds)
                print(
                    f"| {protocol} {load.title} | {ours:,.0f} | {bare:,.0f} | {bare / ours:.2f} |"
                )


if __name__ == "__main__":
    main()
