# SPDX-License-Identifier: Apache-2.0
"""The calls whose rates are compared give the same arrays, and the table says how they compare."""

from __future__ import annotations

import asyncio
import sys

import numpy as np
import pytest

from benchmarks import client_calls, client_overhead, servers
from tests.e2e.waiting import eventually
from tests.free_ports import first_of_free_ports


@pytest.fixture(scope="module")
def urls():
    port = first_of_free_ports(3)
    (system, *_) = servers.known_systems(None, port)
    with servers.running(system, port) as server:
        yield {
            "HTTP": f"http://127.0.0.1:{server.port}",
            "gRPC": f"grpc://127.0.0.1:{server.grpc_port}",
        }


def answers(name, load):
    async def ask():
        client = client_calls.make_client(name, load)
        try:
            return await client_calls.make_call(load, client)()
        finally:
            await client.close()

    if load.is_asyncio:
        return asyncio.run(ask())
    client = client_calls.make_client(name, load)
    try:
        return client_calls.make_call(load, client)()
    finally:
        client.close()


@pytest.mark.e2e
@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # aiohttp's advice
def test_clients_that_are_compared_do_the_same(urls):
    for load in client_overhead.loads(urls, 0.01).values():
        ours, bare = (answers(name, load) for name in ("ours", "tritonclient"))
        assert ours.keys() == bare.keys() == set(load.outputs)
        for name in load.outputs:
            assert ours[name].shape == bare[name].shape
            assert ours[name].dtype == np.float32
            np.testing.assert_array_equal(ours[name], bare[name])


@pytest.mark.e2e
@pytest.mark.parametrize(
    "title", ["HTTP infer_sample, 16 threads", "HTTP asyncio, infer_sample, 16 tasks"]
)
def test_rate_is_measured_in_a_process_of_its_own(urls, title):
    load = client_overhead.loads(urls, 0.05)[title]
    command = [sys.executable, str(client_overhead.CALLS), "ours"]

    # On a busy machine, no call may be over in so little time.
    assert eventually(lambda: client_overhead.calls_per_s(command, load) > 0)


def test_row_compares_times_of_a_call_with_ours():
    assert client_overhead.row("load", [2000.0, 1000.0, 3000.0]) == (
        "| load | 2,000 | 1,000 | 3,000 | 0.50 | 1.50 |"
    )
