# SPDX-License-Identifier: Apache-2.0
"""Queues over the wire: limits, timeouts, priorities, clients that give up, shared resources."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pytriton.decorators import batch
from pytriton.model_config import (
    DynamicBatcher,
    ModelConfig,
    RateLimiter,
    RateLimiterResource,
    Tensor,
)
from pytriton.model_config.common import QueuePolicy
from tests.e2e.http_client import InferFailedError, infer, json_body
from tests.e2e.queueing import Backlog, Gate
from tests.e2e.waiting import DEADLINE_S


def bind_gate(host, gate, max_batch_size=1, **batcher):
    return host.bind(gate, max_batch_size=max_batch_size, batcher=DynamicBatcher(**batcher))


def failure_of(future):
    with pytest.raises(InferFailedError) as failure:
        future.result(DEADLINE_S)
    return failure.value.status, failure.value.text


def test_full_queue_refuses_at_once(host):
    gate = Gate()
    model = bind_gate(host, gate, default_queue_policy=QueuePolicy(max_queue_size=2))
    with Backlog(host, model, gate) as backlog:
        waiting = [backlog.send(number) for number in range(2)]
        refused = [
            failure_of(backlog.send(9, is_queued=False, id="seven")),
            failure_of(backlog.send(9, is_queued=False)),
        ]
        backlog.open()
        answers = [future.result()["y"].item() for future in waiting]

    assert refused == [
        (503, "[request id: seven] Exceeds maximum queue size"),
        (503, "[request id: <id_unknown>] Exceeds maximum queue size"),
    ]
    assert answers == [0, 1]
    assert gate.values == [[-1], [0], [1]]


def test_timeout_fires_while_the_instance_is_busy(host):
    gate = Gate()
    policy = QueuePolicy(default_timeout_microseconds=200_000)
    model = bind_gate(host, gate, default_queue_policy=policy)
    with Backlog(host, model, gate) as backlog:
        started = time.monotonic()
        failure = failure_of(backlog.send(1, is_queued=False))
        waited_s = time.monotonic() - started

    assert failure == (503, "Request timeout expired")
    assert waited_s >= 0.2
    assert gate.values == [[-1]]
    assert host.metric("nv_inference_request_failure", model, reason="REJECTED") == 1


def test_urgent_requests_go_first(host):
    gate = Gate()
    model = bind_gate(host, gate, priority_levels=3, default_priority_level=2)
    with Backlog(host, model, gate) as backlog:
        for value, priority in enumerate([3, 2, 1, 0, 3, 1, 99]):
            backlog.send(value, parameters={"priority": priority})

    # 0 and what is out of range mean the default level; within a level the order is kept.
    assert gate.values == [[-1], [2], [5], [1], [3], [6], [0], [4]]


def test_request_of_a_client_that_left_never_reaches_the_callable(host):
    gate = Gate()
    model = bind_gate(host, gate)
    body = json_body({"x": np.array([[7]], np.float32)})
    request = (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    with Backlog(host, model, gate) as backlog:
        backlog.send(1)
        with socket.create_connection(("127.0.0.1", host.port), timeout=DEADLINE_S) as client:
            client.sendall(request)
            backlog.await_pending(2)
        backlog.await_pending(1)
        kept = backlog.send(2)
        backlog.open()

        assert kept.result()["y"] == 2
    assert gate.values == [[-1], [1], [2]]
    assert host.metric("nv_inference_request_failure", model, reason="CANCELED") == 1


ROW = {"dtype": np.float32, "shape": (1,)}


def bind(triton, name, infer_func, count, **limiter):
    resources = [RateLimiterResource("R", count, is_global=True)]
    triton.bind(
        name,
        infer_func,
        [Tensor(name="x", **ROW)],
        [Tensor(name="y", **ROW)],
        config=ModelConfig(rate_limiter=RateLimiter(resources, **limiter)),
    )


@pytest.fixture
def gate():
    """A function that only one thread at a time may be in."""
    lock = threading.Lock()

    @batch
    def alone(x):
        assert lock.acquire(blocking=False), "another one is here"
        threading.Event().wait(0.002)
        lock.release()
        return {"y": x}

    return alone


def test_bound_functions_that_share_a_resource_never_run_at_the_same_time(run_triton, ports, gate):
    triton = run_triton(rate_limit="execution_count", **ports)
    for name in ("one", "two"):
        bind(triton, name, [gate, gate], 1)

    def ask(number):
        x = np.array([[number]], np.float32)
        return infer(ports["http_port"], ["one", "two"][number % 2], {"x": x})["y"].item()

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(60)))

    assert answers == list(range(60))
