# SPDX-License-Identifier: Apache-2.0
"""An engine that needs no GPU: each token of its answers is a number."""

import asyncio
import dataclasses


@dataclasses.dataclass
class Output:
    """What the engine has generated so far."""

    text: str
    token_count: int
    input_count: int
    is_finished: bool

    @property
    def cumulative_logprob(self):
        return -0.5 * self.token_count


class ToyEngine:
    """Generates `max_tokens` tokens, one in `delay_s` seconds."""

    def __init__(self, arguments):
        self._delay_s = arguments.get("delay_s", 0.0)
        self._is_healthy = arguments.get("is_healthy", True)
        self.aborted = []

    def is_healthy(self):
        return self._is_healthy

    def abort(self, prompt):
        self.aborted.append(prompt)

    async def generate(self, prompt, sampling):
        count = sampling.get("max_tokens", 4)
        if count <= 0:
            raise ValueError(f"max_tokens must be at least 1, got {count}.")
        words = ""
        for number in range(count):
            await asyncio.sleep(self._delay_s)
            words += f" {number}"
            yield Output(words, number + 1, len(prompt.split()), number == count - 1)
