# SPDX-License-Identifier: Apache-2.0
"""Four models whose inputs and outputs are their type annotations: pytriton serve models.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from pytriton.decorators import model

Point = Annotated[NDArray[np.float32], (3,)]
Number = Annotated[NDArray[np.float32], ()]


@model
def greet(name: str, polite: bool = False) -> str:
    """A function: it gets one request at a time, as plain Python values."""
    return f"Good day, {name}." if polite else f"Hi {name}!"


@model(name="Distance", max_batch_size=16, batch_delay_us=1000)
def distance(a: Point, b: Point) -> Number:
    """A function of batches: its arrays have one more axis in front, for the rows."""
    return np.linalg.norm(a - b, axis=1)


@dataclasses.dataclass
class Opinion:
    """Several outputs: each field is one."""

    label: str
    score: float


@model(instances=2)
class Sentiment:
    """A class: one object is made for each instance, so `__init__` is the place to load things."""

    def __init__(self) -> None:
        self.weights = {"good": 1.0, "great": 2.0, "bad": -1.0}

    def __call__(self, words: list[str]) -> Opinion:
        score = sum(self.weights.get(word, 0.0) for word in words)
        return Opinion("positive" if score > 0 else "negative", score)


@model
def count_down(start: int) -> Iterator[int]:
    """A generator: each value that it yields is one response of a stream."""
    yield from range(start, 0, -1)
