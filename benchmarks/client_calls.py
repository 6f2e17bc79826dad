# SPDX-License-Identifier: Apache-2.0
"""Usage: client_calls.py CLIENT LOAD   prints how many calls a second a client makes.

CLIENT is "tritonclient", or "ours" or "nvidia" for the package `pytriton` at hand. LOAD is a JSON
object with the fields of `Load`. Each figure has a process of its own, so that no client pays for
what another one imported or left behind.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

WARM_UP_CALLS = 50
START_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Load:
    """What is asked, of which model and by how many callers at a time."""

    url: str
    model: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    size: int
    method: str
    callers: int
    is_asyncio: bool
    seconds: float

    @property
    def scheme(self) -> str:
        return self.url.partition("://")[0]

    def arrays(self) -> list[np.ndarray]:
        shape = (self.size,) if self.method == "infer_sample" else (1, self.size)
        return [np.ones(shape, np.float32) for _ in self.inputs]


def library_of(load: Load) -> Any:
    asyncio_form = ".aio" if load.is_asyncio else ""
    return importlib.import_module(f"tritonclient.{load.scheme}{asyncio_form}")


def make_client(name: str, load: Load) -> Any:
    if name == "tritonclient":
        return library_of(load).InferenceServerClient(load.url.partition("://")[2])
    clients = importlib.import_module("pytriton.client")
    kind = clients.AsyncioModelClient if load.is_asyncio else clients.ModelClient
    return kind(load.url, load.model)


def is_shared(name: str, load: Load) -> bool:
    """Whether threads may share a client: gevent's connections belong to one thread."""
    return name == "ours" or (name == "tritonclient" and load.scheme == "grpc")


def make_call(load: Load, client: Any) -> Callable[[], Any]:
    """A call that sends arrays and returns arrays, or for asyncio is awaited for them."""
    arrays = load.arrays()
    if hasattr(client, load.method):
        infer = getattr(client, load.method)
        return lambda: infer(*arrays)
    library = library_of(load)
    if load.is_asyncio:

        async def call() -> Any:
            return arrays_of(load, await client.infer(**arguments(load, library, arrays)))

        return call
    return lambda: arrays_of(load, client.infer(**arguments(load, library, arrays)))


def arguments(load: Load, library: Any, arrays: list[np.ndarray]) -> dict[str, Any]:
    """What a user of tritonclient writes to send arrays."""
    inputs = []
    for name, array in zip(load.inputs, arrays, strict=True):
        batch = array[np.newaxis] if load.method == "infer_sample" else array
        tensor = library.InferInput(name, batch.shape, "FP32")
        inputs.append(tensor.set_data_from_numpy(batch))
    outputs = [library.InferRequestedOutput(name) for name in load.outputs]
    return {"model_name": load.model, "inputs": inputs, "outputs": outputs, "request_id": "0"}


def arrays_of(load: Load, result: Any) -> dict[str, np.ndarray]:
    arrays = {name: result.as_numpy(name) for name in load.outputs}
    if load.method == "infer_sample":
        return {name: array[0] for name, array in arrays.items()}
    return arrays


def threads_per_s(name: str, load: Load) -> float:
    shared = make_client(name, load) if is_shared(name, load) else None
    ready = threading.Barrier(load.callers, timeout=START_TIMEOUT_S)

    def work() -> int:
        client = shared or make_client(name, load)
        call = make_call(load, client)
        for _ in range(WARM_UP_CALLS):
            call()
        ready.wait()
        count = 0
        end = time.perf_counter() + load.seconds
        while time.perf_counter() < end:
            call()
            count += 1
        if shared is None:
            client.close()
        return count

    with ThreadPoolExecutor(load.callers) as threads:
        counts = [threads.submit(work) for _ in range(load.callers)]
        rate = sum(count.result() for count in counts) / load.seconds
    if shared is not None:
        shared.close()
    return rate


async def tasks_per_s(name: str, load: Load) -> float:
    client = make_client(name, load)
    call = make_call(load, client)
    for _ in range(WARM_UP_CALLS):
        await call()
    end = time.perf_counter() + load.seconds

    async def work() -> int:
        count = 0
        while time.perf_counter() < end:
            await call()
            count += 1
        return count

    counts = await asyncio.gather(*(work() for _ in range(load.callers)))
    await client.close()
    return sum(counts) / load.seconds


def main() -> None:
    name, load = sys.argv[1], Load(**json.loads(sys.argv[2]))
    warnings.simplefilter("ignore")
    rate = asyncio.run(tasks_per_s(name, load)) if load.is_asyncio else threads_per_s(name, load)
    print(rate)


if __name__ == "__main__":
    main()
