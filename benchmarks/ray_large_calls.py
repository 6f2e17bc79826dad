# SPDX-License-Identifier: Apache-2.0
"""Usage: ray_large_calls.py CLUSTER SECONDS   prints median seconds of calls with 16 MiB, as JSON.

The servers are in this process, so that no front end is part of it. All take turns call by call.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

import tritonserver
from benchmarks.plain_copy import PlainCopy
from benchmarks.servers import HERE
from benchmarks.tritonserver_over_tcp import tcp_only

MEBIBYTES = 16
ONE_WAY, ECHO = "one way", "echo"
TCP, UNIX, WORKER, PLAIN = "actor over TCP", "actor of this machine", "worker", "plain TCP copy"
MODELS = {ONE_WAY: "Size", ECHO: "Ident"}
WARM_UP_CALLS = 3
LEAST_CALLS = 10

Call = Callable[[], Any]
Calls = Mapping[tuple[str, str], Call]  # by row and title


@contextlib.contextmanager
def callers(address: str) -> Iterator[Calls]:
    """A function for each kind of call; servers and actors run for the length of the block."""
    x = np.arange(MEBIBYTES * 2**18, dtype=np.float32).reshape(1, -1)
    plain = PlainCopy(x.data.cast("B"))
    calls: dict[tuple[str, str], Call] = {(ONE_WAY, PLAIN): plain.send, (ECHO, PLAIN): plain.echo}
    with contextlib.ExitStack() as stack:
        stack.callback(plain.close)
        with tcp_only():
            started = {TCP: stack.enter_context(_server(executor="ray", ray_address=address))}
        started[UNIX] = stack.enter_context(_server(executor="ray", ray_address=address))
        started[WORKER] = stack.enter_context(_server())
        for title, server in started.items():
            for row, model in MODELS.items():
                calls[row, title] = _caller(server, model, x)
        yield calls


@contextlib.contextmanager
def _server(**options: Any) -> Iterator[tritonserver.Server]:
    server = tritonserver.Server(
        model_repository=str(HERE / "model_repository"),
        model_control_mode=tritonserver.ModelControlMode.EXPLICIT,
        startup_models=list(MODELS.values()),
        **options,
    )
    server.start(wait_until_ready=True)
    try:
        yield server
    finally:
        server.stop()


def _caller(server: tritonserver.Server, name: str, x: np.ndarray) -> Call:
    model = server.model(name)

    def call() -> np.ndarray:
        (response,) = model.infer(inputs={"x": x})
        (tensor,) = response.outputs.values()
        return np.from_dlpack(tensor)

    return call


def check(calls: Calls) -> None:
    """A way that loses bytes is not worth measuring."""
    expected = calls[ECHO, PLAIN]()
    for title in (TCP, UNIX, WORKER):
        y, size = calls[ECHO, title](), calls[ONE_WAY, title]()
        if y.data.cast("B") != expected or size.ravel() != [y.size]:
            raise RuntimeError(f"{title} returned something else than it was sent")


def medians_s(calls: Calls, seconds: float) -> dict[tuple[str, str], float]:
    times_s: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
    end = time.perf_counter() + seconds
    taken = -WARM_UP_CALLS
    while taken < LEAST_CALLS or time.perf_counter() < end:
        for key, call in calls.items():
            begin = time.perf_counter()
            call()
            if taken >= 0:
                times_s[key].append(time.perf_counter() - begin)
        taken += 1
    return {key: float(np.median(times)) for key, times in times_s.items()}


def main() -> None:
    address, seconds = sys.argv[1:]
    with callers(address) as calls:
        check(calls)
        found = medians_s(calls, float(seconds))
    print(json.dumps([[row, title, value] for (row, title), value in found.items()]))


if __name__ == "__main__":
    main()
