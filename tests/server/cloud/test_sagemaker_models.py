# SPDX-License-Identifier: Apache-2.0
"""How SageMaker manages the models of a multi-model endpoint."""

from __future__ import annotations

import json

import pytest

from pytriton.base.errors import (
    AlreadyExistsError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    ServerError,
    UnavailableError,
)
from pytriton.testing import FakeEventLoop
from tests.server.cloud_fakes import answered, request, sagemaker, status_of
from tests.server.http_models import ask, error, floats, infer_body

LOAD = b'{"model_name":"m","url":"/models/m"}'


class FakeRegistrations:
    def __init__(self) -> None:
        self.models: dict[str, str] = {}
        self.failure: ServerError | None = None

    def listed(self):
        return self.models

    async def register(self, name, url):
        if self.failure is not None:
            raise self.failure
        self.models[name] = url

    async def unregister(self, name):
        if self.failure is not None:
            raise self.failure
        if name not in self.models:
            raise NotFoundError("no such model")
        del self.models[name]


@pytest.fixture
def service():
    loop = FakeEventLoop()
    service = sagemaker(loop=loop)
    service.client.registrations = FakeRegistrations()
    yield service
    loop.run()
    loop.close()


def load(service, body=LOAD):
    client = service.connect()
    client.send(request(b"POST", b"/models", body=body))
    service.loop.run()
    (answer,) = client.answers()
    return answer


def delete(service, path):
    client = service.connect()
    client.send(request(b"DELETE", path))
    service.loop.run()
    (answer,) = client.answers()
    return answer


def test_models_are_loaded_listed_described_and_unloaded(service):
    assert load(service).status == 200
    assert json.loads(ask(service, request(b"GET", b"/models")).body) == {
        "models": [{"modelName": "m", "modelUrl": "/models/m"}]
    }
    assert json.loads(ask(service, request(b"GET", b"/models/m")).body) == {
        "modelName": "m",
        "modelUrl": "/models/m",
    }
    assert delete(service, b"/models/m").status == 200
    assert json.loads(ask(service, request(b"GET", b"/models/")).body) == {"models": []}


def test_names_are_percent_decoded(service):
    service.client.registrations.models["a b"] = "/x"

    assert json.loads(ask(service, request(b"GET", b"/models/a%20b")).body)["modelUrl"] == "/x"


def test_unknown_model_is_not_found(service):
    answer = ask(service, request(b"GET", b"/models/m"))

    assert answer.status == 404
    assert error(answer) == "Request for unknown model: 'm' is not found"
    assert delete(service, b"/models/m").status == 404


@pytest.mark.parametrize(
    "failure, status",
    [
        (AlreadyExistsError("it is there"), 409),
        (UnavailableError("Server exiting"), 503),
        (InternalError("failed"), 400),
        (InvalidArgumentError("no module named x"), 400),
        (InternalError("CUDA out of memory. Tried to allocate"), 507),
        (InternalError("MemoryError: "), 507),
        (InternalError("torch.OutOfMemoryError"), 507),
        (InternalError("CUBLAS_STATUS_ALLOC_FAILED when calling"), 507),
        (InternalError("OSError: [Errno 28] No space left on device"), 507),
    ],
)
def test_status_says_why_a_model_is_not_loaded(service, failure, status):
    service.client.registrations.failure = failure
    answer = load(service)

    assert (answer.status, error(answer)) == (status, failure.message)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"m"',
        b'{"model_name":"m"}',
        b'{"url":"/m"}',
        b'{"model_name":1,"url":"/m"}',
        b'{"model_name":"m","url":null}',
        b'{"model_name":"\xff","url":"/m"}',
    ],
)
def test_malformed_load_is_refused(service, body):
    answer = load(service, body)

    assert answer.status == 400
    assert error(answer).startswith("expected JSON with the texts model_name and url, got ")


def test_other_members_of_a_load_are_ignored(service):
    assert load(service, b'{"x":[1],"model_name":"m","url":"/m"}').status == 200


def test_server_without_repositories_loads_nothing(service):
    service.client.registrations = None

    assert load(service).status == 400
    assert delete(service, b"/models/m").status == 404
    assert json.loads(ask(service, request(b"GET", b"/models")).body) == {"models": []}


def test_model_of_the_path_is_invoked_whatever_the_archive_is_called():
    line = b"X-Amzn-SageMaker-Target-Model: archive.tar.gz"
    data = request(b"POST", b"/models/double/invoke", line, body=infer_body(1))
    answer = answered(sagemaker("other"), data, floats(2))

    assert json.loads(answer.body)["model_name"] == "double"


def test_model_that_is_short_of_memory_says_so_when_it_is_invoked():
    service = sagemaker()
    statuses = []
    for path in (b"/models/double/invoke", b"/invocations"):
        client = service.connect()
        client.send(request(b"POST", path, body=infer_body(1)))
        service.double.fail(InternalError("CUDA out of memory"), index=-1)
        statuses.append(client.answers()[0].status)

    assert statuses == [507, 500]


@pytest.mark.parametrize(
    "method, path, status",
    [
        (b"PUT", b"/models", 405),
        (b"DELETE", b"/models", 405),
        (b"POST", b"/models/double", 405),
        (b"GET", b"/models/double/invoke", 405),
        (b"POST", b"/models/none/invoke", 404),
        (b"POST", b"/models//invoke", 404),
        (b"POST", b"/models/double/invoke/", 404),
        (b"GET", b"/models/double/", 404),
        (b"GET", b"/models/double/config", 404),
        (b"GET", b"/modelsx", 404),
        (b"POST", b"/models/..%2fdouble/invoke", 404),
    ],
)
def test_nothing_else_is_served(method, path, status):
    assert status_of(sagemaker(), request(method, path)) == status
