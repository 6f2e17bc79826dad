# SPDX-License-Identifier: Apache-2.0
import threading

import numpy as np

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton

FEATURES, LEARNING_RATE = 3, 0.1


class Regression:
    """A linear model that is asked by one endpoint and taught by another."""

    def __init__(self):
        self.weights = np.zeros((FEATURES, 1), np.float32)
        self.lock = threading.Lock()

    @batch
    def predict(self, x):
        # The weights are replaced and never changed in place, so no lock is needed to read them.
        return {"y": x @ self.weights}

    @batch
    def learn(self, x, y):
        with self.lock:
            error = x @ self.weights - y
            self.weights = self.weights - LEARNING_RATE * (x.T @ error) / len(x)
        return {"loss": error**2}


def bind(triton):
    regression = Regression()
    x = Tensor(name="x", dtype=np.float32, shape=(FEATURES,))
    y = Tensor(name="y", dtype=np.float32, shape=(1,))
    loss = Tensor(name="loss", dtype=np.float32, shape=(1,))
    config = ModelConfig(max_batch_size=256)
    triton.bind("Predict", regression.predict, [x], [y], config=config)
    triton.bind("Learn", regression.learn, [x, y], [loss], config=config)


if __name__ == "__main__":
    with Triton() as triton:
        bind(triton)
        triton.serve()
