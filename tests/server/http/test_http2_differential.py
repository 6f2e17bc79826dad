# SPDX-License-Identifier: Apache-2.0
"""The same requests over HTTP/1.1 and HTTP/2 are answered the same, by the whole API."""

from __future__ import annotations

import gzip
import json
import re
import zlib

import numpy as np
import pytest

from pytriton.serving.server.api.authorization import RestrictedGroup
from pytriton.serving.server.http.columns import LEARNED_AFTER
from pytriton.serving.server.options.server_options import ClientLimits
from tests.fuzz.answering import AnsweringService
from tests.server.cloud_fakes import sagemaker, vertex_ai
from tests.server.http2_fakes import Fields, Http2Client, as_http1, head, length
from tests.server.http_fakes import Answer, Client
from tests.server.http_models import INFER, Service, floats, infer_body, text

LIMITS = ClientLimits(http_max_input_bytes=200_000)
TENSOR = {"name": "x", "shape": [1, 1], "datatype": "FP32", "parameters": {"binary_data_size": 4}}
BINARY_JSON = json.dumps(
    {"inputs": [TENSOR], "outputs": [{"name": "y", "parameters": {"binary_data": True}}]}
).encode()
BINARY = BINARY_JSON + np.float32(1).tobytes()
BINARY_LENGTH = (b"inference-header-content-length", b"%d" % len(BINARY_JSON))
ONE = infer_body(1)
GENERATE = b'{"prompt": "hi"}'
LARGE = infer_body(*range(9000))


def get(target: bytes, *more: tuple[bytes, bytes], method: bytes = b"GET") -> tuple[Fields, bytes]:
    return head(target, *more, method=method), b""


def post(target: bytes, body: bytes = b"", *more: tuple[bytes, bytes]) -> tuple[Fields, bytes]:
    return head(target, length(body), *more, method=b"POST"), body


REQUESTS = {
    "metadata": get(b"/v2"),
    "liveness": get(b"/v2/health/live"),
    "readiness without a body": get(b"/v2/health/ready", method=b"HEAD"),
    "a model": get(b"/v2/models/double"),
    "a configuration": get(b"/v2/models/double/config"),
    "statistics without a body": get(b"/v2/models/stats", method=b"HEAD"),
    "an index": post(b"/v2/repository/index", b"{}"),
    "a load": post(b"/v2/repository/models/m/load", b"{}"),
    "a load with a compressed body": post(
        b"/v2/repository/models/m/load",
        gzip.compress(b"{}", mtime=0),
        (b"content-encoding", b"gzip"),
    ),
    "an inference": post(INFER, ONE),
    "an inference with an id": post(INFER, infer_body(1, id="seven")),
    "an inference of a version": post(b"/v2/models/double/versions/1/infer", ONE),
    "a binary inference": post(INFER, BINARY, BINARY_LENGTH),
    "a large inference": post(INFER, LARGE),
    "a compressed inference": post(
        INFER, gzip.compress(ONE, mtime=0), (b"content-encoding", b"gzip")
    ),
    "a deflated inference": post(INFER, zlib.compress(ONE), (b"content-encoding", b"deflate")),
    "a compressed answer": post(INFER, ONE, (b"accept-encoding", b"gzip;q=1, identity;q=0.5")),
    "a body that inflates to more than the limit": post(
        INFER, gzip.compress(bytes(300_000), mtime=0), (b"content-encoding", b"gzip")
    ),
    "an unknown compression": post(INFER, ONE, (b"content-encoding", b"br")),
    "a generation": post(b"/v2/models/stream/generate", GENERATE),
    "a streamed generation": post(b"/v2/models/stream/generate_stream", GENERATE),
    "a stream of inferences": post(
        b"/v2/models/stream/infer",
        b'{"inputs":[{"name":"prompt","shape":[1],"datatype":"BYTES","data":["a"]}]}',
        (b"accept", b"text/event-stream"),
    ),
    "no stream where the model needs one": post(b"/v2/models/stream/infer", GENERATE),
    "a chat": post(
        b"/v1/completions", b'{"model": "whole", "prompt": "hi"}', (b"x-request-id", b"7")
    ),
    "an unknown path": get(b"/nothing"),
    "an unknown model": post(b"/v2/models/nobody/infer", ONE),
    "a wrong method": get(INFER),
    "a method that nobody has": get(b"/v2", method=b"DELETE"),
    "a wrong body": post(INFER, b"{"),
    "an empty body": post(INFER),
    "a body that is too large": post(INFER, bytes(200_001)),
    "a page of another origin": post(INFER, ONE, (b"origin", b"http://evil")),
    "a page of the same origin": post(INFER, ONE, (b"origin", b"http://h")),
    "a page of another site": post(INFER, ONE, (b"sec-fetch-site", b"cross-site")),
    "another expectation": post(INFER, ONE, (b"expect", b"200-ok")),
    "a target with a query": get(b"/v2/health/live?a=b&c=%20"),
    "a target that is percent-encoded": get(b"/v2/models/%64ouble"),
    "a target with dots": get(b"/v2/../v2"),
    "two slashes": get(b"//v2"),
    "an asterisk": get(b"*", method=b"OPTIONS"),
    "a wrong length of JSON": post(INFER, BINARY, (b"inference-header-content-length", b"9999")),
}
# The headers that belong to one version.
_OF_HTTP_1 = {b"connection", b"transfer-encoding"}
_TIME = re.compile(rb'"created":\d+')


