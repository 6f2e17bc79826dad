# SPDX-License-Identifier: Apache-2.0
"""Settings of traces, read and changed by Triton's own clients while the server runs."""

from __future__ import annotations

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from opentelemetry import trace

from pytriton.model_config import Tensor
from pytriton.proxy import telemetry
from pytriton.triton import Triton, TritonConfig, TritonSecurityConfig
from tests.e2e import http_client
from tests.e2e.conftest import new_ports
from tests.otlp_collector import Collector

ROW = np.ones((1, 2), np.float32)


@pytest.fixture(scope="module")
def collector():
    with Collector() as running:
        yield running


@pytest.fixture(scope="module")
def ports(collector):
    ports = new_ports()
    settings = [*collector.settings, "rate=1000"]
    row = {"dtype": np.float32, "shape": (-1,)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(telemetry, "_tracer", trace.NoOpTracer())
        security = TritonSecurityConfig(restricted_endpoints=[])
        config = TritonConfig(**ports, trace_config=settings)
        with Triton(config=config, security_config=security) as triton:
            for name in ("M", "N"):
                triton.bind(
                    name,
                    lambda requests: [{"y": request["x"]} for request in requests],
                    [Tensor(name="x", **row)],
                    [Tensor(name="y", **row)],
                )
            yield ports


class HttpClient:
    """Settings over HTTP, as lists of texts."""

    def __init__(self, ports):
        self.client = triton_http.InferenceServerClient(f"127.0.0.1:{ports['http_port']}")

    def get(self, model=None):
        return self._lists(self.client.get_trace_settings(model))

    def update(self, model=None, **settings):
        return self._lists(self.client.update_trace_settings(model, settings))

    def _lists(self, settings):
        return {
            name: value if isinstance(value, list) else [value] for name, value in settings.items()
        }


class GrpcClient(HttpClient):
    """The same over gRPC."""

    def __init__(self, ports):
        self.client = triton_grpc.InferenceServerClient(f"127.0.0.1:{ports['grpc_port']}")

    def _lists(self, settings):
        return {name: list(setting.value) for name, setting in settings.settings.items()}


@pytest.fixture(params=[HttpClient, GrpcClient])
def client(request, ports):
    made = request.param(ports)
    yield made
    cleared = {"trace_rate": None, "trace_count": None, "trace_level": None}
    for model in (None, "M", "N"):
        made.update(model, **cleared)
    made.client.close()


def test_settings_are_told(client, collector):
    assert client.get() == client.get("M")
    assert client.get()["trace_level"] == ["TIMESTAMPS"]
    assert client.get()["trace_mode"] == ["opentelemetry"]
    assert client.get()["url"] == [collector.url]


def test_change_for_one_model_traces_its_requests_only(client, ports, collector):
    collector.spans.clear()
    assert client.update("M", trace_rate="1", trace_count="1")["trace_rate"] == ["1"]
    for name in ("N", "M", "M"):
        http_client.infer(ports["http_port"], name, {"x": ROW})

    assert "M" in collector.new_trace(4)
    assert client.get("M")["trace_count"] == ["0"]
    assert client.get()["trace_rate"] == ["1000"]


def test_level_off_ends_traces_of_clients_too(client, ports, collector):
    collector.spans.clear()
    client.update(trace_level=["OFF"])
    headers = {"traceparent": f"00-{1:032x}-{1:016x}-01"}
    body = http_client.json_body({"x": ROW})
    http_client.call(ports["http_port"], "/v2/models/M/infer", body, headers)
    client.update(trace_level=["TIMESTAMPS"])
    headers = {"traceparent": f"00-{2:032x}-{1:016x}-01"}
    http_client.call(ports["http_port"], "/v2/models/M/infer", body, headers)

    assert set(collector.new_trace(4)) >= {"InferRequest", "M"}
    assert {span.trace_id for span in collector.spans} == {f"{2:032x}"}
