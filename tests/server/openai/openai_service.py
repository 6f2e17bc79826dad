# SPDX-License-Identifier: Apache-2.0
"""The HTTP API with OpenAI's routes over a real engine, whose models answer what a test says."""

from __future__ import annotations

import json

import numpy as np

from pytriton.base import dtypes
from pytriton.base.messages import InferTensor
from pytriton.serving.server.openai.routes import SEGMENTS, OpenAIRoutes
from tests.server.http_fakes import Answer, post
from tests.server.http_models import Service

CHAT = b"/v1/chat/completions"
COMPLETIONS = b"/v1/completions"
EMBEDDINGS = b"/v1/embeddings"


def _model(routes: str, inputs: str, outputs: str, more: str = "") -> str:
    return (
        f'parameters {{ key: "openai" value {{ string_value: "{routes}" }} }} {more} '
        + " ".join(
            f'{kind} [ {{ name: "{name}" data_type: TYPE_{dtype} dims: [ {dims} ] }} ]'
            for kind, text in (("input", inputs), ("output", outputs))
            for name, dtype, dims in [text.split()]
        )
    )


DECOUPLED = "model_transaction_policy { decoupled: true }"
QUEUE = "dynamic_batching { default_queue_policy { max_queue_size: 1 } }"
OPENAI_MODELS = {
    "talk": _model("chat,completions", "prompt STRING 1", "text STRING 1", DECOUPLED),
    "whole": _model("completions", "prompt STRING 1", "text STRING 1"),
    "vectors": _model("embeddings", "input STRING 1", "embedding FP32 -1", "max_batch_size: 2"),
}


class OpenAIService(Service):
    """A server without its sockets, with models that have opted in."""

    def __init__(self, *, models: bool = True, **options) -> None:
        super().__init__(**options)
        self.api.other_apis.update(dict.fromkeys(SEGMENTS, OpenAIRoutes(self.api, self.client)))
        for name, text in OPENAI_MODELS.items() if models else ():
            self._serve(name, text)
        self.loop.run()

    @property
    def talk(self):
        return self.instances["talk"]


def body(**members: object) -> bytes:
    return json.dumps(members).encode()


def chat(content: str = "hi", **members: object) -> bytes:
    messages = [{"role": "user", "content": content}]
    return post(body(**{"model": "talk", "messages": messages, **members}), CHAT)


def completion(**members: object) -> bytes:
    return post(body(**{"model": "talk", "prompt": "hi", **members}), COMPLETIONS)


def embeddings(**members: object) -> bytes:
    return post(body(**{"model": "vectors", "input": "hi", **members}), EMBEDDINGS)


def rows(*values: list[float]) -> InferTensor:
    array = np.array(values, np.float32)
    return InferTensor("embedding", dtypes.FP32, array.shape, array.tobytes())


def error(answer: Answer) -> dict:
    document = json.loads(answer.body)
    assert document.keys() == {"error"}
    assert document["error"].keys() == {"message", "type", "param", "code"}
    assert answer.headers[b"Content-Type"] == b"application/json"
    assert answer.headers[b"x-request-id"]
    return document["error"]


def events(answer: Answer) -> list[dict]:
    """The events of a stream, without the last one."""
    assert answer.headers[b"Content-Type"] == b"text/event-stream; charset=utf-8"
    parts = answer.body.split(b"\n\n")
    assert parts[-2:] == [b"data: [DONE]", b""]
    return [json.loads(part.removeprefix(b"data: ")) for part in parts[:-2]]


def deltas(answer: Answer) -> list[object]:
    """What the choices of a stream say: a text, or the reason of the end."""
    choices = [choice for event in events(answer) for choice in event["choices"]]
    return [choice["finish_reason"] or choice["delta"].get("content") for choice in choices]
