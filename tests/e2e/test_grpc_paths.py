# SPDX-License-Identifier: Apache-2.0
"""Requests of official gRPC clients, as they send them, are read by what was learned of them."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as triton_aio

from pytriton.client import ModelClient
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig
from tests.e2e.conftest import new_ports

COUNT = 40  # more than are learned from
TOGETHER = 16
ROW = np.arange(4, dtype=np.float32)


@batch
def double(x):
    return {"y": 2 * x}


class Server:
    """A server with a model for each test."""

    def __init__(self, ports: dict[str, int]) -> None:
        self.grpc = f"localhost:{ports['grpc_port']}"
        self._metrics = f"http://localhost:{ports['metrics_port']}/metrics"

    def paths(self, model: str) -> dict[str, int]:
        """How requests came to a model, and how many."""
        with urllib.request.urlopen(self._metrics) as answer:
            text = answer.read().decode()
        lines = [line for line in text.splitlines() if f'model="{model}"' in line]
        pattern = r'nv_inference_path_count\{.*path="(\w+)".*\} (\d+)'
        found = re.findall(pattern, "\n".join(lines))
        return {path: int(count) for path, count in found if int(count)}


@pytest.fixture(scope="module", params=["0", "2"], ids=["one process", "front ends"])
def server(request) -> Iterator[Server]:
    ports = new_ports()
    config = TritonConfig(**ports, frontend_processes=int(request.param))
    with Triton(config=config) as triton:
        for call in CALLS:
            triton.bind(
                call.__name__,
                double,
                [Tensor(name="x", dtype=np.float32, shape=(4,))],
                [Tensor(name="y", dtype=np.float32, shape=(4,))],
                config=ModelConfig(max_batch_size=64),
            )
        triton.run()
        yield Server(ports)


def tensors(module) -> list:
    tensor = module.InferInput("x", [1, 4], "FP32")
    tensor.set_data_from_numpy(ROW[np.newaxis])
    return [tensor]


def call_plain(server: Server) -> None:
    with triton_grpc.InferenceServerClient(server.grpc) as client:
        for _ in range(COUNT):
            answer = client.infer("call_plain", tensors(triton_grpc))
            assert np.array_equal(answer.as_numpy("y"), 2 * ROW[np.newaxis])


def call_with_everything(server: Server) -> None:
    outputs = [triton_grpc.InferRequestedOutput("y")]
    with triton_grpc.InferenceServerClient(server.grpc) as client:
        for number in range(COUNT):
            answer = client.infer(
                "call_with_everything",
                tensors(triton_grpc),
                outputs=outputs,
                request_id=str(number),
                priority=1,
                timeout=10_000_000 + number,
                client_timeout=60.0,
                headers={"x-request-id": str(number)},
                parameters={"temperature": number / 7},
            )
            assert answer.get_response().id == str(number)


def call_together(server: Server) -> None:
    async def run() -> None:
        async with triton_aio.InferenceServerClient(server.grpc) as client:
            for _ in range(COUNT):
                calls = [
                    client.infer(
                        "call_together",
                        tensors(triton_aio),
                        request_id=f"request {number}",
                        client_timeout=60.0,
                    )
                    for number in range(TOGETHER)
                ]
                answers = await asyncio.gather(*calls)
                ids = [answer.get_response().id for answer in answers]
                assert ids == [f"request {number}" for number in range(TOGETHER)]

    asyncio.run(run())


def call_with_model_client(server: Server) -> None:
    with ModelClient(f"grpc://{server.grpc}", "call_with_model_client") as client:
        for _ in range(COUNT):
            assert np.array_equal(client.infer_sample(ROW)["y"], 2 * ROW)


CALLS = [call_plain, call_with_everything, call_together, call_with_model_client]


@pytest.mark.parametrize("call", CALLS)
def test_official_clients_are_learned(server: Server, call: Callable[[Server], None]):
    call(server)

    paths = server.paths(call.__name__)
    # Each front end learns by itself, and requests that differ in size are learned by size.
    assert paths.keys() <= {"new", "alone", "columns"}, paths
    assert paths["new"] <= 2 * TOGETHER, paths
    assert paths.get("alone", 0) + paths.get("columns", 0) >= COUNT - 2 * TOGETHER, paths
