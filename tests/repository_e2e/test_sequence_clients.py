# SPDX-License-Identifier: Apache-2.0
"""Sequences of the official clients: over HTTP, gRPC, asyncio and shared streams, of any id."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import queue
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as triton_grpc_aio
import tritonclient.http as triton_http
import tritonclient.http.aio as triton_http_aio

from tests.e2e.waiting import DEADLINE_S
from tests.repository_e2e.model_files import (
    DECOUPLED,
    code,
    config,
    decoupled_code,
    model,
)

pytestmark = pytest.mark.both_front_end_modes

# Two instances, each of which only knows the sums of its own sequences.
ACCUMULATE = """
key = request.correlation_id()
if request.flags() & 1:
    self.sums[key] = 0.0
self.sums[key] += x[0, 0] if key else 0.0
y = [[self.sums[key]]]
if request.flags() & 2:
    del self.sums[key]
"""
SUMS = code(ACCUMULATE, initialize="self.sums = {0: 0.0}")
# As many responses as X says, each with the number of those that the sequence has had.
COUNT = "import collections\nsums = collections.Counter()\n" + decoupled_code(
    """
    key = request.correlation_id()
    for _ in range(int(x[0, 0])):
        sums[key] += 1
        send([[sums[key]]])
    """
)
INSTANCES = "instance_group [{ kind: KIND_CPU count: 2 }]\n"
IDLE = "max_sequence_idle_microseconds: 600000000"
STRATEGIES = {
    "direct": f"sequence_batching {{ {IDLE} }}\n",
    "oldest": f"sequence_batching {{ {IDLE} oldest {{ max_candidate_sequences: 16 }} }}\n",
}


VALUES = (1.0, 2.0, 4.0, 8.0)
SUMS_OF_VALUES = [1.0, 3.0, 7.0, 15.0]

_ids = itertools.count(1)


def new_id(kind):
    """An id that no other test has."""
    return next(_ids) if kind is int else f"sequence {next(_ids)}"


@pytest.fixture(scope="module")
def server(start_module_server):
    made = {name: model(SUMS, config(INSTANCES + text)) for name, text in STRATEGIES.items()}
    made |= {
        f"decoupled_{name}": model(COUNT, config(INSTANCES + text + DECOUPLED))
        for name, text in STRATEGIES.items()
    }
    return start_module_server(made).await_ready()


def tensor(client, value):
    made = client.InferInput("X", [1, 1], "FP32")
    made.set_data_from_numpy(np.array([[value]], np.float32))
    return made


def steps(sequence, values=VALUES):
    """The values of a sequence with the arguments of their requests."""
    for position, value in enumerate(values):
        yield (
            value,
            {
                "sequence_id": sequence,
                "sequence_start": position == 0,
                "sequence_end": position == len(values) - 1,
            },
        )


def y_of(result):
    return float(result.as_numpy("Y")[0, 0])


def http_client(server, connections=1):
    return contextlib.closing(
        triton_http.InferenceServerClient(
            f"127.0.0.1:{server.http_port}", concurrency=connections, network_timeout=DEADLINE_S
        )
    )


def grpc_client(server):
    return contextlib.closing(triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}"))


PROTOCOLS = {"http": (triton_http, http_client), "grpc": (triton_grpc, grpc_client)}


@pytest.mark.parametrize("kind", [int, str])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_sequence_is_added_up(server, protocol, strategy, kind):
    library, opened = PROTOCOLS[protocol]
    with opened(server) as client:
        sums = [
            y_of(client.infer(strategy, [tensor(library, value)], **options))
            for value, options in steps(new_id(kind))
        ]

    assert sums == SUMS_OF_VALUES


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_sequences_of_many_threads_do_not_mix(server, protocol, strategy):
    library, opened = PROTOCOLS[protocol]

    def play(number):
        values = [float(number)] * 10
        with opened(server) as client:
            return [
                y_of(client.infer(strategy, [tensor(library, value)], **options))
                for value, options in steps(new_id(int), values)
            ]

    with ThreadPoolExecutor(24) as pool:
        sums = list(pool.map(play, range(48)))

    assert sums == [[number * count for count in range(1, 11)] for number in range(48)]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", [int, str])
def test_many_sequences_share_a_stream(server, kind, strategy):
    answers: queue.Queue = queue.Queue()
    ids = [new_id(kind) for _ in range(64)]
    expected = {}
    with grpc_client(server) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for number, requests in enumerate(zip(*(steps(each) for each in ids), strict=True)):
            for value, options in requests:
                name = f"{options['sequence_id']}/{number}"
                expected[name] = SUMS_OF_VALUES[number]
                client.async_stream_infer(
                    strategy, [tensor(triton_grpc, value)], request_id=name, **options
                )
        received = [answers.get(timeout=DEADLINE_S) for _ in expected]
        client.stop_stream()

    assert [error for _, error in received if error is not None] == []
    assert {result.get_response().id: y_of(result) for result, _ in received} == expected


async def play_with(client, library, strategy, sequence):
    return [
        y_of(await client.infer(strategy, [tensor(library, value)], **options))
        for value, options in steps(sequence)
    ]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", [int, str])
def test_asyncio_clients_of_http(server, kind, strategy):
    async def play():
        async with triton_http_aio.InferenceServerClient(
            f"127.0.0.1:{server.http_port}", conn_limit=32
        ) as client:
            return await asyncio.gather(
                *(play_with(client, triton_http_aio, strategy, new_id(kind)) for _ in range(32))
            )

    assert asyncio.run(play()) == [SUMS_OF_VALUES] * 32


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", [int, str])
def test_asyncio_clients_of_grpc(server, kind, strategy):
    async def play():
        async with triton_grpc_aio.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
            return await asyncio.gather(
                *(play_with(client, triton_grpc_aio, strategy, new_id(kind)) for _ in range(32))
            )

    assert asyncio.run(play()) == [SUMS_OF_VALUES] * 32


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_asyncio_stream_of_many_sequences(server, strategy):
    ids = [new_id(str) for _ in range(32)]

    async def requests():
        for number, row in enumerate(zip(*(steps(each) for each in ids), strict=True)):
            for value, options in row:
                yield {
                    "model_name": strategy,
                    "inputs": [tensor(triton_grpc_aio, value)],
                    "request_id": str(number),
                    **options,
                }

    async def play():
        seen = []
        async with triton_grpc_aio.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
            async for result, error in client.stream_infer(requests()):
                assert error is None, error
                seen.append((result.get_response().id, y_of(result)))
                if len(seen) == len(VALUES) * len(ids):
                    break
        return seen

    expected = [(str(number), total) for number, total in enumerate(SUMS_OF_VALUES)]
    assert asyncio.run(play()) == [pair for pair in expected for _ in ids]


def test_generate_takes_the_members_of_sequences(server):
    sequence = new_id(str)
    sums = [
        server.post(f"/v2/models/direct/generate{ending}", {"X": value, **options})
        for (value, options), ending in zip(steps(sequence), ("", "_stream") * 2, strict=True)
    ]
    refused = server.post("/v2/models/direct/generate", {"X": 1.0, "sequence_id": sequence})

    assert [answer.status for answer in sums] == [200] * 4
    assert [b'"Y":%.1f' % total in sums[i].body for i, total in enumerate(SUMS_OF_VALUES)] == [
        True
    ] * 4
    assert refused.status == 400
