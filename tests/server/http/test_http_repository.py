# SPDX-License-Identifier: Apache-2.0
"""Listing, loading and unloading models over HTTP."""

from __future__ import annotations

import base64
import gzip
import json
import zlib

import pytest

from pytriton.base.errors import InvalidArgumentError, UnavailableError
from pytriton.serving.server.api import local_client
from pytriton.serving.server.api.authorization import RestrictedGroup
from pytriton.serving.server.http.request import LARGE_BODY_BYTES
from pytriton.testing import FakeEventLoop
from tests.server.control_fakes import ENTRIES, FakeControl
from tests.server.http_fakes import get, post
from tests.server.http_models import Service, ask, error

INDEX = b"/v2/repository/index"
LOAD = b"/v2/repository/models/m/load"
UNLOAD = b"/v2/repository/models/m/unload"
GROUP = RestrictedGroup(apis=("model-repository",), header="token", value="secret")


@pytest.fixture
def serve():
    loop = FakeEventLoop()
    yield lambda **options: Service(control=FakeControl(*ENTRIES), loop=loop, **options)
    loop.run()
    loop.close()


@pytest.fixture
def service(serve):
    return serve()


def names(answer):
    assert answer.status == 200
    return [entry["name"] for entry in json.loads(answer.body)]


def test_index_lists_what_is_known(service):
    answer = ask(service, post(b"", INDEX))

    assert answer.status == 200
    assert answer.headers[b"Content-Type"] == b"application/json"
    assert json.loads(answer.body) == [
        {"name": "broken", "version": "1", "state": "UNAVAILABLE", "reason": "Internal: no"},
        {"name": "double", "version": "1", "state": "READY"},
        {"name": "never"},
    ]


def test_index_lists_ready_models_only_where_that_is_wanted(service):
    assert names(ask(service, post(b'{"ready":true}', INDEX))) == ["double"]
    assert names(ask(service, post(b'{"ready":false}', INDEX))) == ["broken", "double", "never"]


@pytest.mark.parametrize(
    "encoding,compress", [(b"gzip", gzip.compress), (b"deflate", zlib.compress)]
)
def test_body_may_be_compressed(service, encoding, compress):
    body = post(compress(b'{"ready":true}'), INDEX, b"Content-Encoding: %b" % encoding)

    assert names(ask(service, body)) == ["double"]


def test_load_is_answered_when_it_is_done(service):
    content = base64.b64encode(b"code").decode()
    parameters = {"config": "{}", "file:1/model.py": content}
    client = service.connect()
    client.send(post(json.dumps({"parameters": parameters}).encode(), LOAD))
    assert service.control.calls == [("load", "m", "{}", {"1/model.py": b"code"})]
    assert client.answers() == []

    service.control.finish()
    service.loop.run()

    (answer,) = client.answers()
    assert (answer.status, answer.body) == (200, b"")
    assert len(service.api.tasks) == 0


def test_large_files_may_replace_those_of_a_model(service):
    content = bytes(4 * LARGE_BODY_BYTES)
    parameters = {"config": "{}", "file:1/weights": base64.b64encode(content).decode()}
    service.connect().send(post(json.dumps({"parameters": parameters}).encode(), LOAD))

    assert service.control.calls == [("load", "m", "{}", {"1/weights": content})]


def test_unload_is_answered_when_it_is_done(service):
    client = service.connect()
    client.send(post(b'{"parameters":{"unload_dependents":true}}', UNLOAD))
    assert service.control.calls == [("unload", "m", True)]
    assert client.answers() == []

    service.control.finish()
    service.loop.run()

    (answer,) = client.answers()
    assert (answer.status, answer.body) == (200, b"")


def test_body_is_not_needed(service):
    for path in (LOAD, UNLOAD):
        service.connect().send(post(b"", path, b"Content-Encoding: gzip"))

    assert service.control.calls == [("load", "m", None, {}), ("unload", "m", False)]


def test_others_are_served_while_a_model_loads(service):
    service.connect().send(post(b"", LOAD))

    assert ask(service, get(b"/v2/health/ready")).status == 200
    assert ask(service, post(b"", INDEX)).status == 200


def test_next_request_of_a_connection_waits_for_the_load(service):
    client = service.connect()
    client.send(post(b"", LOAD) + get(b"/v2/health/live"))
    assert client.answers() == []

    service.control.finish()
    service.loop.run()

    assert client.statuses() == [200, 200]


def test_load_goes_on_when_its_client_leaves(service):
    client = service.connect()
    client.send(post(b"", LOAD))
    client.reset()

    service.control.finish()
    service.loop.run()

    assert service.control.ended == ["m"]
    assert client.answers() == []


