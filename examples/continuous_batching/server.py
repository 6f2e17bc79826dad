# SPDX-License-Identifier: Apache-2.0
import asyncio
import pathlib
import time

import numpy as np

from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

STEP_S = 0.01  # a step takes about as long for many requests as for one
REPOSITORY = pathlib.Path(__file__).parent / "model_repository"


def next_letters(letters):
    """Stands for a language model: one step for all requests of the batch, a letter for each."""
    time.sleep(STEP_S)
    return (letters - ord("a") + 1) % 26 + ord("a")


class Tokens:
    """A running batch. Requests join it between two steps, and leave it when they are done."""

    def __init__(self):
        self._running = {}  # the last letter of each request, by the queue of its answers
        self._steps = None  # the task that runs the steps; it ends when no request is left

    async def generate(self, requests):
        (request,) = requests
        answers = asyncio.Queue()
        self._running[answers] = ord(request["prompt"].item()[-1:])
        if self._steps is None or self._steps.done():
            self._steps = asyncio.create_task(self._run())
        try:
            for _ in range(request["count"].item()):
                letter, batch_size = await answers.get()
                yield [
                    {
                        "token": np.array([chr(letter).encode()], dtype=np.object_),
                        "batch_size": np.array([batch_size], np.int32),
                    }
                ]
        finally:  # all tokens were sent, or the client is gone
            del self._running[answers]

    async def _run(self):
        while batch := list(self._running):
            letters = np.array([self._running[answers] for answers in batch])
            letters = await asyncio.to_thread(next_letters, letters)
            for answers, letter in zip(batch, letters.tolist(), strict=True):
                if answers in self._running:
                    self._running[answers] = letter
                    answers.put_nowait((letter, len(batch)))


def bind(triton):
    triton.bind(
        model_name="Tokens",
        infer_func=Tokens().generate,
        inputs=[
            Tensor(name="prompt", dtype=np.object_, shape=(1,)),
            Tensor(name="count", dtype=np.int32, shape=(1,)),
        ],
        outputs=[
            Tensor(name="token", dtype=np.object_, shape=(1,)),
            Tensor(name="batch_size", dtype=np.int32, shape=(1,)),
        ],
        config=ModelConfig(batching=False, decoupled=True),
    )


if __name__ == "__main__":
    # The same as a model.py is in the repository, and is served beside the bound function.
    with Triton(config=TritonConfig(model_repository=REPOSITORY)) as triton:
        bind(triton)
        triton.serve()
