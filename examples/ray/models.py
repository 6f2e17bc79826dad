# SPDX-License-Identifier: Apache-2.0
"""What the actors import. The script that binds it does not."""

import numpy as np

from pytriton.decorators import batch

SIZE = 64


class Scorer:
    """An object of it is made in each actor, and keeps its weights there."""

    def __init__(self):
        self.weights = np.eye(SIZE, dtype=np.float32)

    @batch
    def __call__(self, image):
        return {"score": np.maximum(image @ self.weights, 0).sum(axis=1, keepdims=True)}


def make_adder():
    """A factory: it is called once in each actor, and returns the function."""
    offset = np.float32(0.5)  # what takes long to load

    @batch
    def add(a, b):
        return {"sum": a + b + offset}

    return add
