# SPDX-License-Identifier: Apache-2.0
"""Bound functions that share resources of the server's rate limiter."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, RateLimiter, RateLimiterResource, Tensor
from tests.e2e.http_client import infer

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
