# SPDX-License-Identifier: Apache-2.0
import asyncio

import numpy as np

from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton

PAUSE_S = 0.02


async def tell(requests):
    """As a language model does: a word at a time, each a response of its own."""
    (request,) = requests
    words = request["prompt"].item().decode().split()
    for word in reversed(words):
        await asyncio.sleep(PAUSE_S)
        yield [{"text": np.array([word.encode()], dtype=np.object_)}]


def bind(triton):
    triton.bind(
        model_name="Backwards",
        infer_func=tell,
        inputs=[Tensor(name="prompt", dtype=np.object_, shape=(1,))],
        outputs=[Tensor(name="text", dtype=np.object_, shape=(1,))],
        config=ModelConfig(batching=False, decoupled=True),
    )


if __name__ == "__main__":
    with Triton() as triton:
        bind(triton)
        triton.serve()
