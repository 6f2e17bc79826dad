# SPDX-License-Identifier: Apache-2.0
"""Models for OpenAI's clients, which say what the last message or prompt says."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Annotated

import numpy as np

from pytriton.decorators import model
from pytriton.model_config import DynamicBatcher, ModelConfig, QueuePolicy, Tensor
from pytriton.triton import Triton

CALL = {"name": "clock", "arguments": {"zone": "UTC"}}


@model(openai="chat")
def typed(messages: str, max_tokens: int = 64) -> Iterator[str]:
    """Repeats the words of the last message."""
    words = json.loads(messages)[-1]["content"].split()
    yield from (f"{word} " for word in words[:max_tokens])


@model(openai="embeddings", max_batch_size=2)
def vectors(text: str) -> Annotated[np.ndarray, np.float32, (2,)]:
    """Counts the characters of each text, and its blanks."""
    return np.array([[len(each), each.count(" ")] for each in text], np.float32)


@model(openai="completions")
def upper(prompt: str) -> str:
    """Answers all at once."""
    return prompt.upper()


@model(openai="chat,completions")
def broken(prompt: str) -> Iterator[str]:
    """Fails at once, or in the middle."""
    if "at once" in prompt:
        raise ValueError("it broke at once")
    yield "so far "
    raise ValueError("it broke")


class Models:
    """The models that note something, and where they are."""

    def __init__(self, url: str, metrics_url: str) -> None:
        self.url = url
        self.metrics_url = metrics_url
        self.closed: list[str] = []  # prompts whose answers were ended by the server
        self.asked: list[str] = []  # prompts of the model `endless`
        self.produced = 0
        self.release = threading.Event()  # lets the model `busy` answer
        self.started = threading.Semaphore(0)  # released by `busy` for each request

    def bind(self, triton: Triton) -> None:
        for function in (typed, vectors, upper, broken):
            triton.bind(function)
        text = {"dtype": np.bytes_, "shape": (1,)}
        alone = {"batching": False, "decoupled": True}
        triton.bind(
            "endless",
            self._count,
            [Tensor(name="prompt", **text)],
            [Tensor(name="text", **text)],
            config=ModelConfig(**alone, openai="chat,completions"),
        )
        triton.bind(
            "tools",
            _call_tools,
            [Tensor(name="messages", **text), Tensor(name="tools", **text, optional=True)],
            [Tensor(name="text", **text), Tensor(name="tool_calls", **text)],
            config=ModelConfig(**alone, openai="chat"),
        )
        triton.bind(
            "busy",
            self._wait,
            [Tensor(name="prompt", **text)],
            [Tensor(name="text", **text)],
            config=ModelConfig(
                max_batch_size=1,
                batcher=DynamicBatcher(default_queue_policy=QueuePolicy(max_queue_size=1)),
                openai="completions",
            ),
        )

    async def _count(self, requests):
        (request,) = requests
        prompt = request["prompt"].item().decode()
        self.asked.append(prompt)
        try:
            number = 0
            while True:
                self.produced += 1
                yield [{"text": np.array([f"{number} ".encode()])}]
                number += 1
        finally:
            self.closed.append(prompt)

    def _wait(self, requests):
        self.started.release()
        self.release.wait()
        return [{"text": request["prompt"]} for request in requests]


def _call_tools(requests):
    (request,) = requests
    calls = [CALL] if "tools" in request else []
    said = b"" if calls else b"no tools"
    yield [{"text": np.array([said]), "tool_calls": np.array([json.dumps(calls).encode()])}]
