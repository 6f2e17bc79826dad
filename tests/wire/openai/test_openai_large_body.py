# SPDX-License-Identifier: Apache-2.0
"""Large requests of OpenAI's clients come out of another process as they would be read here."""

from __future__ import annotations

import json

import msgspec
import pytest

from pytriton.protocol.openai.errors import OpenAIError
from pytriton.protocol.openai.large_body import (
    decode_large,
    encode_task,
    read_large,
    read_work,
)
from pytriton.protocol.openai.members import DocumentMembers
from tests.wire.openai.openai_specs import VLLM_INPUTS, VLLM_OUTPUTS, spec

LONG = "x" * 300_000
CHATS = spec("chat", {"messages": "STRING [1]", "seed": "INT64 [1] ?"})
PROMPTS = spec("chat,completions", {"prompt": "STRING [1]"}, template="chatml")
VLLM = spec("chat,completions", VLLM_INPUTS, VLLM_OUTPUTS)
VECTORS = spec(
    "embeddings",
    {"input": "STRING [1]", "dimensions": "INT32 [1] ?"},
    {"embedding": "FP32 [-1]"},
    max_batch_size=2,
    decoupled=False,
)
MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": LONG}]


def body_of(**members: object) -> bytes:
    return json.dumps({"model": "m", **members}).encode()


def read_elsewhere(route, model, body):
    return decode_large(*read_large(encode_task(route, {"m": model}), body))


def fields(work):
    """What was read, so that it can be compared."""
    requests = [
        {
            **msgspec.structs.asdict(request),
            "inputs": {
                name: (it.name, it.dtype, it.shape, bytes(it.data))
                for name, it in request.inputs.items()
            },
        }
        for request in work.requests
    ]
    return {**msgspec.structs.asdict(work), "requests": requests}


@pytest.mark.parametrize(
    "route, model, members",
    [
        ("chat", CHATS, {"messages": MESSAGES}),
        ("chat", CHATS, {"messages": MESSAGES, "n": 3, "seed": 7, "user": "u", "stop": ["\n"]}),
        ("chat", PROMPTS, {"messages": MESSAGES, "max_tokens": 5, "temperature": 0.5}),
        ("chat", VLLM, {"messages": MESSAGES, "stream": True, "top_p": 0.5}),
        ("completions", PROMPTS, {"prompt": [LONG, "y"], "n": 2, "echo": True, "stream": True}),
        ("completions", VLLM, {"prompt": LONG, "logprobs": 2, "logit_bias": {"5": 1}}),
        ("embeddings", VECTORS, {"input": [LONG, "y", "z"], "dimensions": 5}),
        ("embeddings", VECTORS, {"input": LONG, "encoding_format": "base64"}),
    ],
)
def test_request_is_read_elsewhere_as_here(route, model, members):
    body = body_of(**members)
    here = DocumentMembers(body)
    here.text("model")
    name, problem, work = read_elsewhere(route, model, body)

    assert (name, problem) == ("m", None)
    assert fields(work) == fields(read_work(here, model, route))


def test_tensors_that_choices_share_are_sent_once():
    task = encode_task("completions", {"m": PROMPTS})
    _, parts = read_large(task, body_of(prompt=[LONG, "y"], n=20))

    assert sorted(map(len, parts)) == [5, 4 + len(LONG)]


@pytest.mark.parametrize(
    "members",
    [
        {"messages": MESSAGES, "n": 0},
        {"messages": MESSAGES, "tools": [{}]},
        {"messages": []},
        {"messages": MESSAGES, "more": LONG},
        {"messages": LONG},
    ],
)
def test_refusal_is_the_same_elsewhere_as_here(members):
    body = body_of(**members)

    def read_here():
        here = DocumentMembers(body)
        here.text("model")
        return read_work(here, CHATS, "chat")

    with pytest.raises(OpenAIError) as raised:
        read_here()
    _, problem, work = read_elsewhere("chat", CHATS, body)

    assert work is None
    assert vars(problem) == vars(raised.value)


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"model": 5}'])
def test_body_that_is_no_request_is_refused(body):
    name, problem, _ = read_elsewhere("chat", CHATS, body)

    assert (name, problem.status) == ("", 400)


def test_request_for_another_model_is_only_named():
    body = json.dumps({"model": "other", "messages": MESSAGES}).encode()

    assert read_elsewhere("chat", CHATS, body) == ("other", None, None)
