# SPDX-License-Identifier: Apache-2.0
"""Requests of a hostile HTTP client: heads, bodies in chunks, and JSON of every shape."""

from __future__ import annotations

import gzip
import json
import zlib

import pytest

from tests.cost.counting import Attack, assert_paid
from tests.server.http_fakes import post
from tests.server.http_models import INFER
from tests.server.openai.openai_service import CHAT, COMPLETIONS, EMBEDDINGS, OpenAIService

GET = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n"
GENERATE = b"/v2/models/stream/generate"
INPUT = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}


def chunked(*parts: bytes) -> bytes:
    head = b"POST %b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" % INFER
    return head + b"".join(parts)


def ask(document: object, target: bytes = INFER, *headers: bytes) -> bytes:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return post(body, target, *headers)


def infer(**members: object) -> bytes:
    return ask({"inputs": [{**INPUT, **members}]})


def infer_data(data: bytes, shape: bytes = b"1,1", dtype: bytes = b"FP32") -> bytes:
    text = b'{"inputs":[{"name":"x","datatype":"%b","shape":[%b],"data":%b}]}'
    return ask(text % (dtype, shape, data))


def nested(depth: int) -> bytes:
    return b"[" * depth + b"1" + b"]" * depth


def flushed(count: int) -> bytes:
    """A compressed body in many blocks."""
    deflater = zlib.compressobj()
    parts = [deflater.compress(b"a") + deflater.flush(zlib.Z_SYNC_FLUSH) for _ in range(count)]
    return b"".join(parts) + deflater.flush()


def chat(**members: object) -> bytes:
    messages = [{"role": "user", "content": "hi"}]
    return ask({"model": "talk", "messages": messages, **members}, CHAT)


