# SPDX-License-Identifier: Apache-2.0
"""A user's program that takes from `pytriton` itself what most programs use."""

import numpy as np
import numpy.typing as npt

import pytriton
import tritonserver
from pytriton import DynamicBatcher, ModelClient, ModelConfig, Tensor, Triton, TritonConfig, batch


@batch
def double(x: npt.NDArray[np.float32]) -> list[npt.NDArray[np.float32]]:
    return [2 * x]


def serve() -> None:
    with Triton(config=TritonConfig(http_port=8000)) as triton:
        triton.bind(
            "double",
            double,
            [Tensor((-1,), np.float32, "x")],
            [Tensor((-1,), np.float32)],
            config=ModelConfig(batcher=DynamicBatcher(100)),
        )
        triton.run()
        with ModelClient("localhost", "double") as client:
            client.infer_sample(np.ones(1, np.float32))["OUTPUT_1"].sum()


@pytriton.model
def add(a: int, b: int) -> int:
    return a + b


words: str = pytriton.__version__ + tritonserver.__version__
