# SPDX-License-Identifier: Apache-2.0
"""Random requests get the same answers, byte by byte, whether they take the fast path or not."""

from __future__ import annotations

import contextlib
import os
import random
import re

import pytest

from tests.e2e.http_client import call
from tests.exactness.models import repository
from tests.exactness.random_requests import FORMS, random_form, random_grpc, random_http
from tests.exactness.wire_clients import GrpcConnection, HttpClient
from tests.repository_e2e.server_process import starter

# The requests of one run, of which there are two for each protocol; 25000 make the 100,000 that a
# change of the fast path has to pass.
REQUESTS = int(os.environ.get("PYTRITON_EXACTNESS_REQUESTS", "800"))
SEED = int(os.environ.get("PYTRITON_EXACTNESS_SEED", "1"))
MOST_TOGETHER = 24  # requests that arrive at the same time
ROUNDS = 2 * REQUESTS // (1 + MOST_TOGETHER)


@pytest.fixture(scope="module", params=[0, 2], ids=["one process", "front ends"])
def servers(request, tmp_path_factory):
    """A server whose requests may take the fast path, and one whose requests may not."""
    flags = [f"--frontend-processes={request.param}"]
    with starter(tmp_path_factory.mktemp("servers")) as start:
        running = [
            start(repository(takes_fast_path=is_fast), flags=flags) for is_fast in (True, False)
        ]
        yield [server.await_ready() for server in running]


@pytest.fixture
def compared(servers):
    """Both servers; in the end, requests of the first one alone have travelled together."""
    before = [columns_count(server) for server in servers]
    yield servers
    fast, ordinary = (
        columns_count(server) - count for server, count in zip(servers, before, strict=True)
    )
    assert fast > REQUESTS / 50
    assert ordinary == 0


def columns_count(server):
    """How many requests took the fast path."""
    metrics = call(server.metrics_port, "/metrics").body.decode()
    counts = re.findall(
        r'^nv_inference_path_count{.*path="columns".*} (\d+)$', metrics, re.MULTILINE
    )
    return sum(map(int, counts))


@pytest.fixture
def open_all():
    """Makes clients of both servers, and closes them after the test."""
    with contextlib.ExitStack() as stack:

        def make(client, ports):
            return [stack.enter_context(contextlib.closing(client(port))) for port in ports]

        yield make


def test_http_requests_are_answered_the_same(compared, open_all):
    dice = random.Random(SEED)
    clients = open_all(HttpClient, [server.http_port for server in compared])
    forms = [random_form(dice) for _ in range(FORMS)]
    for _ in range(ROUNDS):
        requests = [random_http(dice, forms) for _ in range(dice.randint(1, MOST_TOGETHER))]
        for client in clients:
            client.send(requests)
        fast, ordinary = [client.receive(len(requests)) for client in clients]
        for sent, got, expected in zip(requests, fast, ordinary, strict=True):
            assert got == expected, sent


def test_grpc_calls_are_answered_the_same(compared, open_all):
    dice = random.Random(SEED)
    lanes = [open_all(GrpcConnection, [server.grpc_port for server in compared]) for _ in range(3)]
    forms = [random_form(dice) for _ in range(FORMS)]
    for _ in range(ROUNDS):
        calls = [random_grpc(dice, forms) for _ in range(dice.randint(1, MOST_TOGETHER))]
        connections = dice.choice(lanes)
        for connection in connections:
            connection.send(calls)
        fast, ordinary = [connection.receive() for connection in connections]
        for sent, got, expected in zip(calls, fast, ordinary, strict=True):
            assert got == expected, sent
