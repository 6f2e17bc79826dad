# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator
from typing import Annotated

import numpy as np
from characters import CharacterModel

from pytriton.decorators import model
from pytriton.triton import Triton

MODEL = CharacterModel()
SIZE = 64


@model(openai="chat,completions")
def characters(
    prompt: str, max_tokens: int = 200, temperature: float = 0.0, seed: int = 0
) -> Iterator[str]:
    """Continue a text, one character at a time, until the end of its line."""
    random = np.random.default_rng(seed % 2**32)
    for _ in range(max_tokens):
        character = MODEL.next(prompt, temperature, random)
        if character == "\n":
            return
        prompt += character
        yield character


@model(openai="embeddings", max_batch_size=16)
def pairs(text: str) -> Annotated[np.ndarray, np.float32, (SIZE,)]:
    """Count the pairs of letters in each text of a batch; similar texts get similar vectors."""
    vectors = np.zeros((len(text), SIZE), np.float32)
    for vector, each in zip(vectors, text, strict=True):
        for pair in zip(each.lower(), each.lower()[1:], strict=False):
            vector[(ord(pair[0]) * 31 + ord(pair[1])) % SIZE] += 1
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)


if __name__ == "__main__":
    with Triton() as triton:
        triton.bind(characters)
        triton.bind(pairs)
        triton.serve()
