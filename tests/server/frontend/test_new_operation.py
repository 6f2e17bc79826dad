# SPDX-License-Identifier: Apache-2.0
"""A new operation is a row of the table, and a method of the core's client if that answers it.

It is reached then over HTTP and gRPC, in the core's process and from a front end of its own, by
those who have the right to it, and the OpenAPI document has it.
"""

from __future__ import annotations

import asyncio
import json
from operator import attrgetter, itemgetter

import pytest

from pytriton.base.errors import NotFoundError
from pytriton.base.protos import service_pb2
from pytriton.serving.engine.client import question
from pytriton.serving.server.access.control import AccessControl
from pytriton.serving.server.access.credentials import Peer
from pytriton.serving.server.access.decisions import Scope, visible
from pytriton.serving.server.access.keys import make_key
from pytriton.serving.server.access.policy import Policy, Rights
from pytriton.serving.server.api.local_client import LocalClient
from pytriton.serving.server.http.api import HttpApi
from pytriton.serving.server.operations.openapi import described_paths
from pytriton.serving.server.operations.operation import (
    Desk,
    HttpPath,
    Operation,
    OverGrpc,
    OverHttp,
    core,
)
from pytriton.serving.server.operations.table import OPERATIONS
from pytriton.serving.server.options.server_options import ServerOptions
from tests.contract.seam import Seam
from tests.server.grpc_fakes import GrpcClient
from tests.server.http_fakes import Client, get, post

NOW_S = 1_000_000.0
MODELS = ("bird", "cat")


@question()
async def lookers(client, name, version):
    """What the class of the core's client would have: who looks at models."""
    await asyncio.sleep(0)
    if name and name not in MODELS:
        raise NotFoundError(f"nobody looks at '{name}' on a server of {len(client.ready_models())}")
    return [{"name": each, "version": version or "1"} for each in MODELS if name in ("", each)]


lookers.__qualname__ = f"{LocalClient.__name__}.{lookers.__name__}"
_PATH = "/v2/models/{model}[/versions/{version}]/lookers"
LOOKERS = Operation(
    "lookers",
    "statistics",
    Scope.FILTERED,
    core(lookers),
    ("name", "version"),
    http=OverHttp((HttpPath("/v2/lookers"), HttpPath(_PATH, "Who looks at a model", "lookers"))),
    grpc=OverGrpc(
        "Lookers",
        write=lambda found: {"models": found},
        subject=lambda request: request.name or Scope.FILTERED,
    ),
    check=Desk.refuse_when_exiting,
    shown=lambda grant, found: visible(grant, found, itemgetter("name")),
)
TABLE = (*OPERATIONS, LOOKERS)


class Scene:
    """Both protocols over one engine, with senders who may see some of its models."""

    def __init__(self, seam):
        self.seam = seam
        keys = {name: make_key(name, NOW_S, None) for name in ("all", "some", "none")}
        rights = {
            "all": Rights(apis=("statistics",)),
            "some": Rights(apis=("statistics",), models=("cat",)),
            "none": Rights(apis=("metadata",)),
        }
        records = {record.id: record for _, record in keys.values()}
        access = AccessControl(Policy(principals=rights, keys=records), "own", lambda: NOW_S)
        self.keys = {name: key for name, (key, _) in keys.items()}
        options = ServerOptions()
        self.http_api = HttpApi(seam.client, options, seam.loop, access=access, operations=TABLE)
        self.caller = GrpcClient(
            options, loop=seam.loop, access=access, client=seam.client, operations=TABLE
        )
        self.caller.connection.peer = Peer("10.0.0.1", None)

    def http(self, name, path, make=get):
        """The status of an answer, and the document."""
        client = Client(self.http_api)
        client.connection.peer = Peer("10.0.0.1", None)
        client.send(make(path, b"x-api-key: " + self.keys[name].encode()))
        self.seam.run()
        (answer,) = client.answers()
        return answer.status, json.loads(answer.body or b"null")

    def grpc(self, name, model="", version=""):
        """The status of a call, and the models in its message."""
        request = service_pb2.LookersRequest(name=model, version=version)
        stream = self.caller.call(
            "Lookers", request.SerializeToString(), ("x-api-key", self.keys[name])
        )
        self.seam.run()
        self.caller.run()
        response = self.caller.response(stream)
        messages = map(service_pb2.LookersResponse.FromString, response.messages)
        found = [(each.name, each.version) for message in messages for each in message.models]
        return response.status, found or response.text


