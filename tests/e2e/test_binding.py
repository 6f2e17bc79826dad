# SPDX-License-Identifier: Apache-2.0
"""Binding and unbinding while the server serves: nobody who was accepted goes unanswered."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tritonclient.grpc

from pytriton.model_config import Tensor
from pytriton.triton import Triton, TritonConfig
from tests.e2e import http_client
from tests.e2e.http_client import call, is_port_free
from tests.e2e.load import ConstantLoad
from tests.e2e.waiting import eventually

pytestmark = pytest.mark.both_front_end_modes

ONE = np.ones((1, 1), np.float32)
X = [Tensor(name="x", dtype=np.float32, shape=(-1,))]
Y = [Tensor(name="y", dtype=np.float32, shape=(-1,))]


def echo(requests):
    return [{"y": request["x"]} for request in requests]


def test_other_models_come_and_go_without_a_trace_on_one_under_load(host):
    steady = host.bind(echo)
    threads = threading.active_count()
    with ConstantLoad(host.port, steady, clients=2) as load:
        for number in range(25):
            other = host.bind(echo)
            assert host.infer(other, x=ONE * number)["y"] == number
            host.triton.unbind(other)
            host.forget(other)
        seen = len(load.statuses)
        assert eventually(lambda: len(load.statuses) > seen + 10)

    assert set(load.statuses) == {200}
    assert eventually(lambda: threading.active_count() <= threads)


def test_callables_may_be_shared_between_models(host):
    models = [host.bind(echo) for _ in range(3)]

    assert [host.infer(model, x=ONE * 7)["y"].item() for model in models] == [7, 7, 7]


def test_server_without_http_serves_over_grpc(ports):
    config = TritonConfig(allow_http=False, allow_metrics=False, **ports)
    with Triton(config=config) as triton:
        triton.bind("Model", echo, X, Y)
        address = f"127.0.0.1:{ports['grpc_port']}"
        with tritonclient.grpc.InferenceServerClient(address) as client:
            tensor = tritonclient.grpc.InferInput("x", ONE.shape, "FP32").set_data_from_numpy(ONE)

            assert client.infer("Model", [tensor]).as_numpy("y") == 1
        assert is_port_free(ports["http_port"])
        assert is_port_free(ports["metrics_port"])


def test_server_without_grpc_serves_over_http(ports):
    with Triton(config=TritonConfig(allow_grpc=False, **ports)) as triton:
        triton.bind("Model", echo, X, Y)

        assert http_client.infer(ports["http_port"], "Model", {"x": ONE})["y"] == 1
        assert is_port_free(ports["grpc_port"])


def test_system_chooses_ports_where_zero_is_asked_for():
    zeros = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
    with Triton(config=TritonConfig(**zeros)) as one, Triton(config=TritonConfig(**zeros)) as other:
        found = [triton._config.http_port for triton in (one, other)]

        assert len({0, *found}) == 3
        for port in found:
            assert call(port, "/v2/health/ready").status == 200
