# SPDX-License-Identifier: Apache-2.0
"""Populations of clients against real servers: bound functions, and a model repository."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random

import pytest

from pytriton.triton import Triton, TritonConfig
from tests.e2e.conftest import new_ports
from tests.e2e.http_client import call
from tests.e2e.waiting import eventually
from tests.repository_e2e.server_process import ServerProcess
from tests.workload import models
from tests.workload.asyncio_world import AsyncioWorld, run_sessions
from tests.workload.calls import Call, End, Kind, Port
from tests.workload.generator import PROFILES, Generator
from tests.workload.grpc_client import GrpcClient
from tests.workload.http2_client import FRAMES, Http2Client
from tests.workload.http_client import HttpClient
from tests.workload.invalid import (
    GRPC_CALLS,
    GRPC_FRAMES,
    HTTP2_REQUESTS,
    HTTP_REQUESTS,
    WRONG_CODINGS,
)
from tests.workload.oracle import Oracle
from tests.workload.sessions import ClientPlan

pytestmark = pytest.mark.e2e

CLIENTS, CALLS = 12, 20


class Served:
    """A server with all models that it can have."""

    def __init__(self, ports, names, token="") -> None:
        self.ports = dict(zip(Port, ports, strict=True))
        self.names = names
        self.token = token

    def run(self, plans) -> Oracle:
        """Work through plans, then compare the accounts when the server is at rest."""

        async def work() -> Oracle:
            world = AsyncioWorld(self.ports)
            oracle = Oracle(world.now, served=self.names)
            oracle.account = self.account or oracle.account
            self.account = oracle.account
            try:
                assert await run_sessions(plans, world, oracle, self.token)
                assert await asyncio.to_thread(eventually, self.is_at_rest)
                oracle.check_memory()
            finally:
                world.close()
            return oracle

        oracle = asyncio.run(work())
        self.ask("/v2/systemsharedmemory/unregister", b"")
        page = call(self.ports[Port.METRICS], "/metrics").body.decode()
        oracle.compare(self.statistics(), page)
        return oracle

    account = None  # of all runs of this server

    def ask(self, path, *body):
        headers = {"triton-access-token": self.token}
        return call(self.ports[Port.HTTP], path, *body, headers=headers)

    def statistics(self):
        return json.loads(self.ask("/v2/models/stats").body)

    def is_at_rest(self) -> bool:
        """Whether no request waits, and two readings of the statistics are the same."""
        page = call(self.ports[Port.METRICS], "/metrics").body.decode()
        pending = [line for line in page.splitlines() if "pending_request_count{" in line]
        first = self.statistics()
        return all(line.endswith(" 0") for line in pending) and first == self.statistics()


@pytest.fixture(scope="module")
def bound():
    ports = new_ports()
    logging.getLogger("pytriton").setLevel(logging.CRITICAL)  # some models fail on purpose
    with Triton(config=TritonConfig(**ports, **models.TRITON_SETTINGS)) as triton:
        names = models.bind_models(triton)
        yield Served(ports.values(), names, triton.get_access_token())
    logging.getLogger("pytriton").setLevel(logging.NOTSET)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("workload")
    names = models.write_repository(folder / "models")
    flags = [*models.SERVER_FLAGS, "--model-control-mode=explicit", "--load-model=*"]
    with ServerProcess(folder, [folder / "models"], flags) as server:
        server.await_ready()
        yield Served(server.ports, names)


@pytest.fixture(params=["bound", "repository"])
def served(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("profile", sorted(PROFILES, key=lambda name: name == "management"))
def test_population_finds_nothing_wrong(served, profile):
    first = 1 + sum(10_000 for name in sorted(PROFILES) if name < profile)
    source = random.Random(sum(profile.encode()))
    prefix = f"workload-{os.getpid()}"
    made = Generator(source, profile, served.names, first, prefix)
    plans = made.plans(CLIENTS, CALLS, spread_s=0.2)
    oracle = served.run(plans)

    assert [str(finding) for finding in oracle.findings] == []
    assert not oracle.open


def single(number, port, **settings):
    return ClientPlan(number, port, 0.0, [Call(number, Kind.INVALID, port, **settings)])


@pytest.mark.parametrize("payload", HTTP_REQUESTS, ids=lambda payload: repr(payload[:60]))
def test_http_request_that_makes_no_sense_is_refused(bound, payload):
    plan = single(100_001, Port.HTTP, payload=payload)
    oracle = bound.run([plan])

    assert [str(finding) for finding in oracle.findings] == []
    assert plan.calls[0].outcome.end is End.ERROR


@pytest.mark.parametrize(
    "payload", [*HTTP2_REQUESTS, *WRONG_CODINGS], ids=lambda payload: repr(payload[:60])
)
def test_http2_request_that_makes_no_sense_is_refused(bound, payload):
    plan = single(100_001, Port.HTTP, payload=payload)
    plan.is_http2 = True
    oracle = bound.run([plan])

    assert [str(finding) for finding in oracle.findings] == []
    assert plan.calls[0].outcome.end in (End.ERROR, End.RESET)


@pytest.mark.parametrize("text, payload", GRPC_CALLS)
def test_grpc_call_that_makes_no_sense_is_refused(bound, text, payload):
    plan = single(100_001, Port.GRPC, text=text, payload=payload)
    oracle = bound.run([plan])

    assert [str(finding) for finding in oracle.findings] == []
    assert plan.calls[0].outcome.end is End.ERROR


@pytest.mark.parametrize("port", [Port.GRPC, Port.HTTP])
@pytest.mark.parametrize("payload", GRPC_FRAMES, ids=repr)
def test_frames_that_make_no_sense_end_the_connection(bound, payload, port):
    plan = single(100_001, port, payload=payload)
    if port is Port.HTTP:
        plan.is_http2, plan.calls[0].text = True, FRAMES
    oracle = bound.run([plan])

    assert [str(finding) for finding in oracle.findings] == []
    assert plan.calls[0].outcome.end is End.LOST
    assert "GOAWAY" in plan.calls[0].outcome.error


def test_metrics_have_a_port_of_their_own(bound):
    number = 100_002
    plan = ClientPlan(number, Port.METRICS, 0.0, [Call(number, Kind.METRICS, Port.METRICS)])
    oracle = bound.run([plan])

    assert oracle.findings == []
    assert "nv_inference_request_success" in plan.calls[0].outcome.responses[0].document


@pytest.mark.parametrize("client_type", [HttpClient, Http2Client, GrpcClient])
def test_clients_do_not_know_asyncio_or_the_clock(client_type):
    module = __import__(client_type.__module__, fromlist=["_"])

    assert not {"asyncio", "socket", "time", "random"} & set(vars(module))
