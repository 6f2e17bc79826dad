# SPDX-License-Identifier: Apache-2.0
"""Statistics, metrics and the response cache: what they say adds up to what happened."""

from __future__ import annotations

import numpy as np
import pytest

from pytriton.decorators import batch
from pytriton.triton import Triton, TritonConfig
from tests.e2e.conftest import new_ports
from tests.e2e.hosts import Host
from tests.e2e.http_client import call

DURATIONS = {"success", "fail", "queue", "compute_input", "compute_infer", "compute_output",
             "cache_hit", "cache_miss"}  # fmt: skip


def fails_on_zero(requests):
    if any(request["x"].flat[0] == 0 for request in requests):
        raise ValueError("zero")
    return [{"y": request["x"]} for request in requests]


@pytest.fixture
def used(host):
    """A model with 5 requests of 2 rows that went well and 3 that failed."""
    model = host.bind(fails_on_zero, max_batch_size=4)
    for value in (1, 1, 0, 1, 0, 1, 0, 1):
        array = np.full((2, 3), value, np.float32)
        if value:
            host.infer(model, x=array)
        else:
            assert host.error(model, x=array)[0] == 500
    return model


def test_statistics_have_these_fields_and_add_up(host, used):
    account = host.statistics(used)

    assert set(account) == {"name", "version", "last_inference", "inference_count",
                            "execution_count", "inference_stats", "response_stats", "batch_stats",
                            "memory_usage"}  # fmt: skip
    stats = account["inference_stats"]
    assert set(stats) == DURATIONS
    assert (account["name"], account["version"]) == (used, "1")
    assert (account["inference_count"], account["execution_count"]) == (10, 8)
    assert {name: item["count"] for name, item in stats.items()} == {
        "success": 5, "fail": 3, "queue": 5, "compute_input": 5, "compute_infer": 5,
        "compute_output": 5, "cache_hit": 0, "cache_miss": 0,
    }  # fmt: skip
    parts = ("queue", "compute_input", "compute_infer", "compute_output")
    assert 0 < sum(stats[part]["ns"] for part in parts) <= stats["success"]["ns"]
    (batches,) = account["batch_stats"]
    assert batches["batch_size"] == 2
    assert account["last_inference"] > 0


def test_metrics_agree_with_statistics(host, used):
    stats = host.statistics(used)["inference_stats"]

    assert host.metric("nv_inference_request_success", used) == 5
    assert host.metric("nv_inference_request_failure", used, reason="BACKEND") == 3
    for reason in ("REJECTED", "CANCELED", "OTHER"):
        assert host.metric("nv_inference_request_failure", used, reason=reason) == 0
    assert host.metric("nv_inference_count", used) == 10
    assert host.metric("nv_inference_exec_count", used) == 8
    assert host.metric("nv_inference_pending_request_count", used) == 0
    infer_us = host.metric("nv_inference_compute_infer_duration_us", used)
    assert infer_us == pytest.approx(stats["compute_infer"]["ns"] / 1000, abs=1)


def test_metrics_of_an_unbound_model_are_gone(host, used):
    host.triton.unbind(used)
    host.forget(used)

    assert used.encode() not in call(host.metrics_port, "/metrics").body


@pytest.fixture(scope="module")
def caching_host():
    ports = new_ports()
    config = TritonConfig(cache_config=["local,size=1048576"], **ports)
    with Triton(config=config) as triton:
        yield Host(triton, ports)


@pytest.fixture
def cached(caching_host):
    """Binds a caching model that counts its calls."""
    calls = []

    def bind(function=lambda x: x):
        @batch
        def counting(x):
            calls.append(x.copy())
            return {"y": function(x)}

        return caching_host.bind(counting, response_cache=True), calls

    yield bind
    caching_host.unbind_all()


def test_equal_requests_call_the_function_once(caching_host, cached):
    model, calls = cached(lambda x: x + len(calls))
    answers = [caching_host.infer(model, x=np.ones((1, 2), np.float32))["y"] for _ in range(10)]

    assert len(calls) == 1
    assert all(np.array_equal(answer, [[2, 2]]) for answer in answers)
    account = caching_host.statistics(model)
    assert (account["inference_count"], account["execution_count"]) == (1, 1)
    counts = {name: item["count"] for name, item in account["inference_stats"].items()}
    assert (counts["success"], counts["cache_hit"], counts["cache_miss"]) == (10, 9, 1)
    assert caching_host.metric("nv_cache_num_hits_per_model", model) == 9
    assert caching_host.metric("nv_cache_num_misses_per_model", model) == 1
