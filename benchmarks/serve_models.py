# SPDX-License-Identifier: Apache-2.0
"""Usage: serve_models.py HTTP_PORT   (gRPC on the next port, metrics on the one after).

Serves the measured models with whichever `pytriton` the interpreter has: ours or NVIDIA's.
"""

from __future__ import annotations

import sys

import numpy as np

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig


@batch
def add_sub(a: np.ndarray, b: np.ndarray) -> dict[str, np.ndarray]:
    return {"add": a + b, "sub": a - b}


@batch
def identity(x: np.ndarray) -> dict[str, np.ndarray]:
    return {"y": x}


def float_tensor(name: str, size: int) -> Tensor:
    return Tensor(name=name, dtype=np.float32, shape=(size,))


def main() -> None:
    port = int(sys.argv[1])
    config = TritonConfig(http_port=port, grpc_port=port + 1, metrics_port=port + 2)
    with Triton(config=config) as triton:
        triton.bind(
            model_name="AddSub",
            infer_func=add_sub,
            inputs=[float_tensor("a", 1), float_tensor("b", 1)],
            outputs=[float_tensor("add", 1), float_tensor("sub", 1)],
            config=ModelConfig(max_batch_size=128),
        )
        triton.bind(
            model_name="Ident",
            infer_func=identity,
            inputs=[float_tensor("x", -1)],
            outputs=[float_tensor("y", -1)],
            config=ModelConfig(max_batch_size=8),
        )
        triton.serve()


if __name__ == "__main__":
    main()