@pytest.mark.parametrize(
    "failure,status,text",
    [
        (InvalidArgumentError("load failed for model 'm'"), 400, "load failed for model 'm'"),
        (UnavailableError("not now"), 503, "not now"),
        (RuntimeError("bug"), 500, "unexpected error in the server, its log says more"),
    ],
)
def test_failure_is_told(service, failure, status, text, caplog):
    client = service.connect()
    client.send(post(b"", LOAD))
    service.control.finish(failure)
    service.loop.run()

    (answer,) = client.answers()
    assert (answer.status, error(answer)) == (status, text)
    assert ("bug" in caplog.text) == (status == 500)


BLANK = "Model name cannot be empty. Please enter a valid name to deploy."
NO_REPOSITORY = "'repository_name' specification is not supported"
REFUSALS = [
    (get(INDEX), 405, "Method Not Allowed"),
    (get(LOAD), 405, "Method Not Allowed"),
    (get(UNLOAD), 405, "Method Not Allowed"),
    (post(b"", INDEX + b"/"), 404, "Not Found"),
    (post(b"", b"/v2/repository"), 404, "Not Found"),
    (post(b"", b"/v2/repository/models/m/reload"), 404, "Not Found"),
    (post(b"", b"/v2/repository/r/index"), 501, NO_REPOSITORY),
    (post(b"[", b"/v2/repository/r/models/m/load"), 501, NO_REPOSITORY),
    (post(b"", b"/v2/repository/r/models/m/unload"), 501, NO_REPOSITORY),
    (post(b"{}", INDEX, b"Content-Encoding: br"), 501, "Unsupported compression type"),
    (post(b'{"ready":1}', INDEX), 400, "Invalid value for 'ready': expected a boolean"),
    (
        post(b"[", LOAD), 500,
        "failed to parse the request JSON buffer: Invalid value. at 1",
    ),
    (
        post(b'{"parameters":{"x":"y"}}', LOAD), 500,
        "unexpected error on creating Triton parameter",
    ),
    (
        post(b'{"parameters":{"unload_dependents":1}}', UNLOAD), 500,
        "attempt to access JSON non-boolean as boolean",
    ),
    (post(b"", b"/v2/repository/models/%20/load"), 400, BLANK),
    (post(b"", b"/v2/repository/models/%20/unload"), 400, BLANK),
    (
        post(b"", b"/v2/repository/models/../load"), 400,
        "invalid model name '..', model name must not contain path traversal characters",
    ),
    (
        post(b"", b"/v2/repository/models/a%2Fb/load"), 400,
        "invalid model name 'a/b', model name must not contain path traversal characters",
    ),
]  # fmt: skip


@pytest.mark.parametrize("request_bytes,status,text", REFUSALS)
def test_wrong_request_is_refused_at_once(service, request_bytes, status, text):
    answer = ask(service, request_bytes)

    assert (answer.status, error(answer)) == (status, text)
    assert service.control.calls == []


def test_compressed_body_stays_within_the_limit(serve):
    service = serve()
    bomb = gzip.compress(b" " * (service.api.limits.http_max_input_bytes + 1))

    answer = ask(service, post(bomb, LOAD, b"Content-Encoding: gzip"))

    assert answer.status == 400
    assert "Decompressed data size exceeds" in error(answer)


@pytest.mark.parametrize("path", [LOAD, UNLOAD])
def test_server_that_exits_loads_nothing(service, path):
    service.engine.refuse()

    answer = ask(service, post(b"", path))

    assert (answer.status, error(answer)) == (503, "Server exiting")
    assert service.control.calls == []


def test_tasks_end_with_the_server(service):
    service.connect().send(post(b"", LOAD))
    assert len(service.api.tasks) == 1

    service.api.tasks.cancel()
    service.loop.run()

    assert len(service.api.tasks) == 0
    assert service.control.ended == []


def test_loads_beyond_the_limit_are_refused_until_others_are_done(service, monkeypatch):
    monkeypatch.setattr(local_client, "MAX_LOADS", 2)
    clients = [service.connect() for _ in range(3)]
    for client in clients:
        client.send(post(b"", LOAD))

    assert [client.statuses() for client in clients] == [[], [], [503]]
    assert error(clients[2].answers()[0]) == (
        "expected at most 2 models that are loaded at the same time, got more; try again later"
    )
    service.control.finish()
    service.loop.run()
    assert [client.statuses() for client in clients] == [[200], [200], [503]]
    assert ask(service, post(b"", LOAD)).status == 200
    assert (service.client.loading_count, service.client.refused_loads) == (0, 1)
