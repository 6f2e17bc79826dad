# SPDX-License-Identifier: Apache-2.0
"""Users' code as a type checker sees it: every form that the guides show, never run.

What `assert_type` states is what an editor shows them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import assert_type

from pytriton.client import (
    AsyncioDecoupledModelClient,
    AsyncioModelClient,
    DecoupledModelClient,
    FuturesModelClient,
    ModelClient,
)
from pytriton.decorators import (
    ConstantPadder,
    TritonContext,
    batch,
    fill_optionals,
    first_value,
    group_by_keys,
    group_by_values,
    triton_context,
)
from pytriton.model_config import DynamicBatcher, ModelConfig, QueuePolicy, Tensor, TimeoutAction
from pytriton.model_config.common import ModelWarmup, WarmupInput
from pytriton.model_config.triton_model_config import TritonModelConfig
from pytriton.proxy.types import Request
from pytriton.triton import RemoteTriton, Triton, TritonConfig, TritonSecurityConfig

Array = NDArray[Any]
X = Tensor(name="x", dtype=np.float32, shape=(-1,))


@batch
def named(x: Array, y: Array) -> dict[str, Array]:
    return {"x": x + y}


@fill_optionals(temperature=np.array([0.7], np.float32))
@group_by_keys
@batch
@group_by_values("temperature", pad_fn=ConstantPadder(0))
@first_value("temperature")
@triton_context
def stacked(triton_context: TritonContext, x: Array, temperature: np.float32) -> dict[str, Array]:
    assert_type(triton_context.model_config, TritonModelConfig)
    return {"x": x * temperature}


def undecorated(requests: list[Request]) -> list[dict[str, Array]]:
    for request in requests:
        assert_type(request["x"], Array)
        with request.traced_span("work"):
            float((request.parameters or {})["scale"])
    return [{"x": request.data["x"]} for request in requests]


async def coroutine(requests: list[Request]) -> list[dict[str, Array]]:
    return undecorated(requests)


def generator(requests: list[Request]) -> Iterator[list[dict[str, Array]]]:
    yield undecorated(requests)


async def async_generator(requests: list[Request]) -> AsyncIterator[list[dict[str, Array]]]:
    yield undecorated(requests)


class Model:
    @batch
    def __call__(self, **inputs: Array) -> list[Array]:
        return list(inputs.values())


def serve() -> None:
    batcher = DynamicBatcher(
        preferred_batch_size=[2, 4],
        default_queue_policy=QueuePolicy(timeout_action=TimeoutAction.DELAY),
    )
    warmup = ModelWarmup("zeros", 1, {"x": WarmupInput(np.float32, (1,), zero_data=True)}, count=1)
    config = ModelConfig(max_batch_size=8, batcher=batcher, model_warmup=[warmup])
    security = TritonSecurityConfig(restricted_endpoints=["logging"])
    with Triton(config=TritonConfig(http_port=8015), security_config=security) as triton:
        for function in (named, stacked, undecorated, coroutine, generator, async_generator):
            triton.bind("Model", function, inputs=[X], outputs=(X,), config=config, strict=True)
        triton.bind("Instances", [Model(), Model()], [X], [X])
        triton.bind("Identity", lambda requests: requests, [X], [X])
        assert_type(triton.get_access_token(), str | None)
        assert_type(triton.stop(), bool)
    with RemoteTriton("localhost", access_token="token") as remote:
        remote.bind("Model", undecorated, [X], [X])
        remote.serve()


def ask(x: Array) -> None:
    with ModelClient("localhost", "Model", init_timeout_s=120) as client:
        answer = client.infer_sample(x, parameters={"scale": 2}, headers={"name": "value"})
        assert_type(answer, dict[str, Array])
        assert_type(client.model_config, TritonModelConfig)
        assert_type(ModelClient.from_existing_client(client), ModelClient)
    with FuturesModelClient("localhost", "Model", max_workers=None) as futures:
        assert_type(futures.infer_batch(x=x).result(), dict[str, Array])
        assert_type(futures.model_config().result(), TritonModelConfig)
    with DecoupledModelClient("grpc://localhost", "Model") as decoupled:
        for part in decoupled.infer_sample(x):
            assert_type(part, dict[str, Array])


async def ask_later(x: Array) -> None:
    async with AsyncioModelClient("localhost", "Model") as client:
        assert_type(await client.infer_batch(x), dict[str, Array])
        assert_type(await client.model_config, TritonModelConfig)
    async with AsyncioDecoupledModelClient("grpc://localhost", "Model") as decoupled:
        async for part in decoupled.infer_batch(x):
            assert_type(part, dict[str, Array])
