# SPDX-License-Identifier: Apache-2.0
"""Many small requests to an ensemble at the same time: answered as columns, as if one by one."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tritonclient.grpc.aio as triton_grpc

from tests.repository_e2e.model_files import code, config, ensemble, model

BATCHED = config("dynamic_batching { }")
MODELS = {
    "plus": model(code("y = x + 1"), BATCHED),
    "twice": model(code("y = x * 2"), BATCHED),
    "pipe": ensemble("plus", "twice", "plus"),
}
COUNT, WORKERS = 400, 16


def test_many_http_requests_get_their_own_answers(start_server):
    server = start_server(MODELS).await_ready()

    def ask(number: int) -> bytes:
        tensor = {"name": "X", "datatype": "FP32", "shape": [1, 2], "data": [number, -number]}
        return server.post("/v2/models/pipe/infer", {"inputs": [tensor]}).body

    with ThreadPoolExecutor(WORKERS) as threads:
        answers = list(threads.map(ask, range(COUNT)))

    for number, answer in enumerate(answers):
        values = f"{2 * number + 3}.0,{3 - 2 * number}.0"
        assert answer.decode() == (
            '{"model_name":"pipe","model_version":"1","parameters":{"sequence_id":0,'
            '"sequence_start":false,"sequence_end":false},"outputs":[{"name":"Y",'
            f'"datatype":"FP32","shape":[1,2],"data":[{values}]}}]}}'
        )
    statistics = server.get("/v2/models/pipe/stats").json["model_stats"][0]
    assert statistics["inference_count"] == statistics["execution_count"] == COUNT


def test_many_grpc_requests_get_their_own_answers(start_server):
    server = start_server(MODELS).await_ready()

    async def ask(client: triton_grpc.InferenceServerClient, number: int) -> None:
        tensor = triton_grpc.InferInput("X", [1, 1], "FP32")
        tensor.set_data_from_numpy(np.array([[number]], np.float32))
        result = await client.infer("pipe", [tensor])
        answer = result.get_response()

        assert result.as_numpy("Y").tolist() == [[2 * number + 3]]
        assert sorted(answer.parameters) == ["sequence_end", "sequence_id", "sequence_start"]
        assert answer.parameters["sequence_id"].int64_param == 0

    async def ask_all() -> None:
        async with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
            for _ in range(4):
                await asyncio.gather(*(ask(client, number) for number in range(64)))

    asyncio.run(ask_all())
