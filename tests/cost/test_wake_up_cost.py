# SPDX-License-Identifier: Apache-2.0
"""One read of one connection costs the event loop a bounded time, whatever is in it.

Whoever adds a route, a method, or something else that a client can send many of, adds it to a table
here. If it fails, it has to say what it costs: see `pytriton.serving.server.api.turns`.
"""

from __future__ import annotations

import json
import struct
from typing import NamedTuple

import pytest

from pytriton.base.protos import service_pb2
from pytriton.protocol.http2 import frames
from pytriton.protocol.http2.frames import frame
from pytriton.serving.server.api.authorization import RestrictedGroup
from pytriton.serving.server.http.handler import HttpHandler
from pytriton.serving.server.metrics.api import MetricsApi
from tests.cost.wake_ups import WakeUpLoop, work_of_wake_ups
from tests.server.grpc_fakes import SERVICE, GrpcClient, framed
from tests.server.http2_fakes import Http2Client, head, length
from tests.server.http_fakes import Client
from tests.server.http_models import INFER
from tests.server.openai.openai_service import CHAT, COMPLETIONS, EMBEDDINGS, OpenAIService
from tests.wire.http2.frame_client import data, ping, rst_stream, setting, settings, window_update

READS = 2  # what a socket may have, in reads of a connection: another one follows a full one
HTTP_BYTES = READS * (64 << 10)
GRPC_BYTES = 256 << 10  # the transport reads so much at once


class Asked(NamedTuple):
    """A request of HTTP, whatever the version."""

    path: bytes
    body: bytes | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()
    method: bytes = b""

    @property
    def verb(self) -> bytes:
        return self.method or (b"GET" if self.body is None else b"POST")

    def http1(self) -> bytes:
        fields = [(b"Host", b"l"), *self.headers]
        if self.body is not None:
            fields.append((b"Content-Length", b"%d" % len(self.body)))
        lines = [b"%b: %b" % field for field in fields]
        return b"\r\n".join(
            (b"%b %b HTTP/1.1" % (self.verb, self.path), *lines, b"", self.body or b"")
        )

    def http2(self, client: Http2Client) -> bytes:
        more = [] if self.body is None else [length(self.body)]
        fields = head(self.path, *self.headers, *more, method=self.verb, host=b"l")
        return client.request(fields, self.body or b"")[1]


def document(**members: object) -> bytes:
    return json.dumps(members).encode()


INPUT = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}
BINARY = document(inputs=[{**INPUT, "data": None, "parameters": {"binary_data_size": 4}}]).replace(
    b'"data": null, ', b""
)
BINARY_HEADERS = ((b"inference-header-content-length", b"%d" % len(BINARY)),)
REQUESTS = {
    "live": Asked(b"/v2/health/live"),
    "ready": Asked(b"/v2/health/ready"),
    "server": Asked(b"/v2"),
    "model ready": Asked(b"/v2/models/double/ready"),
    "metadata": Asked(b"/v2/models/double"),
    "config": Asked(b"/v2/models/double/config"),
    "statistics": Asked(b"/v2/models/double/stats"),
    "all statistics": Asked(b"/v2/models/stats"),
    "index": Asked(b"/v2/repository/index", b"{}"),
    "load": Asked(b"/v2/repository/models/nobody/load", b"{}"),
    "unload": Asked(b"/v2/repository/models/nobody/unload", b"{}"),
    "log settings": Asked(b"/v2/logging"),
    "change of log settings": Asked(b"/v2/logging", document(log_verbose_level=0)),
    "trace settings": Asked(b"/v2/trace/setting"),
    "shared memory": Asked(b"/v2/systemsharedmemory/status"),
    "unknown region": Asked(b"/v2/systemsharedmemory/region/a/unregister", b""),
    "inference": Asked(INFER, document(inputs=[INPUT])),
    "inference with parameters": Asked(INFER, document(inputs=[INPUT], parameters={"a": [1]})),
    "binary inference": Asked(INFER, BINARY + bytes(4), BINARY_HEADERS),
    "inference with 1 KiB": Asked(
        INFER, document(inputs=[{**INPUT, "shape": [1, 200], "data": [1.5] * 200}])
    ),
    "wrong shape": Asked(INFER, document(inputs=[{**INPUT, "shape": [7, 7]}])),
    "no JSON": Asked(INFER, b"{"),
    "unknown model": Asked(b"/v2/models/nobody/infer", document(inputs=[INPUT])),
    "generation": Asked(b"/v2/models/stream/generate", document(prompt="a")),
    "stream": Asked(b"/v2/models/stream/generate_stream", document(prompt="a")),
    "unknown path": Asked(b"/nothing"),
    "unknown model's metadata": Asked(b"/v2/models/nobody"),
    "wrong method": Asked(b"/v2/health/live", b""),
    "preflight": Asked(
        b"/v2/health/live",
        headers=((b"origin", b"http://a"), (b"access-control-request-method", b"GET")),
        method=b"OPTIONS",
    ),
    "restricted": Asked(b"/v2/models/double/trace/setting"),
    "compressed answer": Asked(b"/v2", headers=((b"accept-encoding", b"gzip"),)),
    "list of models": Asked(b"/v1/models"),
    "chat": Asked(CHAT, document(model="talk", messages=[{"role": "user", "content": "a"}])),
    "completion": Asked(COMPLETIONS, document(model="talk", prompt="a")),
    "embedding": Asked(EMBEDDINGS, document(model="vectors", input="a")),
    "chat without messages": Asked(CHAT, document(model="talk")),
}
METRICS = {
    "metrics": Asked(b"/metrics"),
    "open metrics": Asked(b"/metrics", headers=((b"accept", b"application/openmetrics-text"),)),
    "unknown path of metrics": Asked(b"/nothing"),
}
TRACE = RestrictedGroup(apis=("trace",), header="k", value="v")


