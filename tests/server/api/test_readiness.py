# SPDX-License-Identifier: Apache-2.0
"""Whether server and models are ready, also where models say so themselves."""

from __future__ import annotations

import asyncio
import json

import pytest

from pytriton.base.errors import InternalError
from pytriton.base.protos import service_pb2
from pytriton.serving.engine.client import IndexEntry
from pytriton.testing import FakeEventLoop
from tests.fakes import FakeSupervisor
from tests.server.control_fakes import FakeControl
from tests.server.grpc_fakes import GrpcClient
from tests.server.http_fakes import get
from tests.server.http_models import Service, ask

HEALTH_CHECK = "/grpc.health.v1.Health/Check"


class Server:
    """Both front ends over one engine."""

    def __init__(self, loop, **options) -> None:
        self.loop = loop
        self.control = FakeControl()
        self.service = Service(control=self.control, loop=loop, **options)
        self.engine = self.service.engine
        self.client = GrpcClient(
            self.service.options, engine=self.engine, control=self.control, loop=loop
        )

    def http(self, path: bytes) -> int:
        return ask(self.service, get(path)).status

    def grpc(self, method, response_class, message=b"") -> bool:
        (answer,) = self.client.response(self.client.call(method, message)).messages
        return response_class.FromString(answer).ready

    def server_answers(self) -> list[bool]:
        """HTTP, gRPC, and gRPC's health service."""
        (status,) = self.client.response(self.client.call(HEALTH_CHECK)).messages
        return [
            self.http(b"/v2/health/ready") == 200,
            self.grpc("ServerReady", service_pb2.ServerReadyResponse),
            status == b"\x08\x01",
        ]

    def model_answers(self, name="double") -> list[bool]:
        message = service_pb2.ModelReadyRequest(name=name).SerializeToString()
        return [
            self.http(b"/v2/models/%b/ready" % name.encode()) == 200,
            self.grpc("ModelReady", service_pb2.ModelReadyResponse, message),
        ]

    def hook(self, check, name="double") -> None:
        self.engine.lookup(name)._supervisor = FakeSupervisor(check)


@pytest.fixture
def serve():
    loop = FakeEventLoop()
    yield lambda **options: Server(loop, **options)
    loop.run()
    loop.close()


@pytest.fixture
def server(serve):
    return serve()


def answering(value):
    async def check():
        await asyncio.sleep(0)
        return value

    return check


def test_server_and_models_without_a_word_are_ready_at_once(server):
    assert server.server_answers() == [True] * 3
    assert server.model_answers() == [True] * 2
    assert server.model_answers("nobody") == [False] * 2
    assert len(server.service.api.tasks) == 0


def test_server_is_as_ready_as_its_control(server, serve):
    server.control.is_serving = False
    lenient = serve(strict_readiness=False)
    lenient.control.is_serving = False

    assert server.server_answers() == [False] * 3
    assert server.model_answers() == [True] * 2
    assert lenient.server_answers() == [True] * 3


@pytest.mark.parametrize("word", [True, False])
def test_model_says_itself_whether_it_is_ready(server, word):
    server.hook(answering(word))

    assert server.model_answers() == [word] * 2
    assert server.model_answers("stream") == [True] * 2
    assert server.server_answers() == [word] * 3


def test_server_that_is_not_strict_asks_no_model(serve):
    server = serve(strict_readiness=False)
    server.hook(answering(False))

    assert server.server_answers() == [True] * 3


def test_word_of_a_model_does_not_hold_up_others(server):
    asked = asyncio.Event()
    server.hook(asked.wait)
    waiting = server.service.connect()
    waiting.send(get(b"/v2/models/double/ready"))
    assert waiting.answers() == []
    assert server.model_answers("stream") == [True] * 2

    asked.set()
    server.loop.run()

    assert waiting.statuses() == [200]


def test_client_that_does_not_wait_for_the_word_is_forgotten(server):
    asked = asyncio.Event()
    server.hook(asked.wait)
    waiting = server.service.connect()
    waiting.send(get(b"/v2/models/double/ready"))
    waiting.reset()
    stream = server.client.call("ModelReady", b"\x0a\x06double")
    server.client.reset(stream)
    health = server.client.call(HEALTH_CHECK)
    server.client.reset(health)

    asked.set()
    server.loop.run()

    assert waiting.answers() == []
    assert server.client.response(stream).trailers is None
    assert server.client.response(health).trailers is None


def test_word_that_cannot_be_had_is_an_error(server):
    async def fail():
        raise InternalError("the worker is gone")

    server.hook(fail)

    assert server.http(b"/v2/models/double/ready") == 500
    response = server.client.response(server.client.call("ModelReady", b"\x0a\x06double"))
    assert response.text == "the worker is gone"


def test_model_that_does_not_serve_is_not_asked(server):
    def check():
        raise AssertionError("asked")

    server.hook(check)
    server.engine.lookup("double").missing_instances = 1

    assert server.model_answers() == [False] * 2
    assert server.server_answers() == [False] * 3


# Why the server is not ready


def reason_of(server) -> str:
    answer = ask(server.service, get(b"/v2/health/ready"))
    assert answer.status == 400
    assert answer.headers[b"Content-Type"] == b"application/json"
    return json.loads(answer.body)["error"]


def test_server_names_the_models_that_are_not_ready(server, caplog):
    caplog.set_level("INFO")
    server.control.is_serving = False
    server.control.entries = [
        IndexEntry("good", "1", "READY"),
        IndexEntry("bad", "1", "UNAVAILABLE", "Internal: no module named 'x'\nAt: line 3"),
        IndexEntry("unread", "", "UNAVAILABLE", "config.pbtxt:3:1: what is this"),
        IndexEntry("slow", "2", "LOADING"),
        IndexEntry("left", "1", "UNAVAILABLE", "unloaded"),
        IndexEntry("leaving", "1", "UNLOADING"),
        IndexEntry("never loaded"),
    ]
    text = (
        "model 'bad' version 1 is at UNAVAILABLE state: Internal: no module named 'x'; "
        "model 'unread' is at UNAVAILABLE state: config.pbtxt:3:1: what is this; "
        "model 'slow' version 2 is at LOADING state"
    )

    assert reason_of(server) == reason_of(server) == f"Server is not ready: {text}"
    assert [it for it in caplog.messages if text in it] == [f"The server is not ready: {text}"]


def test_server_that_hides_exceptions_tells_no_reasons(server):
    server.control.is_serving = False
    server.control.entries = [IndexEntry("bad", "1", "UNAVAILABLE", "Internal: /secret/file")]
    server.engine.tells_reasons = False

    assert reason_of(server) == (
        "Server is not ready: model 'bad' version 1 is at UNAVAILABLE state: "
        "the server's log says why"
    )


def test_server_with_many_models_that_are_not_ready_names_some(server):
    server.control.is_serving = False
    server.control.entries = [IndexEntry(f"m{at}", "1", "LOADING") for at in range(30)]

    assert reason_of(server).endswith("model 'm19' version 1 is at LOADING state; and 10 more")


def test_server_names_models_that_are_short_of_instances(server):
    server.engine.lookup("double").missing_instances = 1

    assert (
        reason_of(server) == "Server is not ready: model 'double' version 1 is short of instances"
    )


def test_server_names_models_that_say_themselves_that_they_are_not_ready(server):
    server.hook(answering(False))

    assert reason_of(server) == (
        "Server is not ready: model 'double' version 1 reports that it is not ready"
    )


def test_server_that_is_about_to_exit_says_so(server):
    server.engine.begin_exit()

    assert reason_of(server) == "Server is not ready: the server is about to exit"
