# SPDX-License-Identifier: Apache-2.0
"""A user's program whose annotations say the tensors; decorated functions keep their types."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt

from pytriton.decorators import model
from pytriton.model_config import ModelConfig
from pytriton.triton import Triton

Vector = Annotated[npt.NDArray[np.float32], (3,)]


@dataclass
class Answer:
    total: float
    words: list[str]


@model(name="Twice", max_batch_size=8, instances=2)
def twice(x: Vector) -> Vector:
    return x * 2


@model
def answer(text: str, times: int = 1) -> Answer:
    return Answer(float(times), text.split())


def count(limit: int) -> Iterator[int]:
    yield from range(limit)


async def count_later(limit: int) -> AsyncIterator[int]:
    for number in range(limit):
        yield number


@model(name="Scale")
class Scale:
    def __call__(self, x: float) -> float:
        return 2 * x


total: float = answer("to be", times=2).total
rows: npt.NDArray[np.float32] = twice(np.ones(3, np.float32))
scaled: float = Scale()(total)

with Triton() as triton:
    triton.bind(twice)
    triton.bind("Answer", answer)
    triton.bind("Count", count, config=ModelConfig(batching=False, decoupled=True))
    triton.bind(count_later)
    triton.bind(Scale)
