# SPDX-License-Identifier: Apache-2.0
"""A user's program that binds every kind of callable, with every kind of setting."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pytriton.decorators import (
    ConstantPadder,
    InferenceRequest,
    InferenceRequests,
    InferenceResult,
    InferenceResults,
    TritonContext,
    batch,
    fill_optionals,
    first_value,
    group_by_keys,
    group_by_values,
    pad_batch,
    sample,
    triton_context,
)
from pytriton.exceptions import PyTritonError, PyTritonUnrecoverableError
from pytriton.model_config import (
    ControlKind,
    DirectStrategy,
    DynamicBatcher,
    ModelConfig,
    OldestStrategy,
    QueuePolicy,
    RateLimiter,
    RateLimiterResource,
    Ray,
    SequenceBatcher,
    SequenceControl,
    SequenceState,
    Tensor,
    TimeoutAction,
)
from pytriton.model_config.common import ModelWarmup, WarmupInput
from pytriton.triton import RemoteTriton, Triton, TritonConfig, TritonLifecyclePolicy

Array = npt.NDArray[np.float32]


@batch
def doubled(values: Array) -> dict[str, Array]:
    return {"doubled": values * 2}


@batch
def listed(**inputs: Array) -> list[Array]:
    (values,) = inputs.values()
    return [values]


@sample
def one(values: Array) -> dict[str, Array]:
    return {"doubled": values * 2}


@group_by_keys
@fill_optionals(factor=np.array([2.0], np.float32))
@batch
@group_by_values("factor", pad_fn=ConstantPadder(0))
@pad_batch
@first_value("factor")
def decorated(values: Array, factor: float) -> dict[str, Array]:
    return {"doubled": values * np.float32(factor)}


def of_requests(requests: list[dict[str, Array]]) -> list[dict[str, Array]]:
    return [{"doubled": request["values"] * 2} for request in requests]


def of_sequences(requests: InferenceRequests) -> InferenceResults:
    first: InferenceRequest = requests[0]
    result: InferenceResult = {"doubled": first["values"] * 2}
    return [result for _ in requests]


@batch
def streamed(values: Array) -> Iterator[dict[str, Array]]:
    for row in values:
        yield {"doubled": row[np.newaxis] * 2}


async def asynchronous(requests: list[dict[str, Array]]) -> list[dict[str, Array]]:
    return of_requests(requests)


async def asynchronously_streamed(
    requests: list[dict[str, Array]],
) -> AsyncIterator[list[dict[str, Array]]]:
    yield of_requests(requests)


class Model:
    def __init__(self, device: str) -> None:
        self._device = device

    @batch
    def __call__(self, values: Array) -> dict[str, Array]:
        if not values.size:
            raise PyTritonUnrecoverableError("no values")
        return {"doubled": values * 2}

    @batch
    @triton_context
    def infer(self, values: Array, triton_context: TritonContext) -> dict[str, Array]:
        name: str = triton_context.model_config.model_name
        return {"doubled": values * len(name)}


INPUTS = [Tensor(name="values", dtype=np.float32, shape=(-1,))]
OUTPUTS = (Tensor(name="doubled", dtype=np.float32, shape=(-1,)),)


def configurations() -> Iterator[ModelConfig]:
    yield ModelConfig()
    yield ModelConfig(batching=False, max_batch_size=1, response_cache=True)
    policy = QueuePolicy(timeout_action=TimeoutAction.DELAY, max_queue_size=10)
    yield ModelConfig(
        batcher=DynamicBatcher(
            max_queue_delay_microseconds=100,
            preferred_batch_size=[4, 8],
            default_queue_policy=policy,
            priority_levels=2,
            default_priority_level=1,
            priority_queue_policy={2: policy},
        )
    )
    yield ModelConfig(batcher=None, decoupled=True)
    state = SequenceState("in", "out", dtype=np.float32, shape=(1,))
    control = SequenceControl(ControlKind.START, "START")
    yield ModelConfig(
        sequence=SequenceBatcher(strategy=DirectStrategy(), controls=[control], states=[state])
    )
    yield ModelConfig(sequence=SequenceBatcher(strategy=OldestStrategy()))
    yield ModelConfig(rate_limiter=RateLimiter(resources=[RateLimiterResource("R1", 1)]))
    warmup = WarmupInput(dtype=np.float32, shape=(1,), zero_data=True)
    yield ModelConfig(model_warmup=[ModelWarmup("w", 1, {"values": warmup}, count=1)])


def serve(repository: Path) -> None:
    config = TritonConfig(http_port=8000, grpc_port=8001, log_verbose=1, ray_working_dir=".")
    with Triton(config=config) as triton:
        triton.bind("Doubled", doubled, INPUTS, OUTPUTS)
        triton.bind("Far", "models:doubled", INPUTS, OUTPUTS, instances=Ray(count=2, num_gpus=0.5))
        triton.bind(
            model_name="Two",
            infer_func=[Model("cpu"), Model("cuda:0").infer],
            inputs=[Tensor(dtype=np.float32, shape=(-1,)), Tensor(dtype=bytes, shape=(1,))],
            outputs=[Tensor(dtype="float32", shape=(-1,))],
            model_version=2,
            config=ModelConfig(max_batch_size=16),
            strict=True,
        )
        for number, function in enumerate(
            (listed, one, decorated, of_requests, of_sequences, asynchronous)
        ):
            triton.bind(f"Model{number}", function, INPUTS, OUTPUTS)
        triton.bind("Streamed", streamed, INPUTS, OUTPUTS, config=ModelConfig(decoupled=True))
        is_ready: bool = triton.is_alive()
        print(is_ready)
        triton.serve()

    remote = RemoteTriton(url="localhost:8000")
    remote.bind("Streamed", asynchronously_streamed, INPUTS, OUTPUTS)
    remote.connect()
    remote.stop()

    try:
        policy = TritonLifecyclePolicy(launch_triton_on_startup=True)
        later = Triton(
            config=TritonConfig(model_repository=repository), triton_lifecycle_policy=policy
        )
        later.run()
        later.stop()
    except PyTritonError as error:
        text: str = error.message
        print(text)


def requests_of(parameters: dict[str, Any]) -> int:
    return len(parameters)
