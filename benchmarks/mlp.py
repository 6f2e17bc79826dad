# SPDX-License-Identifier: Apache-2.0
"""The network of the model Mlp: two layers of 16 numbers."""

from __future__ import annotations

import numpy as np

from benchmarks.servers import HERE

WIDTH = 16
FILE = HERE / "model_repository" / "Mlp" / "1" / "model.onnx"


def weights() -> dict[str, np.ndarray]:
    """What the layers multiply by and add, the same each time."""
    random = np.random.default_rng(0)
    shapes = {"w1": (WIDTH, WIDTH), "b1": (WIDTH,), "w2": (WIDTH, WIDTH), "b2": (WIDTH,)}
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def expected(x: np.ndarray) -> np.ndarray:
    """The right answer, but for the last digits."""
    layer = weights()
    hidden = np.maximum(x @ layer["w1"] + layer["b1"], 0)
    y: np.ndarray = hidden @ layer["w2"] + layer["b2"]
    return y