def same_form(answer: Answer) -> Answer:
    headers = {name.lower(): value for name, value in answer.headers.items()}
    return answer._replace(
        headers={name: value for name, value in headers.items() if name not in _OF_HTTP_1},
        body=_TIME.sub(b'"created":0', answer.body),  # the second may change between both
    )


def asked_http1(service: AnsweringService, fields: Fields, body: bytes, **more: bool) -> Answer:
    client = Client(service.api)
    client.send(as_http1(fields, body, **more))
    service.answer()
    client.deliver()
    if (b":method", b"HEAD") in fields:
        start, _, rest = bytes(client.received).partition(b"\r\n\r\n")
        assert rest == b""
        lines = start.split(b"\r\n")
        headers = dict(line.split(b": ", 1) for line in lines[1:])
        return Answer(int(lines[0].split()[1]), headers, b"")
    return client.answers()[-1]


def asked_http2(service: AnsweringService, fields: Fields, body: bytes) -> Answer:
    client = Http2Client(service.api)
    stream_id = client.open(fields) if body else client.new_id()
    if body:
        client.send_data(stream_id, body, end_stream=True)
    else:
        client.send(client.headers(fields, stream_id, end_stream=True))
    service.answer()
    return client.answer(stream_id)


@pytest.mark.parametrize("name", REQUESTS)
def test_both_versions_give_the_same_answer(name):
    fields, body = REQUESTS[name]
    answers = [
        same_form(ask(AnsweringService(limits=LIMITS), fields, body))
        for ask in (asked_http1, asked_http2)
    ]

    assert answers[1] == answers[0]


@pytest.mark.parametrize("name", [name for name in REQUESTS if REQUESTS[name][1]])
def test_both_versions_give_the_same_answer_to_bodies_of_unknown_length(name):
    fields, body = REQUESTS[name]
    fields = [each for each in fields if each[0] != b"content-length"]
    over_1 = asked_http1(AnsweringService(limits=LIMITS), fields, body, is_chunked=True)
    over_2 = asked_http2(AnsweringService(limits=LIMITS), fields, body)

    assert same_form(over_2) == same_form(over_1)


def test_events_of_a_stream_are_the_same():
    received = []
    for client_class in (Client, Http2Client):
        service = Service()
        client = client_class(service.api)
        fields, body = REQUESTS["a streamed generation"]
        if client_class is Client:
            client.send(as_http1(fields, body))
        else:
            client.send(client.request(fields, body)[1])
        for part in ("one", "two"):
            service.stream.answer(text(part), final=False)
            service.loop.run()
        service.stream.answer()
        service.loop.run()
        answers = client.answers() if client_class is Client else [client.answer(1)]
        received.append(same_form(answers[-1]))

    assert received[0] == received[1]
    assert received[1].body.count(b"data: ") == 2