@pytest.fixture(params=[False, True], ids=["in the core's process", "in a front end"])
def scene(request, monkeypatch):
    monkeypatch.setattr(LocalClient, "lookers", lookers, raising=False)
    # What would be in `base/protos`.
    for kind, like in (("Request", "ModelStatistics"), ("Response", "RepositoryIndex")):
        message = getattr(service_pb2, f"{like}{kind}")
        monkeypatch.setattr(service_pb2, f"Lookers{kind}", message, raising=False)
    seam = Seam(is_remote=request.param)
    yield Scene(seam)
    seam.close()


def test_operation_is_answered_over_http(scene):
    assert scene.http("all", b"/v2/lookers") == (
        200,
        [{"name": "bird", "version": "1"}, {"name": "cat", "version": "1"}],
    )
    assert scene.http("all", b"/v2/models/cat/versions/3/lookers") == (
        200,
        [{"name": "cat", "version": "3"}],
    )


def test_operation_is_answered_over_grpc(scene):
    assert scene.grpc("all") == ("0", [("bird", "1"), ("cat", "1")])
    assert scene.grpc("all", "cat", "3") == ("0", [("cat", "3")])


def test_error_of_the_core_is_the_answer_of_both_protocols(scene):
    text = "nobody looks at 'dog' on a server of 0"

    assert scene.http("all", b"/v2/models/dog/lookers") == (404, {"error": text})
    assert scene.grpc("all", "dog") == ("5", text)


def test_sender_gets_what_its_rights_cover(scene):
    refusal = "some has no right to statistics of the model 'bird'"

    assert scene.http("some", b"/v2/lookers") == (200, [{"name": "cat", "version": "1"}])
    assert scene.grpc("some") == ("0", [("cat", "1")])
    assert scene.http("some", b"/v2/models/bird/lookers") == (403, {"error": refusal})
    assert scene.grpc("some", "bird") == ("7", refusal)


def test_sender_without_the_right_gets_nothing(scene):
    refusal = "none has no right to statistics"

    assert scene.http("none", b"/v2/lookers") == (403, {"error": refusal})
    assert scene.grpc("none") == ("7", refusal)


def test_only_its_methods_are_allowed(scene):
    def send(path, line):
        return post(b"", path, line)

    status, _ = scene.http("all", b"/v2/lookers", send)

    assert status == 405


def test_check_is_the_same_for_both_protocols(scene):
    scene.seam.engine.refuse()
    scene.seam.run()

    assert scene.http("all", b"/v2/lookers") == (503, {"error": "Server exiting"})
    assert scene.grpc("all") == ("14", "Server exiting")


def test_openapi_document_has_the_path_with_a_summary():
    known = described_paths(OPERATIONS)
    (new,) = described_paths(TABLE)[len(known) :]

    assert (new.path, new.method) == ("/v2/models/{model}/lookers", "get")
    assert (new.api, new.id, new.summary) == ("statistics", "lookers", "Who looks at a model")


def test_names_in_the_table_are_there_once():
    names = [each.name for each in OPERATIONS]
    methods = [each.grpc.method for each in OPERATIONS if each.grpc is not None]
    templates = [
        path.template for each in OPERATIONS if each.http is not None for path in each.http.paths
    ]

    for each in (names, methods, templates):
        assert len(set(each)) == len(each)
    assert all(map(attrgetter("api"), OPERATIONS))
