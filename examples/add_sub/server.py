# SPDX-License-Identifier: Apache-2.0
import numpy as np

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton


@batch
def add_sub(a, b):
    return {"add": a + b, "sub": a - b}


def bind(triton):
    triton.bind(
        model_name="AddSub",
        infer_func=add_sub,
        inputs=[
            Tensor(name="a", dtype=np.float32, shape=(1,)),
            Tensor(name="b", dtype=np.float32, shape=(1,)),
        ],
        outputs=[
            Tensor(name="add", dtype=np.float32, shape=(1,)),
            Tensor(name="sub", dtype=np.float32, shape=(1,)),
        ],
        config=ModelConfig(max_batch_size=128),
    )


if __name__ == "__main__":
    with Triton() as triton:
        bind(triton)
        triton.serve()