# Security: HTTP/2 is no way around what HTTP/1.1 checks

RESTRICTED = (
    RestrictedGroup(
        apis=("health", "metadata", "inference", "statistics", "model-config"),
        header="Secret",
        value="sesame",
    ),
)
PATHS = [
    b"/v2",
    b"/v2/health/live",
    b"/v2/health/ready",
    b"/v2/models/stats",
    *(
        b"/v2/models/double" + version + action
        for version in (b"", b"/versions/1")
        for action in (b"", b"/ready", b"/config", b"/stats", b"/infer", b"/generate")
    ),
]
SPELLINGS = [
    lambda path: path,
    lambda path: path + b"?x=1",
    lambda path: path + b"#x",
    lambda path: path.replace(b"v2", b"v%32"),
    lambda path: b"http://other" + path,
    lambda path: b"//other" + path,
    lambda path: b"/." + path,
    lambda path: path + b"/",
    lambda path: path + b" ",
    lambda path: path[1:],
]
METHODS = [b"GET", b"HEAD", b"POST", b"PUT", b"OPTIONS", b"get", b"Post", b"CONNECT"]
SECRETS = [
    (),
    ((b"secret", b"wrong"),),
    ((b"secret", b"SESAME"),),
    ((b"secret", b"sesame"), (b"secret", b"sesame")),
    ((b"Secret", b"sesame"),),
    ((b":secret", b"sesame"),),
    ((b"x-secret", b"sesame"),),
    ((b"cookie", b"secret=sesame"),),
]


def test_head_that_opened_an_api_opens_it_for_no_other_head():
    service = Service(http_restricted=RESTRICTED)
    client = Http2Client(service.api)
    statuses = []
    for value in (b"sesame", b"sesame", b"wrong", b"sesame", b"wrong"):
        stream_id = client.get(b"/v2", (b"secret", value))
        statuses.append(client.answer(stream_id).status)

    assert statuses == [200, 200, 403, 200, 403]


def test_targets_are_those_that_http_1_allows():
    accepted: list[set[int]] = [set(), set()]
    for number in range(256):
        target = b"/a%cb" % number
        over_1 = Client()
        over_1.send(as_http1(head(target), b""))
        over_2 = Http2Client()
        over_2.send(over_2.request(head(target))[1])
        if over_1.handler.requests:
            accepted[0].add(number)
        if over_2.handler.requests:
            accepted[1].add(number)

    assert accepted[0] == accepted[1]
    assert len(accepted[0]) > 50


# Other ports


@pytest.mark.parametrize("make", [sagemaker, vertex_ai])
@pytest.mark.parametrize("method", [b"GET", b"POST"])
@pytest.mark.parametrize(
    "path", [b"/ping", b"/invocations", b"/models", b"/predict", b"/health", b"/v2", b"/models/a"]
)
def test_ports_of_cloud_providers_answer_the_same(make, method, path):
    answers = []
    for is_http2 in (False, True):
        service = make()
        body = ONE if method == b"POST" else b""
        fields = head(path, *([length(body)] if body else []), method=method)
        if is_http2:
            client = Http2Client(service.cloud)
            client.send(client.request(fields, body)[1])
        else:
            client = Client(service.cloud)
            client.send(as_http1(fields, body))
        if service.double.inferences:
            service.double.answer(floats(2))
            service.loop.run()
        answers.append(client.answer(1) if is_http2 else client.answers()[-1])

    assert same_form(answers[0]) == same_form(answers[1])


def test_binary_answer_of_sagemaker_has_the_length_in_the_content_type():
    service = sagemaker()
    client = Http2Client(service.cloud)
    kind = b"application/vnd.sagemaker-triton.binary+json;json-header-size="
    content_type = (b"content-type", kind + b"%d" % len(BINARY_JSON))
    types = set()
    for index in range(LEARNED_AFTER + 3):
        stream_id = client.post(BINARY, b"/invocations", content_type)
        service.double.answer(floats(2), index=index)
        types.add(client.answer(stream_id).headers[b"content-type"])

    assert len(types) == 1
    assert types.pop().startswith(kind)
