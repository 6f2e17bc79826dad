# SPDX-License-Identifier: Apache-2.0
"""Queues over the wire: limits, timeouts, priorities, order, and clients that give up."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pytriton.model_config import DynamicBatcher
from pytriton.model_config.common import QueuePolicy, TimeoutAction
from tests.e2e.http_client import InferFailedError, infer, json_body
from tests.e2e.queueing import Backlog, Gate
from tests.e2e.waiting import DEADLINE_S, eventually


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


def test_request_may_shorten_its_timeout_where_that_is_allowed(host):
    gate = Gate()
    policy = QueuePolicy(default_timeout_microseconds=600_000_000, allow_timeout_override=True)
    model = bind_gate(host, gate, default_queue_policy=policy)
    with Backlog(host, model, gate) as backlog:
        patient = backlog.send(1)
        hasty = backlog.send(2, parameters={"timeout": 100_000}, is_queued=False)
        failure = failure_of(hasty)
        assert not patient.done()
        backlog.open()

        assert patient.result()["y"] == 1
    assert failure == (503, "Request timeout expired")
    assert gate.values == [[-1], [1]]


def test_late_request_may_be_put_back_instead(host):
    gate = Gate()
    policy = QueuePolicy(TimeoutAction.DELAY, 600_000_000, allow_timeout_override=True)
    levels = {1: policy, 2: QueuePolicy()}
    model = bind_gate(
        host, gate, priority_levels=2, default_priority_level=1, priority_queue_policy=levels
    )
    with Backlog(host, model, gate) as backlog:
        late = backlog.send(1, parameters={"timeout": 1})  # late as soon as it waits
        fresh = backlog.send(2)
        backlog.open()

        assert (late.result()["y"], fresh.result()["y"]) == (1, 2)
    assert gate.values == [[-1], [2], [1]]


def test_urgent_requests_go_first(host):
    gate = Gate()
    model = bind_gate(host, gate, priority_levels=3, default_priority_level=2)
    with Backlog(host, model, gate) as backlog:
        for value, priority in enumerate([3, 2, 1, 0, 3, 1, 99]):
            backlog.send(value, parameters={"priority": priority})

    # 0 and what is out of range mean the default level; within a level the order is kept.
    assert gate.values == [[-1], [2], [5], [1], [3], [6], [0], [4]]


@pytest.mark.parametrize("is_ordered", [True, False])
def test_answers_keep_the_order_of_requests_when_asked(host, is_ordered):
    first_is_in, first_may_end = threading.Event(), threading.Event()

    def function(requests):
        if requests[0]["x"].item() == 1:
            first_is_in.set()
            first_may_end.wait(DEADLINE_S)
        return [{"y": request["x"]} for request in requests]

    batcher = DynamicBatcher(preserve_ordering=is_ordered)
    model = host.bind([function, function], max_batch_size=1, batcher=batcher)
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(host.infer, model, x=np.array([[1]], np.float32))
        assert first_is_in.wait(DEADLINE_S)
        quick = pool.submit(host.infer, model, x=np.array([[2]], np.float32))
        # The second instance has done its work, and the server has the answer.
        assert eventually(lambda: host.statistics(model)["inference_count"] == 1)
        if is_ordered:
            assert host.get("/v2/health/live").status == 200
            assert not quick.done()
        else:
            assert quick.result(DEADLINE_S)["y"] == 2
        assert not slow.done()
        first_may_end.set()

        assert (slow.result()["y"], quick.result()["y"]) == (1, 2)


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


def test_room_of_a_client_that_left_is_free_again(host):
    gate = Gate()
    model = bind_gate(host, gate, default_queue_policy=QueuePolicy(max_queue_size=1))
    body = json_body({"x": np.array([[7]], np.float32)})
    head = (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with Backlog(host, model, gate) as backlog:
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", host.port), timeout=DEADLINE_S) as client:
                client.sendall(head.encode() + body)
                backlog.await_pending(1)
            backlog.await_pending(0)
        backlog.send(3)

    assert gate.values == [[-1], [3]]


def test_wrong_priority_is_an_error_in_tritons_words(host):
    model = host.bind(lambda requests: requests)

    with pytest.raises(InferFailedError) as failure:
        infer(host.port, model, {"x": np.ones((1, 1), np.float32)}, parameters={"priority": "high"})

    assert failure.value.status == 500
    assert failure.value.text == (
        "Unable to parse 'priority': attempt to access JSON non-unsigned-integer as "
        "unsigned-integer"
    )
