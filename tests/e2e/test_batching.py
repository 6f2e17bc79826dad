# SPDX-License-Identifier: Apache-2.0
"""Batches as the callable sees them: never too large, never mixed, full when there is enough."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, Tensor
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


def test_rows_count_and_not_requests(host):
    gate = Gate()
    model = host.bind(gate, max_batch_size=8)
    sizes = [3, 3, 3, 8, 1, 7, 2, 7]
    with Backlog(host, model, gate) as backlog:
        for size in sizes:
            backlog.send(rows(size))

    seen = [[len(array) for array in items] for items in gate.batches]
    assert seen == [[1], [3, 3], [3], [8], [1, 7], [2], [7]]


def test_shapes_are_never_mixed(host):
    gate = Gate()
    model = host.bind(gate, max_batch_size=8)
    widths = [1, 1, 2, 2, 2, 1, 3]
    with Backlog(host, model, gate) as backlog:
        for width in widths:
            backlog.send(rows(1, width=width))

    seen = [[array.shape[1] for array in items] for items in gate.batches]
    assert seen == [[1], [1, 1, 1], [2, 2, 2], [3]]


def test_sets_of_optional_inputs_are_never_mixed(host):
    seen = []
    gate = Gate()

    def record(requests):
        seen.append([sorted(request) for request in requests])
        return gate(requests)

    inputs = [X, Tensor(name="a", dtype=np.float32, shape=(-1,), optional=True),
              Tensor(name="b", dtype=np.float32, shape=(-1,), optional=True)]  # fmt: skip
    model = host.bind(record, inputs, [Y], max_batch_size=8)
    with Backlog(host, model, gate) as backlog:
        for names in ("x", "x", "xa", "xa", "xb", "xab", "xab", "x"):
            backlog.send_inputs({name: rows(1) for name in names})

    assert seen == [
        [["x"]],
        [["x"]] * 3,
        [["a", "x"]] * 2,
        [["b", "x"]],
        [["a", "b", "x"]] * 2,
    ]


def test_preferred_sizes_are_taken(host):
    gate = Gate()
    batcher = DynamicBatcher(preferred_batch_size=[4])
    model = host.bind(gate, max_batch_size=8, batcher=batcher)
    with Backlog(host, model, gate) as backlog:
        for number in range(10):
            backlog.send(number)

    assert [len(items) for items in gate.batches] == [1, 4, 4, 2]


@pytest.mark.parametrize("settings", [{"batcher": None}, {"max_batch_size": 1}])
def test_each_request_is_a_call_of_its_own_without_a_batcher(host, settings):
    gate = Gate()
    model = host.bind(gate, **settings)
    with Backlog(host, model, gate) as backlog:
        for number in range(5):
            backlog.send(number)

    assert gate.values == [[-1], [0], [1], [2], [3], [4]]


def test_batch_larger_than_the_model_takes_is_refused(host):
    model = host.bind(lambda requests: requests, max_batch_size=2)

    assert host.error(model, x=rows(3)) == (
        400,
        f"[request id: <id_unknown>] inference request batch-size must be <= 2 for '{model}'",
    )


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
