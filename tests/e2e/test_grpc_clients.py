# SPDX-License-Identifier: Apache-2.0
"""The official clients against our server: requests small and large, many, and compressed."""

from __future__ import annotations

import asyncio
import queue

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as triton_aio

from tests.e2e.grpc_server import add_sub_inputs, bytes_input, grpc_server, tensor
from tests.e2e.waiting import DEADLINE_S

pytestmark = pytest.mark.both_front_end_modes


@pytest.fixture(scope="module")
def server(front_end_mode):
    with grpc_server() as running:
        yield running


@pytest.fixture
def client(server):
    with triton_grpc.InferenceServerClient(server.address) as connected:
        yield connected


def test_inference_answers_with_id_and_outputs(client):
    result = client.infer("add_sub", add_sub_inputs(5, 3), request_id="seven")

    assert result.as_numpy("add").tolist() == [[8.0]]
    assert result.as_numpy("sub").tolist() == [[2.0]]
    assert result.get_response().id == "seven"
    assert result.get_response().model_version == "1"
    assert not result.get_response().parameters


def test_statistics_count_what_was_inferred(client):
    before = client.get_inference_statistics("add_sub").model_stats[0].inference_count

    client.infer("add_sub", add_sub_inputs())

    after = client.get_inference_statistics("add_sub").model_stats[0]
    assert after.inference_count == before + 1
    assert after.inference_stats.success.ns > 0
    assert after.batch_stats[0].batch_size == 1


def test_many_requests_in_flight_are_all_answered(client):
    answers: queue.Queue = queue.Queue()
    for number in range(300):
        client.async_infer(
            "add_sub",
            add_sub_inputs(number, 1),
            lambda result, error: answers.put((result, error)),
            request_id=str(number),
        )

    results = [answers.get(timeout=DEADLINE_S) for _ in range(300)]
    sums = {result.get_response().id: result.as_numpy("add").item() for result, _ in results}
    assert sums == {str(number): number + 1.0 for number in range(300)}


@pytest.mark.parametrize("size", [0, 1, 4091, 70_000, 1 << 20, 16 << 20])
def test_tensors_of_any_size_come_back(client, size):
    inputs = bytes_input(size)

    result = client.infer("identity", inputs)

    expected = np.arange(size, dtype=np.uint32).astype(np.uint8)
    assert np.array_equal(result.as_numpy("y"), expected)


@pytest.mark.part("servers")
def test_message_of_256_mib_comes_back(client):
    size = 256 << 20
    array = np.zeros(size, np.uint8)
    array[:: 1 << 20] = 7

    result = client.infer("identity", [tensor("x", array)])

    assert np.array_equal(result.as_numpy("y"), array)


@pytest.mark.parametrize("compression", ["gzip", "deflate"])
def test_compressed_requests_are_read(client, compression):
    result = client.infer("identity", bytes_input(100_000), compression_algorithm=compression)

    assert result.as_numpy("y").size == 100_000


def test_asyncio_client_is_served(server):
    async def ask():
        async with triton_aio.InferenceServerClient(server.address) as client:
            ready = await client.is_server_ready()
            results = await asyncio.gather(
                *(client.infer("add_sub", add_sub_inputs(n, 1)) for n in range(100))
            )
            return ready, [result.as_numpy("add").item() for result in results]

    ready, sums = asyncio.run(ask())

    assert ready
    assert sums == [n + 1.0 for n in range(100)]
