# SPDX-License-Identifier: Apache-2.0
"""Random JSON for every endpoint that reads it: KServe's, Triton's extensions, and OpenAI's.

Documents are valid ones with a few changes, so that readers come far before they find one.
"""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from tests.fuzz.fuzzing import Case, assert_work_is_paid, fuzz, without_logged_errors
from tests.fuzz.http_rig import FIXED_WORK, HttpRig
from tests.fuzz.mutation import mutate_document, write_document
from tests.server.http_fakes import post
from tests.server.openai.openai_service import CHAT, COMPLETIONS, EMBEDDINGS

INPUT = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.5]}
INFERENCES: tuple[dict[str, Any], ...] = (
    {"inputs": [INPUT]},
    {"id": "7", "inputs": [{**INPUT, "data": [[1, 2]]}], "outputs": [{"name": "y"}]},
    {
        "inputs": [{**INPUT, "parameters": {"a": 1}}],
        "outputs": [{"name": "y", "parameters": {"binary_data": True, "classification": 1}}],
        "parameters": {"priority": 1, "timeout": 10**7, "binary_data_output": True},
    },
    {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "parameters": {
            "shared_memory_region": "r", "shared_memory_offset": 0,
            "shared_memory_byte_size": 4}}],
        "parameters": {"sequence_id": 3, "sequence_start": True, "sequence_end": False},
    },
)  # fmt: skip
INFER_NAMES = (
    "id", "inputs", "outputs", "parameters", "name", "datatype", "shape", "data", "binary_data",
    "binary_data_size", "binary_data_output", "classification", "priority", "timeout",
    "sequence_id", "sequence_start", "sequence_end", "shared_memory_region",
    "shared_memory_byte_size", "shared_memory_offset", "headers", "triton_final_response",
)  # fmt: skip
DATATYPES = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16",
    "FP32", "FP64", "BYTES", "BF16",
)  # fmt: skip
GENERATIONS: tuple[dict[str, Any], ...] = (
    {"prompt": "a"},
    {"id": "1", "prompt": ["a"], "parameters": {"temperature": 0.5, "b": True}},
    {"prompt": "a", "other": {"nested": [1, {"a": None}]}},
)
CONFIG = {"name": "m", "backend": "python", "max_batch_size": 8}
LOADS: tuple[dict[str, Any], ...] = (
    {},
    {"parameters": {"config": json.dumps(CONFIG)}},
    {"parameters": {"config": "{}", "file:1/data": "cGFzcw=="}},
    {"parameters": {"unload_dependents": True}},
)
TRACES: tuple[dict[str, Any], ...] = (
    {"trace_level": ["TIMESTAMPS"], "trace_rate": "500", "trace_count": "-1"},
    {"trace_file": "t", "log_frequency": "5", "trace_mode": "triton", "trace_config": {}},
    {"trace_level": None, "trace_rate": None},
)
LOGS: tuple[dict[str, Any], ...] = (
    {"log_info": True, "log_verbose_level": 0, "log_format": "default"},
    {"log_warning": False, "log_error": True},
)
REGIONS: tuple[dict[str, Any], ...] = (
    {"key": "/none", "offset": 0, "byte_size": 64},
    {"raw_handle": {"b64": "AAAA"}, "device_id": 0, "byte_size": 64},
)
CHATS: tuple[dict[str, Any], ...] = (
    {"model": "talk", "messages": [{"role": "user", "content": "hi"}]},
    {
        "model": "sampler",
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {"role": "assistant", "content": None, "tool_calls": [{
                "id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": "r"},
        ],
        "tools": [{"type": "function", "function": {
            "name": "f", "description": "d", "strict": True,
            "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "parallel_tool_calls": False,
    },
    {
        "model": "sampler", "messages": [{"role": "user", "content": "hi"}], "stream": True,
        "stream_options": {"include_usage": True}, "stop": ["a", "b"], "max_tokens": 5, "seed": 1,
        "temperature": 0.5, "top_p": 1, "n": 2, "logprobs": True, "top_logprobs": 2, "user": "u",
        "response_format": {"type": "json_schema", "json_schema": {
            "name": "s", "strict": True, "schema": {"type": "object", "$defs": {"a": {}},
            "properties": {"x": {"$ref": "#/$defs/a"}}, "required": ["x"]}}},
        "logit_bias": {"5": -1}, "presence_penalty": 0, "frequency_penalty": 0.1,
    },
)  # fmt: skip
PROMPTS: tuple[dict[str, Any], ...] = (
    {"model": "talk", "prompt": "hi"},
    {"model": "whole", "prompt": ["a", "b"], "max_tokens": 5, "echo": True, "suffix": "s"},
    {"model": "talk", "prompt": [1, 2, 3], "stream": True, "best_of": 2, "logprobs": 1},
)
EMBEDDED: tuple[dict[str, Any], ...] = (
    {"model": "vectors", "input": "a"},
    {"model": "vectors", "input": ["a", "b", "c"], "encoding_format": "base64", "dimensions": 2},
    {"model": "vectors", "input": [[1, 2], [3]], "user": "u"},
)
OPENAI_NAMES = tuple(sorted({name for each in (*CHATS, *PROMPTS, *EMBEDDED) for name in each}))
SAMPLER = """parameters { key: "openai" value { string_value: "chat,completions" } }
    model_transaction_policy { decoupled: true }
    input [ { name: "prompt" data_type: TYPE_STRING dims: [ 1 ] },
            { name: "temperature" data_type: TYPE_FP32 dims: [ 1 ] optional: true },
            { name: "max_tokens" data_type: TYPE_INT32 dims: [ 1 ] optional: true },
            { name: "seed" data_type: TYPE_UINT64 dims: [ 1 ] optional: true },
            { name: "stop" data_type: TYPE_STRING dims: [ -1 ] optional: true },
            { name: "tools" data_type: TYPE_STRING dims: [ 1 ] optional: true },
            { name: "tool_choice" data_type: TYPE_STRING dims: [ 1 ] optional: true },
            { name: "response_format" data_type: TYPE_STRING dims: [ 1 ] optional: true },
            { name: "logit_bias" data_type: TYPE_STRING dims: [ 1 ] optional: true } ]
    output [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]"""


def changed(
    source: random.Random, documents: tuple[Any, ...], names: tuple[str, ...] = ()
) -> bytes:
    """The text of one of these documents, with some changes."""
    document = source.choice(documents)
    for _ in range(source.choice((0, 1, 1, 2, 4))):
        document = mutate_document(source, document, names)
    return write_document(source, document)


def random_infer(source: random.Random) -> bytes:
    """A request for an inference: as JSON, or with its data behind it."""
    target = source.choice((b"double", b"double", b"double/versions/1", b"stream", b"nobody"))
    target = b"/v2/models/%b/infer" % target
    if source.random() < 0.3:
        data = source.randbytes(source.choice((4, 4, 8, 3, 0)))
        size = source.choice((len(data), len(data), len(data) + 1, 0, -1, 2**63))
        shape = source.choice(([1, 1], [1, len(data) // 4], [-1], [2**31, 2**31], []))
        document: Any = {"inputs": [{
            "name": "x", "datatype": source.choice(("FP32", "FP32", "FP32", *DATATYPES)),
            "shape": shape, "parameters": {"binary_data_size": size}}]}  # fmt: skip
        if source.random() < 0.3:
            document = mutate_document(source, document, INFER_NAMES)
        text = json.dumps(document).encode("utf-8", "surrogatepass")
        length = len(text) + source.choice((0, 0, 0, 0, 1, -1))
        header = b"Inference-Header-Content-Length: %d" % length
        return post(text + data, target, header)
    document = source.choice(INFERENCES)
    if source.random() < 0.3:
        tensor = {**INPUT, "datatype": source.choice(DATATYPES)}
        document = {"inputs": [tensor]}
    return post(changed(source, (document,), INFER_NAMES), target)


def posts(
    documents: tuple[Any, ...], *targets: bytes, names: tuple[str, ...] = ()
) -> Callable[[random.Random], bytes]:
    """Makes requests with changed documents to one of these targets."""

    def make(source: random.Random) -> bytes:
        body, target = changed(source, documents, names), source.choice(targets)
        if source.random() < 0.05:
            encoding, compress = source.choice(
                ((b"gzip", gzip.compress), (b"deflate", zlib.compress))
            )
            return post(compress(body), target, b"Content-Encoding: " + encoding)
        return post(body, target)

    return make


REQUESTS: dict[str, Callable[[random.Random], bytes]] = {
    "infer": random_infer,
    "generate": posts(
        GENERATIONS, b"/v2/models/stream/generate", b"/v2/models/stream/generate_stream",
        b"/v2/models/double/generate", names=("prompt", "id", "parameters"),
    ),
    "repository": posts(
        LOADS, b"/v2/repository/models/m/load", b"/v2/repository/models/m/unload",
        b"/v2/repository/index", names=("parameters", "config", "file:1/x", "ready"),
    ),
    "trace settings": posts(TRACES, b"/v2/trace/setting", b"/v2/models/double/trace/setting"),
    "log settings": posts(LOGS, b"/v2/logging"),
    "regions": posts(
        REGIONS, b"/v2/systemsharedmemory/region/r/register",
        b"/v2/cudasharedmemory/region/r/register", b"/v2/systemsharedmemory/region/r/unregister",
        names=("key", "offset", "byte_size", "raw_handle", "b64", "device_id"),
    ),
    "chat": posts(CHATS, CHAT, names=OPENAI_NAMES),
    "completions": posts(PROMPTS, COMPLETIONS, names=OPENAI_NAMES),
    "embeddings": posts(EMBEDDED, EMBEDDINGS, names=OPENAI_NAMES),
}  # fmt: skip
# The endpoints whose work for one request is more, however short its body is.
MORE_WORK = {"chat": 10_000, "completions": 10_000, "embeddings": 6000}


def check_bodies(requests: Case, fixed_work: int) -> None:
    """Assert that each request has one answer, which is a document, and that no other was hurt."""
    rig = HttpRig()
    rig.service._serve("sampler", SAMPLER)
    rig.service._answered["sampler"] = 0
    rig.service.loop.run()
    sent = b"".join(requests)
    with without_logged_errors():
        for request in requests:
            assert_work_is_paid(
                lambda r=request: rig.play([r]), len(request), fixed_work=fixed_work
            )
        assert not rig.client.saw_end
        rig.probe(sent)
        rig.end()
    answers = rig.check_answers(sent)

    assert len(answers) == len(requests) + 1
    for answer in answers[:-1]:
        if answer.status != 200:
            assert json.loads(answer.body).keys() == {"error"}


@pytest.mark.parametrize("name", REQUESTS)
def test_random_documents_are_answered(name):
    def make(source: random.Random) -> Case:
        return [REQUESTS[name](source) for _ in range(source.choice((1, 2, 4)))]

    fixed_work = FIXED_WORK + MORE_WORK.get(name, 0)
    fuzz(f"JSON of {name}", 70, make, lambda requests: check_bodies(requests, fixed_work))
