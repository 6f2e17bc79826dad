# SPDX-License-Identifier: Apache-2.0
"""Usage: generator_client.py KIND PROTOCOL PORT CONCURRENCY SECONDS   prints one line of JSON.

Sends AddSub requests as fast as it can, and says how many were answered in how many seconds, and
what processor time that took. KIND is "ours", the generator of `pytriton perf`, or one that is
written with tritonclient: "threads", each with a client of its own, or "asyncio", with one client.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from typing import Any, NamedTuple

import numpy as np
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio

from pytriton.tools.perf.load.plan import (
    Concurrency,
    InputSet,
    LoadPlan,
    LoadProtocol,
    TensorFormat,
)
from pytriton.tools.perf.load.process_load import ProcessLoad

WARM_UP_S = 0.5
ARRAYS = {"a": np.full((1, 1), 1, np.float32), "b": np.full((1, 1), 2, np.float32)}


class Figures(NamedTuple):
    """Answers, and the time and processor time that they took."""

    answered: int
    seconds: float
    cpu_s: float


def since(begin: Figures, answered: int) -> Figures:
    """The figures from a moment until now."""
    elapsed_s, cpu_s = time.perf_counter() - begin.seconds, time.process_time() - begin.cpu_s
    return Figures(answered - begin.answered, elapsed_s, cpu_s)


def ours(protocol: str, port: int, concurrency: int, seconds: float) -> Figures:
    """Over HTTP the same bytes as wrk, in JSON."""
    plan = LoadPlan(
        f"127.0.0.1:{port}",
        LoadProtocol(protocol),
        "AddSub",
        [[InputSet(ARRAYS)]],
        input_format=TensorFormat.JSON,
        output_format=TensorFormat.JSON,
    )
    load = ProcessLoad(plan)
    load.start(Concurrency(concurrency))
    try:
        load.wait(WARM_UP_S)
        load.take()
        load.wait(seconds)
        records = load.take()
    finally:
        load.stop()
    if not records.ok.all():
        raise RuntimeError(f"expected answers, got {records.errors}")
    elapsed_s = (records.taken_ns - records.since_ns) / 1e9
    return Figures(len(records), elapsed_s, records.generator.cpu_share * elapsed_s)


def inputs_of(module: Any) -> list[Any]:
    inputs = []
    for name, array in ARRAYS.items():
        inputs.append(module.InferInput(name, list(array.shape), "FP32"))
        inputs[-1].set_data_from_numpy(array)
    return inputs


def threads(protocol: str, port: int, concurrency: int, seconds: float) -> Figures:
    module = tritonclient.http if protocol == "http" else tritonclient.grpc
    counts = [0] * concurrency
    is_over = threading.Event()

    def ask(number: int) -> None:
        client = module.InferenceServerClient(f"127.0.0.1:{port}")
        inputs = inputs_of(module)
        while not is_over.is_set():
            client.infer("AddSub", inputs)
            counts[number] += 1
        client.close()

    running = [threading.Thread(target=ask, args=(number,)) for number in range(concurrency)]
    for thread in running:
        thread.start()
    time.sleep(WARM_UP_S)
    begin = Figures(sum(counts), time.perf_counter(), time.process_time())
    time.sleep(seconds)
    figures = since(begin, sum(counts))
    is_over.set()
    for thread in running:
        thread.join()
    return figures


async def in_a_loop(protocol: str, port: int, concurrency: int, seconds: float) -> Figures:
    module = tritonclient.http.aio if protocol == "http" else tritonclient.grpc.aio
    limits = {"conn_limit": concurrency} if protocol == "http" else {}
    counts = [0] * concurrency

    async def ask(number: int) -> None:
        inputs = inputs_of(module)
        while True:
            await client.infer("AddSub", inputs)
            counts[number] += 1

    async with module.InferenceServerClient(f"127.0.0.1:{port}", **limits) as client:
        tasks = [asyncio.create_task(ask(number)) for number in range(concurrency)]
        await asyncio.sleep(WARM_UP_S)
        begin = Figures(sum(counts), time.perf_counter(), time.process_time())
        await asyncio.sleep(seconds)
        figures = since(begin, sum(counts))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return figures


def main(kind: str, protocol: str, port: str, concurrency: str, seconds: str) -> None:
    arguments = (protocol, int(port), int(concurrency), float(seconds))
    if kind == "asyncio":
        figures = asyncio.run(in_a_loop(*arguments))
    else:
        figures = {"ours": ours, "threads": threads}[kind](*arguments)
    print(json.dumps(figures._asdict()))


if __name__ == "__main__":
    main(*sys.argv[1:])
