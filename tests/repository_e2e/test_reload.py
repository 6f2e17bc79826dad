# SPDX-License-Identifier: Apache-2.0
"""A model that is loaded again and again while clients use it loses none of their requests."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tritonclient.grpc.aio as triton_grpc_aio
import tritonclient.http.aio as triton_http_aio
from tritonclient.grpc import InferInput as GrpcInput
from tritonclient.http import InferInput as HttpInput

from tests.e2e.http_client import infer_json
from tests.e2e.waiting import eventually
from tests.repository_e2e.model_files import code, config, model

RELOADS = 50
INTERVAL_S = 0.01  # of each of two clients: 200 requests a second
X = np.ones((1, 1), np.float32)


def numbered(number):
    return model(code(f"y = x * 0 + {number}"), config("dynamic_batching { }"))


class SteadyClients:
    """Sends over HTTP and gRPC at a steady pace, in a thread, and keeps the answers."""

    def __init__(self, server, name):
        self._server = server
        self._name = name
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self.values: list[float] = []
        self.errors: list[Exception] = []

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    async def _run(self):
        ways = (
            (triton_http_aio, HttpInput, self._server.http_port),
            (triton_grpc_aio, GrpcInput, self._server.grpc_port),
        )
        await asyncio.gather(*(self._send(*way) for way in ways))

    async def _send(self, module, input_class, port):
        tensor = input_class("X", [1, 1], "FP32")
        tensor.set_data_from_numpy(X)
        async with module.InferenceServerClient(f"127.0.0.1:{port}") as client:
            asks = set()
            next_s = time.monotonic()
            while not self._is_over.is_set():
                asks.add(asyncio.ensure_future(self._ask(client, tensor)))
                next_s += INTERVAL_S
                await asyncio.sleep(max(0.0, next_s - time.monotonic()))
            await asyncio.gather(*asks)

    async def _ask(self, client, tensor):
        try:
            answer = await client.infer(self._name, [tensor])
        except Exception as error:  # noqa: BLE001  each is a request that was lost
            self.errors.append(error)
        else:
            self.values.append(answer.as_numpy("Y").item())


def test_reloads_lose_no_request_and_leave_no_process(start_server):
    flags = ["--model-control-mode=explicit", "--load-model=m", "--allow-gpu-metrics=false"]
    server = start_server({"m": numbered(0)}, flags=flags).await_ready()
    process_count = len(server.model_processes())
    descriptor_count = server.descriptor_count()

    with SteadyClients(server, "m") as clients:
        for number in range(1, RELOADS + 1):
            count = len(clients.values)
            assert eventually(lambda count=count: len(clients.values) > count or clients.errors)
            server.write("m", numbered(number))
            answer = server.load("m")
            assert answer.status == 200, answer.body

    assert clients.errors == []
    assert server.infer("m") == [RELOADS]
    assert len(set(clients.values)) > RELOADS / 2  # most of them served somebody
    assert eventually(lambda: len(server.model_processes()) == process_count)
    assert eventually(lambda: server.descriptor_count() <= descriptor_count)
    assert eventually(lambda: server.zombies() == [])


def test_loads_unloads_requests_and_lists_may_come_at_once(start_server):
    """Whatever the order, each is answered in words, and in the end the model can be loaded."""
    server = start_server({"m": numbered(1)}, flags=["--model-control-mode=explicit"]).await_ready()
    process_count = len(server.model_processes())
    actions = [
        lambda: server.load("m").status,
        lambda: server.unload("m").status,
        lambda: server.post("/v2/repository/index").status,
        lambda: infer_json(server.http_port, "m", {"X": X}).status,
    ]

    def act(number):
        if number % 20 == 0:
            server.write("m", numbered(1))
        return actions[random.Random(number).randrange(len(actions))]()

    with ThreadPoolExecutor(8) as threads:
        statuses = set(threads.map(act, range(200)))

    assert 200 in statuses
    # Not found, not ready, or a load that an unload gave up.
    assert statuses <= {200, 400, 404, 503}
    assert server.load("m").status == 200
    assert server.infer("m") == [1.0]
    assert server.unload("m").status == 200
    assert eventually(lambda: server.workers() == []), server.workers()
    assert len(server.model_processes()) <= max(process_count, 1)
