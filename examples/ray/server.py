# SPDX-License-Identifier: Apache-2.0
import numpy as np

from pytriton.model_config import ModelConfig, Ray, Tensor
from pytriton.triton import Triton


def bind(triton):
    triton.bind(
        "Score",
        "models:Scorer",
        inputs=[Tensor(name="image", dtype=np.float32, shape=(64,))],
        outputs=[Tensor(name="score", dtype=np.float32, shape=(1,))],
        config=ModelConfig(max_batch_size=8),
        instances=Ray(count=2, num_cpus=0.5, idempotent=True),
    )
    number = {"dtype": np.float32, "shape": (1,)}
    triton.bind(
        "Add",
        "models:make_adder",
        inputs=[Tensor(name="a", **number), Tensor(name="b", **number)],
        outputs=[Tensor(name="sum", **number)],
        instances=Ray(min=1, max=2, num_cpus=0.5),
    )


if __name__ == "__main__":
    with Triton() as triton:
        bind(triton)
        triton.serve()