HEADS = {
    "requests at once": lambda count: (GET + b"\r\n") * count,
    "unknown targets at once": lambda count: b"".join(
        b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % number for number in range(count)
    ),
    "upgrades at once": lambda count: (GET + b"Upgrade: a\r\nConnection: upgrade\r\n\r\n") * count,
    "headers": lambda count: GET + b"".join(b"a%d:\r\n" % x for x in range(count)) + b"\r\n",
    "repeated header": lambda count: GET + b"a:b\r\n" * count + b"\r\n",
    "long header": lambda count: GET + b"a:" + b"b" * 20 * count + b"\r\n\r\n",
    "encodings": lambda count: GET + b"Accept-Encoding: " + b"gzip;q=0.1," * count + b"\r\n\r\n",
    "query": lambda count: b"GET /v2?" + b"a=b&" * count + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "slashes": lambda count: b"GET " + b"/" * count + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "escaped target": lambda count: (
        b"GET /v2/models/" + b"%20" * count + b" HTTP/1.1\r\nHost: x\r\n\r\n"
    ),
    "chunks of one byte": lambda count: chunked(b"1\r\n{\r\n" * count, b"0\r\n\r\n"),
    "extensions of chunks": lambda count: chunked(b"1;a=b\r\n{\r\n" * count, b"0\r\n\r\n"),
    "trailers": lambda count: chunked(b"1\r\n{\r\n0\r\n", b"a:b\r\n" * count, b"\r\n"),
}
INFERENCES = {
    "elements": lambda count: infer(shape=[1, count], data=[1.0] * count),
    "inputs": lambda count: ask({"inputs": [{**INPUT, "name": f"x{x}"} for x in range(count)]}),
    "repeated input": lambda count: ask({"inputs": [INPUT] * count}),
    "empty inputs": lambda count: ask({"inputs": [{}] * count}),
    "parameters": lambda count: ask(
        {"inputs": [INPUT], "parameters": {f"p{x}": x for x in range(count)}}
    ),
    "outputs": lambda count: ask(
        {"inputs": [INPUT], "outputs": [{"name": f"y{x}"} for x in range(count)]}
    ),
    "repeated output": lambda count: ask({"inputs": [INPUT], "outputs": [{"name": "y"}] * count}),
    "dimensions": lambda count: infer(shape=[1] * count),
    "large dimensions": lambda count: infer_data(b"[1]", b",".join([b"9" * 1000] * (count // 30))),
    "nested arrays": lambda count: infer_data(nested(count)),
    "nested inputs": lambda count: ask(b'{"inputs":' + nested(count) + b"}"),
    "many nested arrays": lambda count: infer_data(
        b"[%b]" % b",".join([nested(90)] * (count // 10)), b"1,%d" % (count // 10)
    ),
    "uneven arrays": lambda count: infer_data(b"[1,%b1]" % (b"[1]," * count)),
    "empty arrays": lambda count: infer_data(b"[%b1]" % (b"[]," * count)),
    "texts for numbers": lambda count: infer(shape=[1, count], data=["a"] * count),
    "long number": lambda count: infer_data(b"[" + b"9" * 10 * count + b"]"),
    "long numbers": lambda count: infer_data(
        b"[%b1]" % (b"9" * 300 + b",") * (count // 10), dtype=b"INT64"
    ),
    "escapes": lambda count: ask(b'{"id":"' + b"\\u00e9\\n" * count + b'","inputs":[]}'),
    "surrogates": lambda count: ask(b'{"id":"' + b"\\ud83d\\ude00" * count + b'","inputs":[]}'),
    "lone surrogates": lambda count: ask(b'{"id":"' + b"\\ud83d" * count + b'","inputs":[]}'),
    "quotation marks after an infinity": lambda count: ask(b"[-Inf," + b'\\"' * count),
    "texts after an infinity": lambda count: ask(b"[-Inf," + b'"",' * count + b"1]"),
    "bytes that are no text": lambda count: ask(b'{"id":"' + b"\xff" * count + b'","inputs":[]}'),
    "repeated members": lambda count: ask(b"{" + b'"id":"",' * count + b'"inputs":[]}'),
    "missing comma": lambda count: ask(b'{"inputs":[' + b"1," * count + b"1 1]}"),
    "no end": lambda count: ask(b'{"inputs":[' * count),
}
GENERATIONS = {
    "text": lambda count: ask({"prompt": "a" * count}, GENERATE),
    "members": lambda count: ask({"prompt": "a", **{f"p{x}": x for x in range(count)}}, GENERATE),
    "nested members": lambda count: ask(
        {"prompt": "a", "parameters": {f"p{x}": x for x in range(count)}}, GENERATE
    ),
    "repeated members": lambda count: ask(b'{"prompt":"a"' + b',"p":1' * count + b"}", GENERATE),
    "repeated input": lambda count: ask(
        b'{"prompt":"a"' + b',"prompt":""' * count + b"}", GENERATE
    ),
    "colons": lambda count: ask({"prompt": [":" * count, {"a": {":": ":"}}]}, GENERATE),
    "elements": lambda count: ask({"prompt": ["a"] * count}, GENERATE),
    "messages": lambda count: chat(messages=[{"role": "user", "content": "a"}] * count),
    "wrong roles": lambda count: chat(messages=[{"role": "a"}] * count),
    "parts": lambda count: chat(
        messages=[{"role": "user", "content": [{"type": "text", "text": "a"}] * count}]
    ),
    "parts of messages": lambda count: chat(
        messages=[{"role": "user", "content": [{"type": "text", "text": "a"}] * 10}] * (count // 10)
    ),
    "unknown members": lambda count: chat(**{f"a{x}": x for x in range(count)}),
    "null members": lambda count: chat(**{f"a{x}": None for x in range(count)}),
    "stops": lambda count: chat(stop=["a"] * count),
    "tools": lambda count: chat(tools=[{"type": "function", "function": {"name": "a"}}] * count),
    "nested tools": lambda count: ask(
        b'{"model":"talk","messages":[],"tools":' + nested(count) + b"}", CHAT
    ),
    "biases": lambda count: chat(logit_bias={str(x): 1 for x in range(count)}),
    "prompts": lambda count: ask({"model": "talk", "prompt": ["a"] * count}, COMPLETIONS),
    "tokens": lambda count: ask({"model": "talk", "prompt": [1] * count}, COMPLETIONS),
    "texts to embed": lambda count: ask({"model": "vectors", "input": ["a"] * count}, EMBEDDINGS),
}
COMPRESSED = {
    "gzip": lambda count: ask(
        gzip.compress(bytes(100 * count)), GENERATE, b"Content-Encoding: gzip"
    ),
    "gzip several times": lambda count: ask(
        gzip.compress(b"{}") * count, GENERATE, b"Content-Encoding: gzip"
    ),
    "deflate in blocks": lambda count: ask(flushed(count), GENERATE, b"Content-Encoding: deflate"),
}


def paid_for(wire: bytes, read_bytes: int = 0) -> Attack:
    client = OpenAIService().connect()
    sizes = iter(lambda: read_bytes, None) if read_bytes else None
    reads = len(wire) // (read_bytes or len(wire))
    return Attack(len(wire), lambda: client.send(wire, sizes), reads)


@pytest.mark.parametrize("name", HEADS)
def test_heads_and_chunks_are_paid_for(name):
    assert_paid(lambda count: paid_for(HEADS[name](count)))


@pytest.mark.parametrize("name", INFERENCES)
def test_inferences_are_paid_for(name):
    assert_paid(lambda count: paid_for(INFERENCES[name](count)))


@pytest.mark.parametrize("name", GENERATIONS)
def test_generations_are_paid_for(name):
    assert_paid(lambda count: paid_for(GENERATIONS[name](count)))


@pytest.mark.parametrize("name", COMPRESSED)
def test_compressed_bodies_are_paid_for(name):
    assert_paid(lambda count: paid_for(COMPRESSED[name](count)))


@pytest.mark.parametrize("name", ["long header", "headers", "slashes", "chunks of one byte"])
def test_heads_that_come_byte_by_byte_are_paid_for(name):
    assert_paid(lambda count: paid_for(HEADS[name](count), read_bytes=1), (5, 40, 320))
