# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from pytriton.decorators import model
from pytriton.triton import Triton

CONTEXT = 256
# A token is a byte. Unwanted ones are made impossible: the model may only say letters and blanks.
SPOKEN = [32, *range(ord("a"), ord("z") + 1)]


@model(openai="chat,completions")
class Gpt2:
    """A small GPT-2 with random weights, so what it says makes no sense."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        config = GPT2Config(vocab_size=256, n_positions=CONTEXT, n_embd=64, n_layer=2, n_head=2)
        self._network = GPT2LMHeadModel(config).eval()
        self._mask = torch.full((256,), float("-inf"))
        self._mask[SPOKEN] = 0

    @torch.inference_mode()
    def __call__(
        self, prompt: str, max_tokens: int = 32, temperature: float = 1.0, seed: int = 0
    ) -> Iterator[str]:
        random = torch.Generator().manual_seed(seed)
        tokens = torch.tensor([list(prompt.encode())[-CONTEXT // 2 :]])
        cache = None
        for _ in range(min(max_tokens, CONTEXT // 2)):
            answer = self._network(tokens, past_key_values=cache, use_cache=True)
            cache = answer.past_key_values
            chances = (answer.logits[0, -1] + self._mask) / max(temperature, 1e-5)
            token = torch.multinomial(chances.softmax(0), 1, generator=random)
            tokens = token.unsqueeze(0)
            yield chr(int(token))


if __name__ == "__main__":
    with Triton() as triton:
        triton.bind("gpt2", Gpt2)
        triton.serve()
