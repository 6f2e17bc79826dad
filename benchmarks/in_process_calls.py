# SPDX-License-Identifier: Apache-2.0
"""Usage: in_process_calls.py CLIENT ROW PORT SECONDS   prints the median seconds of a call.

CLIENT is "in-process", whose server is in this process, or "ours" or "tritonclient", which ask the
one on PORT over HTTP. Each sends arrays to a model and gets arrays, one call after the other.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.client_calls import Load, make_call, make_client
from benchmarks.client_overhead import ADD_SUB, IDENTITY
from benchmarks.servers import HERE

ROWS: dict[str, dict[str, Any]] = {"AddSub": ADD_SUB, "identity 1 MiB": IDENTITY}
WARM_UP_CALLS = 200

Call = Callable[[], dict[str, np.ndarray]]


@contextmanager
def caller(client: str, row: str, port: int) -> Iterator[Call]:
    """A function that makes a call; what it needs runs for the length of the block."""
    load = Load(
        url=f"http://127.0.0.1:{port}",
        **ROWS[row],
        method="infer_batch",
        callers=1,
        is_asyncio=False,
        seconds=0,
    )
    if client == "in-process":
        with _in_process(load) as call:
            yield call
    else:
        connected = make_client(client, load)
        try:
            yield make_call(load, connected)
        finally:
            connected.close()


@contextmanager
def _in_process(load: Load) -> Iterator[Call]:
    import tritonserver  # noqa: PLC0415 - the other clients do not need it

    server = tritonserver.Server(
        model_repository=str(HERE / "model_repository"),
        model_control_mode=tritonserver.ModelControlMode.EXPLICIT,
        startup_models=[load.model],
    )
    server.start(wait_until_ready=True)
    model = server.model(load.model)
    inputs = dict(zip(load.inputs, load.arrays(), strict=True))

    def call() -> dict[str, np.ndarray]:
        (response,) = model.infer(inputs=inputs)
        return {name: np.from_dlpack(tensor) for name, tensor in response.outputs.items()}

    try:
        yield call
    finally:
        server.stop()


def median_s(call: Call, seconds: float) -> float:
    for _ in range(WARM_UP_CALLS):
        call()
    times_s = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = time.perf_counter()
        call()
        times_s.append(time.perf_counter() - begin)
    return float(np.median(times_s))


def main() -> None:
    client, row, port, seconds = sys.argv[1:]
    with caller(client, row, int(port)) as call:
        print(median_s(call, float(seconds)))


if __name__ == "__main__":
    main()
