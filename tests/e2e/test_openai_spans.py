# SPDX-License-Identifier: Apache-2.0
"""Spans of OpenAI's routes have the attributes of language models, and metrics their tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated

import numpy as np
import pytest

from pytriton.decorators import model
from tests.e2e.http_client import call
from tests.e2e.waiting import eventually
from tests.otlp_collector import Collector, new_trace_id

PARENT_ID = f"{0xB7AD6B7169203331:016x}"


@model(openai="chat,completions")
def speaker(prompt: str, max_tokens: int = 3) -> Iterator[str]:
    """Says as many words as it may."""
    for _ in range(max_tokens):
        yield "word "


@model(openai="embeddings", max_batch_size=4)
def vectors(text: str) -> Annotated[np.ndarray, np.float32, (2,)]:
    """Says nothing."""
    return np.ones((len(text), 2), np.float32)


@pytest.fixture(params=[0, 2], ids=["one-process", "front-ends"])
def server(request, run_triton):
    with Collector() as collector:
        triton = run_triton(
            trace_config=[*collector.settings, "rate=0"], frontend_processes=request.param
        )
        triton.bind(speaker)
        triton.bind(vectors)
        yield triton._config, collector


def ask(server, path, **members):
    """Send a traced request; returns the attributes of the span of its request."""
    config, collector = server
    trace_id = new_trace_id()
    headers = {"traceparent": f"00-{trace_id}-{PARENT_ID}-01", "x-request-id": "r1"}
    answer = call(config.http_port, path, json.dumps(members).encode(), headers)
    assert answer.status == 200, answer.body

    def found():
        return [
            span
            for span in list(collector.spans)
            if span.trace_id == trace_id and span.name == "InferRequest"
        ]

    assert eventually(found)
    (span,) = found()
    return {name: value for name, value in span.attributes.items() if "gen_ai" in name}


def test_chat_has_attributes_of_language_models(server):
    messages = [{"role": "user", "content": "hi"}]
    attributes = ask(
        server, "/v1/chat/completions", model="speaker", messages=messages, max_tokens=5
    )

    assert attributes.pop("gen_ai.server.time_to_first_token") >= 0
    assert attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "pytriton",
        "gen_ai.request.model": "speaker",
        "gen_ai.response.model": "speaker",
        "gen_ai.response.id": "r1",
        "gen_ai.usage.input_tokens": 0,
        "gen_ai.usage.output_tokens": 5,
    }


def test_stream_of_a_completion_has_its_tokens(server):
    attributes = ask(
        server, "/v1/completions", model="speaker", prompt="hi", max_tokens=7, stream=True
    )

    assert attributes["gen_ai.operation.name"] == "text_completion"
    assert attributes["gen_ai.usage.output_tokens"] == 7


def test_embeddings_have_no_output_tokens(server):
    attributes = ask(server, "/v1/embeddings", model="vectors", input="hi")

    assert attributes["gen_ai.operation.name"] == "embeddings"
    assert "gen_ai.usage.output_tokens" not in attributes
    assert "gen_ai.server.time_to_first_token" not in attributes


def test_metrics_count_tokens_of_all_requests(server):
    config, _ = server
    for stream in (False, True):
        body = {"model": "speaker", "prompt": "hi", "max_tokens": 40, "stream": stream}
        path = "/v1/completions"
        assert call(config.http_port, path, json.dumps(body).encode()).status == 200

    def counted():
        return b'nv_inference_tokens{model="speaker",principal="",direction="out",version="1"} 80'

    assert eventually(lambda: counted() in call(config.metrics_port, "/metrics").body)
