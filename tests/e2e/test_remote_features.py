# SPDX-License-Identifier: Apache-2.0
"""What models can do, they can do when another process than the server's bound them."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from pytriton.client import DecoupledModelClient, ModelClient
from pytriton.decorators import batch
from pytriton.exceptions import PyTritonUnrecoverableError
from pytriton.model_config import SequenceBatcher, SequenceState, Tensor
from pytriton.triton import RemoteTriton, Triton, TritonConfig
from tests.e2e.conftest import new_ports
from tests.e2e.hosts import Host
from tests.e2e.http_client import is_ready
from tests.e2e.waiting import DEADLINE_S, eventually

ONE = np.ones((1, 1), np.float32)
ROWS = [[Tensor(name=name, dtype=np.float32, shape=(1,))] for name in "xy"]


@pytest.fixture(scope="module")
def running_host():
    ports = new_ports()
    config = TritonConfig(**ports, cache_config=[f"local,size={1 << 20}"])
    with Triton(config=config) as triton:
        host = Host(triton, ports)
        host.grpc_port = ports["grpc_port"]
        url, token = f"localhost:{host.port}", triton.get_access_token()
        with RemoteTriton(url, access_token=token) as host.triton:
            yield host


class Counting:
    """A model that counts what it was called with."""

    def __init__(self):
        self.sizes = []
        self.opened = threading.Event()
        self.opened.set()

    def __call__(self, requests):
        self.sizes.append(len(requests))
        assert self.opened.wait(DEADLINE_S)
        return [{"y": request["x"] + 1} for request in requests]


def test_decoupled_models_stream(host):
    def count_down(requests):
        for number in (3, 2, 1):
            yield [{"y": request["x"] * number} for request in requests]

    name = host.bind(count_down, decoupled=True, max_batch_size=1)
    with DecoupledModelClient(f"grpc://localhost:{host.grpc_port}", name) as client:
        answers = [answer["y"].item() for answer in client.infer_sample(ONE[0])]

    assert answers == [3, 2, 1]


def test_answers_are_cached(host):
    model = Counting()
    name = host.bind(model, max_batch_size=8, response_cache=True)
    answers = [host.infer(name, x=ONE)["y"].item() for _ in range(3)]

    assert answers == [2, 2, 2]
    assert model.sizes == [1]
    assert host.statistics(name)["inference_stats"]["cache_hit"]["count"] == 2


def test_unrecoverable_error_ends_the_binder_and_not_the_server(run_triton, ports):
    def fail(requests):
        raise PyTritonUnrecoverableError("the device is lost")

    triton = run_triton(**ports)
    host = Host(triton, ports)
    remote = RemoteTriton(f"localhost:{host.port}", access_token=triton.get_access_token())
    remote.bind("Remote", fail, *ROWS)
    serving = threading.Thread(target=remote.serve)
    serving.start()
    assert eventually(remote.is_connected)  # a model is ready before the thread knows it
    text = host.error("Remote", x=ONE)[1]
    serving.join()

    assert "the device is lost" in text
    assert not remote.is_alive()
    assert is_ready(host.port)
    assert triton.is_alive()


def test_sequences_of_a_remote_model_keep_their_states(host):
    @batch
    def accumulate(x, total):
        return {"y": x + total, "next_total": x + total}

    state = SequenceState("total", "next_total", np.float32, (1,), np.array([10]))
    model = host.bind(
        accumulate,
        *ROWS,
        sequence=SequenceBatcher(states=[state], max_sequence_idle_microseconds=60_000_000),
    )
    with ModelClient(f"http://127.0.0.1:{host.port}", model) as client:
        sums = [
            client.infer_batch(ONE, parameters={"sequence_id": 1, "sequence_start": not index})[
                "y"
            ].item()
            for index in range(3)
        ]

    assert sums == [11, 12, 13]