def service(loop: WakeUpLoop) -> OpenAIService:
    return OpenAIService(loop=loop, http_restricted=(TRACE,), grpc_restricted=(TRACE,))


def handler(name: str) -> HttpHandler:
    made = service(WakeUpLoop())
    if name in METRICS:
        return MetricsApi(made.engine, made.options, made.loop)
    return made.api


def assert_bounded(client: Client | GrpcClient, wire: bytes) -> None:
    """Assert that no wake-up takes long; TooMuchWork says how many lines and calls that is."""
    assert work_of_wake_ups(client.loop, client.transport, wire)


@pytest.mark.parametrize("is_known", [False, True], ids=["new", "known"])
@pytest.mark.parametrize("name", {**REQUESTS, **METRICS})
def test_requests_of_http1(name, is_known):
    client = Client(handler(name))
    request = {**REQUESTS, **METRICS}[name].http1()
    if is_known:
        client.send(request)
    other = Client(client.handler)
    other.send(request)  # the first one may import modules, and fill caches

    assert_bounded(client if not is_known else other, request * (HTTP_BYTES // len(request)))


def http2_wire(client: Http2Client, asked: Asked) -> bytes:
    wire = b""
    while len(wire) < HTTP_BYTES:
        wire += asked.http2(client)
    return wire


@pytest.mark.parametrize("name", {**REQUESTS, **METRICS})
def test_requests_of_http2(name):
    client = Http2Client(handler(name))
    asked = {**REQUESTS, **METRICS}[name]
    for _ in range(20):  # so that inferences travel as columns
        client.send(asked.http2(client))

    assert_bounded(client, http2_wire(client, asked))


def test_new_heads_of_http2():
    client = Http2Client(handler("live"))
    wire = b""
    while len(wire) < HTTP_BYTES:
        wire += Asked(b"/v2/health/live", headers=((b"a%d" % len(wire), b"b"),)).http2(client)

    assert_bounded(client, wire)


def chunked(part: bytes, count: int) -> bytes:
    start = b"POST %b HTTP/1.1\r\nHost: l\r\nTransfer-Encoding: chunked\r\n\r\n" % INFER
    return start + part * count + b"0\r\n\r\n"


PARTS_OF_HTTP1 = {
    "chunks of one byte": chunked(b"1\r\n{\r\n", 20_000),
    "chunks with extensions": chunked(b"1;a=b\r\n{\r\n", 12_000),
    "chunks of line ends": chunked(b"4\r\n\r\n\r\n\r\n", 12_000),
    "bodies in a chunk": chunked(b"1\r\n{\r\n", 1) * 1000,
    "trailers": chunked(b"1\r\n{\r\n", 1)[:-2] + b"a:b\r\n" * 20_000 + b"\r\n",
    "headers": b"GET /v2 HTTP/1.1\r\nHost: l\r\n" + b"a:\r\n" * 20_000 + b"\r\n",
    "new heads": b"".join(Asked(b"/%d" % number).http1() for number in range(3000)),
    "empty lines": b"\r\n" * 60_000,
    "upgrades": Asked(b"/v2", headers=((b"connection", b"upgrade"), (b"upgrade", b"a"))).http1()
    * 1500,
    "expectations": Asked(INFER, b"{}", headers=((b"expect", b"100-continue"),)).http1() * 900,
    "requests without syntax": b"nonsense\r\n\r\n" * 10_000,
}


@pytest.mark.parametrize("name", PARTS_OF_HTTP1)
def test_parts_of_http1(name):
    warm = Client(handler("live"))
    warm.send(PARTS_OF_HTTP1[name][:200])
    client = Client(warm.handler)

    assert_bounded(client, PARTS_OF_HTTP1[name][:HTTP_BYTES])


METHODS = {
    "ServerLive": b"",
    "ServerReady": b"",
    "ServerMetadata": b"",
    "ModelReady": b"\x0a\x06double",
    "ModelMetadata": b"\x0a\x06double",
    "ModelConfig": b"\x0a\x06double",
    "ModelStatistics": b"",
    "RepositoryIndex": b"",
    "RepositoryModelUnload": b"\x12\x06nobody",
    "SystemSharedMemoryStatus": b"",
    "TraceSetting": b"",
    "LogSettings": b"",
    "Nothing": b"",
}


def inference(model: str = "double", **fields: object) -> bytes:
    request = service_pb2.ModelInferRequest(model_name=model, **fields)
    request.inputs.add(name="x", datatype="FP32", shape=[1, 1])
    request.raw_input_contents.append(struct.pack("<f", 1))
    return request.SerializeToString()


INFERENCES = {
    "inference": inference(),
    "inference for nobody": inference("nobody"),
    "inference with a wrong shape": inference().replace(struct.pack("<f", 1), b"12345678"),
    "no message": b"\x0a\xff",
}
CALLS = {
    **{name: (f"{SERVICE}/{name}", message) for name, message in METHODS.items()},
    **{name: (f"{SERVICE}/ModelInfer", message) for name, message in INFERENCES.items()},
    "stream": (f"{SERVICE}/ModelStreamInfer", inference("stream")),
    "health": ("/grpc.health.v1.Health/Check", b""),
    "watch": ("/grpc.health.v1.Health/Watch", b""),
    "reflection": (
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        b"\x22\x1einference.GRPCInferenceService",
    ),
    "no service": ("/nothing", b""),
}


def grpc_client() -> GrpcClient:
    made = service(WakeUpLoop())
    return GrpcClient(made.options, engine=made.engine, control=made.control, loop=made.loop)


def call(client: GrpcClient, path: str, message: bytes, *fields: tuple[str, str]) -> bytes:
    start = client.head(path, *fields)
    stream = int.from_bytes(start[5:9], "big")
    return start + data(stream, framed(message), end_stream=True)


@pytest.mark.parametrize("name", CALLS)
def test_calls_of_grpc(name):
    client = grpc_client()
    for _ in range(20):
        client.receive(call(client, *CALLS[name]))
    wire = b""
    while len(wire) < GRPC_BYTES:
        wire += call(client, *CALLS[name])

    assert_bounded(client, wire)


def test_new_heads_of_grpc():
    client = grpc_client()
    wire = b""
    while len(wire) < GRPC_BYTES:
        wire += call(client, f"{SERVICE}/ServerLive", b"", (f"a{len(wire)}", "b"))

    assert_bounded(client, wire)


MESSAGES = {name: message for name, message in CALLS.items() if name in ("stream", "reflection")}


@pytest.mark.parametrize("name", MESSAGES)
def test_messages_of_one_call(name):
    path, message = MESSAGES[name]
    client = grpc_client()
    client.receive(call(client, path, message))
    stream = client.open(path)
    part = data(stream, framed(message) * 5)

    assert_bounded(client, part * (GRPC_BYTES // len(part)))


FRAMES = {
    "settings": settings(setting(4, 1000)),
    "many settings": settings(*[setting(4, 1000 + number) for number in range(30)]),
    "windows": window_update(0, 1),
    "windows of a stream": window_update(1, 1),
    "pings": ping(),
    "answers to pings": ping(flags=frames.ACK),
    "priorities": frame(frames.PRIORITY, 0, 1, bytes(5)),
    "unknown frames": frame(99, 0, 1, b""),
    "late resets": rst_stream(1),
    "late data": data(1, b"x"),
    "GOAWAY": frame(frames.GOAWAY, 0, 0, bytes(8)),
}
OPEN_FRAMES = {
    "empty data": b"",
    "single bytes": b"\0",
}


@pytest.mark.parametrize("kind", [Http2Client, GrpcClient], ids=["http", "grpc"])
@pytest.mark.parametrize("name", FRAMES)
def test_frames(name, kind):
    client = Http2Client(handler("live")) if kind is Http2Client else grpc_client()
    if kind is Http2Client:
        client.get(b"/v2/health/live")
    else:
        client.receive(call(client, f"{SERVICE}/ServerLive", b""))
    size = HTTP_BYTES if kind is Http2Client else GRPC_BYTES

    assert_bounded(client, FRAMES[name] * (size // len(FRAMES[name])))


@pytest.mark.parametrize("kind", [Http2Client, GrpcClient], ids=["http", "grpc"])
@pytest.mark.parametrize("name", OPEN_FRAMES)
def test_data_in_small_frames(name, kind):
    if kind is Http2Client:
        client = Http2Client(handler("live"))
        stream = client.open(head(INFER, method=b"POST"))
    else:
        client = grpc_client()
        stream = client.open("ModelInfer")

    part = data(stream, OPEN_FRAMES[name])

    assert_bounded(client, part * (GRPC_BYTES // len(part)))


@pytest.mark.parametrize("kind", [Http2Client, GrpcClient], ids=["http", "grpc"])
def test_streams_that_are_reset_at_once(kind):
    client = Http2Client(handler("live")) if kind is Http2Client else grpc_client()
    wire = b""
    while len(wire) < GRPC_BYTES:
        if kind is Http2Client:
            stream = client.new_id()
            wire += client.headers(head(INFER, method=b"POST"), stream) + rst_stream(stream)
        else:
            start = client.head(f"{SERVICE}/ModelInfer")
            wire += start + rst_stream(int.from_bytes(start[5:9], "big"))

    assert_bounded(client, wire)
