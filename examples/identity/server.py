# SPDX-License-Identifier: Apache-2.0
import numpy as np

from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton


def identity(requests):
    return [{"data": request["data"]} for request in requests]


def bind(triton):
    triton.bind(
        model_name="Identity",
        infer_func=identity,
        # object, not bytes_: numpy's fixed-width bytes lose trailing NULs.
        inputs=[Tensor(name="data", dtype=np.object_, shape=(-1,))],
        outputs=[Tensor(name="data", dtype=np.object_, shape=(-1,))],
        config=ModelConfig(max_batch_size=16),
    )


if __name__ == "__main__":
    with Triton() as triton:
        bind(triton)
        triton.serve()
