# SPDX-License-Identifier: Apache-2.0
"""Batches as the callable sees them: never too large, never mixed, full when there is enough."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pytriton.decorators import batch
from pytriton.model_config import Tensor
from tests.e2e.http_client import InferFailedError
from tests.e2e.queueing import Backlog, Gate
from tests.e2e.waiting import DEADLINE_S

pytestmark = pytest.mark.both_front_end_modes

X = Tensor(name="x", dtype=np.float32, shape=(-1,))
Y = Tensor(name="y", dtype=np.float32, shape=(-1,))


def rows(count, value=0.0, width=1):
    return np.full((count, width), value, np.float32)


def test_backlog_fills_batches(host):
    gate = Gate()
    model = host.bind(gate, max_batch_size=8)
    with Backlog(host, model, gate) as backlog:
        for number in range(24):
            backlog.send(number)

    assert gate.values == [[-1], list(range(8)), list(range(8, 16)), list(range(16, 24))]
    account = host.statistics(model)
    sizes = [
        (item["batch_size"], item["compute_infer"]["count"]) for item in account["batch_stats"]
    ]
    assert sizes == [(1, 1), (8, 3)]


@pytest.mark.parametrize("settings", [{"batcher": None}, {"max_batch_size": 1}])
def test_each_request_is_a_call_of_its_own_without_a_batcher(host, settings):
    gate = Gate()
    model = host.bind(gate, **settings)
    with Backlog(host, model, gate) as backlog:
        for number in range(5):
            backlog.send(number)

    assert gate.values == [[-1], [0], [1], [2], [3], [4]]


def test_random_traffic_keeps_every_promise(host):
    """Rows within the limit, equal shapes, and every answer to the one who asked."""
    limit, calls = 16, []

    @batch
    def double(x):
        calls.append(x.shape)
        return {"y": x * 2}

    model = host.bind(double, max_batch_size=limit)
    generator = random.Random(5)
    requests = [
        rows(generator.randint(1, limit), number, generator.choice([1, 2, 5]))
        for number in range(400)
    ]

    def ask(array):
        return np.array_equal(host.infer(model, x=array)["y"], array * 2)

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(ask, requests, timeout=DEADLINE_S))

    assert max(count for count, _ in calls) <= limit
    assert {width for _, width in calls} == {1, 2, 5}
    assert sum(count for count, _ in calls) == sum(map(len, requests))
    account = host.statistics(model)
    assert account["inference_count"] == sum(map(len, requests))
    assert account["execution_count"] == len(calls)
    assert account["inference_stats"]["success"]["count"] == len(requests)


def test_request_that_is_wrong_disturbs_no_batch(host):
    gate = Gate()
    model = host.bind(gate, max_batch_size=8)
    with Backlog(host, model, gate) as backlog:
        backlog.send(1)
        wrong = backlog.send_inputs({"z": rows(1)}, is_queued=False)
        with pytest.raises(InferFailedError) as failure:
            wrong.result(DEADLINE_S)
        backlog.send(2)

    expected = f"unexpected inference input 'z' for model '{model}'. Its input(s) are ['x']."
    assert failure.value.text == expected
    assert gate.values == [[-1], [1, 2]]
