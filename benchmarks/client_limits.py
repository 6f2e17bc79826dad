# SPDX-License-Identifier: Apache-2.0
"""Usage: python -m benchmarks.client_limits   how late a client's time limit ends a call.

Every client meets servers that stall, each at another point of an exchange, with several limits.
The table has, for each, the latest of all ends in milliseconds after its limit.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import numpy as np

from pytriton.client import (
    AsyncioDecoupledModelClient,
    AsyncioModelClient,
    DecoupledModelClient,
    ModelClient,
)
from pytriton.client.exceptions import PyTritonClientTimeoutError
from pytriton.model_config.triton_model_config import TensorSpec, TritonModelConfig
from tests.client.stalled_server import StalledServer

LIMITS_S = (0.05, 0.1, 0.25, 0.5, 1.0)
ROUNDS = 3
STALLS = {
    "unreachable": "connecting",
    "deaf": "sending 16 MiB",
    "silent": "waiting",
    "half": "receiving",
}
LARGE = np.zeros(4 << 20, np.float32)

Attempt = Callable[[str, float], float]


def settings(limit_s: float, *, decoupled: bool = False) -> dict[str, Any]:
    """A model that is known already, so that nothing but the inference is asked."""
    config = TritonModelConfig(
        "Model",
        decoupled=decoupled,
        inputs=[TensorSpec("x", (-1,), np.float32)],
        outputs=[TensorSpec("y", (-1,), np.float32)],
    )
    return {
        "inference_timeout_s": limit_s,
        "model_config": config,
        "ensure_model_is_ready": False,
    }


def lateness(limit_s: float, call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    try:
        call()
    except PyTritonClientTimeoutError:
        return time.perf_counter() - begin - limit_s
    raise RuntimeError("expected a time limit to end the call, got an answer")


async def asyncio_lateness(limit_s: float, call: Callable[[], Awaitable[object]]) -> float:
    begin = time.perf_counter()
    try:
        await call()
    except PyTritonClientTimeoutError:
        return time.perf_counter() - begin - limit_s
    raise RuntimeError("expected a time limit to end the call, got an answer")


def infer(url: str, limit_s: float) -> float:
    with ModelClient(url, "Model", **settings(limit_s)) as client:
        return lateness(limit_s, lambda: client.infer_sample(LARGE))


def wait_for_model(url: str, limit_s: float) -> float:
    with ModelClient(url, "Model") as client:
        return lateness(limit_s, lambda: client.wait_for_model(limit_s))


def infer_asyncio(url: str, limit_s: float) -> float:
    async def attempt() -> float:
        async with AsyncioModelClient(url, "Model", **settings(limit_s)) as client:
            return await asyncio_lateness(limit_s, lambda: client.infer_sample(LARGE))

    return asyncio.run(attempt())


def stream(url: str, limit_s: float) -> float:
    with DecoupledModelClient(url, "Model", **settings(limit_s, decoupled=True)) as client:
        return lateness(limit_s, lambda: next(client.infer_sample(LARGE)))


def stream_asyncio(url: str, limit_s: float) -> float:
    async def attempt() -> float:
        known = settings(limit_s, decoupled=True)
        async with AsyncioDecoupledModelClient(url, "Model", **known) as client:
            return await asyncio_lateness(limit_s, lambda: anext(client.infer_sample(LARGE)))

    return asyncio.run(attempt())


CALLS: dict[str, tuple[str, Attempt]] = {
    "ModelClient, HTTP": ("http", infer),
    "ModelClient, gRPC": ("grpc", infer),
    "wait_for_model, HTTP": ("http", wait_for_model),
    "wait_for_model, gRPC": ("grpc", wait_for_model),
    "AsyncioModelClient, HTTP": ("http", infer_asyncio),
    "AsyncioModelClient, gRPC": ("grpc", infer_asyncio),
    "DecoupledModelClient": ("grpc", stream),
    "AsyncioDecoupledModelClient": ("grpc", stream_asyncio),
}


def latest_ms(stall: str, scheme: str, attempt: Attempt) -> Iterator[float]:
    for limit_s in LIMITS_S:
        for _ in range(ROUNDS):
            with StalledServer(stall) as server:
                yield attempt(server.url(scheme), limit_s) * 1000


def main() -> None:
    print(f"| client | {' | '.join(STALLS.values())} |")
    print(f"|---|{'--:|' * len(STALLS)}")
    for title, (scheme, attempt) in CALLS.items():
        cells = []
        for stall in STALLS:
            late = list(latest_ms(stall, scheme, attempt))
            cells.append(f"{max(late):.1f} (median {statistics.median(late):.1f})")
        print(f"| {title} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
