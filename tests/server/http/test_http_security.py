# SPDX-License-Identifier: Apache-2.0
"""Who may ask for what over HTTP, and what answers and logs do not tell."""

from __future__ import annotations

import itertools
import logging
import re

import pytest

from pytriton.serving.server.api.authorization import RestrictedGroup
from tests.server.http_fakes import get, post
from tests.server.http_models import INFER, Service, ask, error, infer_body


@pytest.fixture
def service():
    return Service()


# Authorisation

TOKEN = "sesame"  # what the header must say
CONTROL = ("model-repository", "logging")
RESTRICTED = (
    RestrictedGroup(
        apis=("health", "metadata", "inference", "statistics", "model-config", *CONTROL),
        header="Secret",
        value=TOKEN,
    ),
)
PATHS = [
    b"/v2",
    b"/v2/health/live",
    b"/v2/health/ready",
    b"/v2/models/stats",
    b"/v2/logging",
    b"/v2/repository/index",
    b"/v2/repository/models/m/load",
    b"/v2/repository/models/m/unload",
    *(
        b"/v2/models/double" + version + action
        for version in (b"", b"/versions/1")
        for action in (
            *(b"", b"/ready", b"/config", b"/stats"),
            *(b"/infer", b"/generate", b"/generate_stream"),
        )
    ),
]
SPELLINGS = [
    lambda path: path,
    lambda path: path + b"?x=1",
    lambda path: b"http://other" + path,
    lambda path: path.replace(b"v2", b"v%32"),
]


@pytest.mark.parametrize("spell", SPELLINGS)
@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS"])
@pytest.mark.parametrize(
    "secret",
    [
        (),
        (b"Secret:",),
        (b"Secret: wrong",),
        (b"Secret: SESAME",),
        (b"Secret: sesame", b"Secret: sesame"),
        (b"X-Secret: sesame",),
    ],
    ids=str,
)
def test_restricted_api_is_closed_without_its_header(spell, method, secret):
    service = Service(http_restricted=RESTRICTED)
    for path in PATHS:
        head = b"%b %b HTTP/1.1" % (method, spell(path))
        lines = (head, b"Host: h", *secret, b"Content-Length: 0", b"", b"")
        client = service.connect()
        client.send(b"\r\n".join(lines))
        text = bytes(client.received)

        assert text.startswith(b"HTTP/1.1 403 "), path
        if method != b"HEAD":
            assert error(client.answers()[0]) == (
                "This API is restricted, expecting header 'Secret'"
            )


@pytest.mark.parametrize("path", PATHS)
def test_restricted_api_opens_with_its_header(path):
    service = Service(http_restricted=RESTRICTED)
    assert ask(service, get(path, b"secret: sesame")).status in (200, 405)


def test_large_body_takes_the_models_memory_only_with_permission():
    service = Service(http_restricted=RESTRICTED)
    model = service.engine.lookup("double")
    asked = []

    def body_memory(size, header_bytes):
        asked.append((size, header_bytes))

    model.body_memory = body_memory
    length = b"Inference-Header-Content-Length: 100"
    for secret in (b"Secret: wrong", b"Secret: sesame"):
        ask(service, post(bytes(100_000), INFER, secret, length))

    assert asked == [(100_000, 100)]


# Headers that become parameters


@pytest.mark.parametrize("path", [INFER, b"/v2/models/double/generate"])
def test_forwarded_headers_become_parameters(path):
    service = Service(http_header_forward_pattern="^x-.*")
    body = infer_body(1) if path == INFER else b'{"x": 1}'
    service.connect().send(post(body, path, b"X-User: me", b"Other: you"))

    assert service.double.inferences[0].request.fields.parameters == {"X-User": "me"}


@pytest.mark.parametrize(
    "name", ["sequence_id", "priority", "timeout", "headers", "binary_data_output", "triton_x"]
)
def test_reserved_parameter_cannot_come_as_a_header(name):
    service = Service(http_header_forward_pattern=".*")
    answer = ask(service, post(infer_body(1), INFER, name.encode() + b": 1"))

    assert answer.status == 400
    assert error(answer) == f"Header '{name}' is reserved for Triton usage and cannot be forwarded."


# What errors and logs must not tell

HOSTILE_NAMES = [b"%0d%0aERROR%20forged", b"%1b%5b31m", b"%e2%80%a8", b"..%2f..%2fetc", b"%00"]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_client_cannot_forge_log_lines(service, name, caplog, monkeypatch):
    def fail(*arguments):
        raise RuntimeError("mistake")

    monkeypatch.setattr(service.client, "lookup", fail)
    with caplog.at_level(logging.DEBUG):
        answer = ask(service, get(b"/v2/models/" + name))

    assert answer.status == 500
    assert caplog.records
    for record in caplog.records:
        message = record.getMessage()
        assert message.isascii()
        assert message.isprintable()


def test_errors_name_nothing_internal(service):
    bodies = [b"", b"{}", b"[", infer_body(), infer_body(1, outputs=[{"name": "z"}]), bytes(10**6)]
    texts = []
    for path, body in itertools.product(PATHS, bodies):
        client = service.connect()
        client.send(post(body, path))
        texts.append(bytes(client.received))

    internal = re.compile(rb"/dev/shm|/proc|memfd|\bpid\b|\bfd\b|\.py\b|0x[0-9a-f]{6}|Traceback")
    assert [text for text in texts if internal.search(text)] == []
