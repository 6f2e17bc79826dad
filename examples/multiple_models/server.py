# SPDX-License-Identifier: Apache-2.0
import numpy as np

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton

VALUES = Tensor(name="values", dtype=np.float32, shape=(-1,))
RESULT = Tensor(name="result", dtype=np.float32, shape=(1,))


@batch
def mean(values):
    return {"result": values.mean(axis=1, keepdims=True)}


@batch
def spread(values):
    return {"result": np.ptp(values, axis=1, keepdims=True)}


@batch
def deviation(values):
    return {"result": values.std(axis=1, keepdims=True)}


def bind(triton):
    config = ModelConfig(max_batch_size=64)
    triton.bind("Mean", mean, [VALUES], [RESULT], config=config)
    triton.bind("Spread", spread, [VALUES], [RESULT], config=config)
    triton.bind("Spread", deviation, [VALUES], [RESULT], model_version=2, config=config)


if __name__ == "__main__":
    with Triton() as triton:
        bind(triton)
        triton.serve()
