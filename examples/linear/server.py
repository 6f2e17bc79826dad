# SPDX-License-Identifier: Apache-2.0
import numpy as np

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton

FEATURES, CLASSES = 20, 30


class Linear:
    def __init__(self, seed):
        generator = np.random.default_rng(seed)
        self.weights = generator.standard_normal((FEATURES, CLASSES), dtype=np.float32)
        self.bias = generator.standard_normal(CLASSES, dtype=np.float32)

    @batch
    def __call__(self, features):
        return {"scores": features @ self.weights + self.bias}


def bind(triton):
    triton.bind(
        model_name="Linear",
        infer_func=[Linear(seed=0), Linear(seed=0)],  # two instances take turns
        inputs=[Tensor(name="features", dtype=np.float32, shape=(FEATURES,))],
        outputs=[Tensor(name="scores", dtype=np.float32, shape=(CLASSES,))],
        config=ModelConfig(max_batch_size=64),
        strict=True,
    )


if __name__ == "__main__":
    with Triton() as triton:
        bind(triton)
        triton.serve()
