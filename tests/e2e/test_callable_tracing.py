# SPDX-License-Identifier: Apache-2.0
"""Spans around callables: a client's trace goes on in the process of the function it calls."""

from __future__ import annotations

import asyncio
import http.client
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pytriton.model_config import Tensor
from pytriton.proxy import telemetry
from pytriton.triton import Triton, TritonConfig
from tests.e2e import http_client
from tests.e2e.conftest import new_ports
from tests.e2e.hosts import Host
from tests.e2e.waiting import DEADLINE_S, eventually
from tests.otlp_collector import Collector

TRACE_ID = 0x0AF7651916CD43DD8448EB211C80319C
PARENT_ID = 0xB7AD6B7169203331
TRACEPARENT = {"traceparent": f"00-{TRACE_ID:032x}-{PARENT_ID:016x}-01"}
OTLP = ["mode=opentelemetry", "opentelemetry,url=http://127.0.0.1:1/v1/traces", "rate=0"]
ROW = np.ones((1, 2), np.float32)


class Spans:
    """What was exported so far."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("test")

    def wait_for(self, count: int) -> dict:
        """That many spans, by name."""
        assert eventually(lambda: len(self._exporter.get_finished_spans()) >= count)
        spans = self._exporter.get_finished_spans()
        assert len(spans) == count
        return {span.name: span for span in spans}

    def clear(self) -> None:
        self._exporter.clear()


@pytest.fixture(scope="module")
def traced_process():
    spans = Spans()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(telemetry, "_tracer", spans.tracer)
        yield spans


@pytest.fixture
def spans(traced_process):
    traced_process.clear()
    return traced_process


@pytest.fixture(scope="module")
def collector():
    """What the server sends; the spans of this process are in `spans`."""
    with Collector() as running:
        yield running


@pytest.fixture(scope="module")
def running_host(traced_process, collector):
    ports = new_ports()
    trace_config = [*collector.settings, "rate=0"]
    with Triton(config=TritonConfig(**ports, trace_config=trace_config)) as triton:
        host = Host(triton, ports)
        host.grpc_port = ports["grpc_port"]
        yield host


def post(host, name, headers=TRACEPARENT, action="infer", body=None):
    path = f"/v2/models/{name}/{action}"
    return http_client.call(
        host.port, path, body or http_client.json_body({"x": ROW}), headers, "POST"
    )


def double(requests):
    return [{"y": 2 * request["x"]} for request in requests]


def assert_under_client(span):
    """It is in the client's trace; that it is under the server's spans is tested once."""
    assert span.name == "proxy_inference_callable"
    assert span.context.trace_id == TRACE_ID
    assert span.parent.is_remote
    assert span.parent.span_id != PARENT_ID


def test_http_request_is_traced_under_the_span_of_its_client(host, spans):
    assert post(host, host.bind(double)).status == 200

    (span,) = spans.wait_for(1).values()
    assert_under_client(span)
    assert span.status.is_ok
    assert span.end_time > span.start_time


def test_span_of_the_callable_is_under_those_of_the_server(host, spans, collector):
    trace_id = f"{1:032x}"
    name = host.bind(double)
    headers = {
        "traceparent": f"00-{trace_id}-{PARENT_ID:016x}-01",
        "tracestate": "vendor=one,other=two",
    }
    post(host, name, headers)

    (own,) = spans.wait_for(1).values()
    by_name = collector.trace(trace_id, 4)
    backend, model = by_name["python_backend_execute"], by_name[name]
    assert f"{own.parent.span_id:016x}" == backend.span_id
    assert backend.parent_id == by_name["compute"].parent_id == model.span_id
    assert model.parent_id == by_name["InferRequest"].span_id
    assert by_name["InferRequest"].parent_id == f"{PARENT_ID:016x}"
    assert own.context.trace_state.to_header() == "vendor=one,other=two"
    assert {span.tracestate for span in by_name.values()} == {"vendor=one,other=two"}


def test_span_of_a_callable_that_raises_ends_with_its_error(host, spans):
    def broken(requests):
        raise ValueError("no luck")

    assert post(host, host.bind(broken)).status == 500

    (span,) = spans.wait_for(1).values()
    assert not span.status.is_ok
    assert "ValueError: no luck" in span.status.description


@pytest.mark.parametrize("is_async", [False, True])
def test_span_of_a_stream_lasts_until_its_end(host, spans, is_async):
    open_spans = []

    def count(requests):
        for _ in range(2):
            open_spans.append(requests[0].span.is_recording())
            yield double(requests)

    async def count_async(requests):
        for results in count(requests):
            yield results

    name = host.bind(count_async if is_async else count, decoupled=True)
    answer = post(host, name, TRACEPARENT | {"Accept": "text/event-stream"})

    assert answer.body.count(b"data:") == 2
    assert open_spans == [True, True]
    (span,) = spans.wait_for(1).values()
    assert_under_client(span)
    assert span.status.is_ok


@pytest.mark.parametrize("is_async", [False, True])
def test_span_of_a_stream_ends_when_its_client_goes_away(host, spans, is_async):
    def endless(requests):
        while True:
            yield double(requests)

    async def endless_async(requests):
        while True:
            yield double(requests)
            await asyncio.sleep(0)

    name = host.bind(endless_async if is_async else endless, decoupled=True)
    connection = http.client.HTTPConnection("127.0.0.1", host.port, timeout=DEADLINE_S)
    headers = TRACEPARENT | {"Accept": "text/event-stream"}
    body = http_client.json_body({"x": ROW})
    connection.request("POST", f"/v2/models/{name}/infer", body, headers)
    with connection.getresponse() as answer:
        assert answer.readline().startswith(b"data:")
    connection.close()

    (span,) = spans.wait_for(1).values()
    assert_under_client(span)
    assert span.status.description == "the client went away"


def test_only_the_traced_requests_of_a_batch_have_spans(host, spans):
    seen = []
    entered, go_on = threading.Event(), threading.Event()

    def look(requests):
        seen.append([request.span is not None for request in requests])
        if len(seen) == 1:
            entered.set()
            assert go_on.wait(DEADLINE_S)
        return double(requests)

    name = host.bind(look)
    with ThreadPoolExecutor(3) as pool:
        blocker = pool.submit(post, host, name, {})
        assert entered.wait(DEADLINE_S)
        others = [pool.submit(post, host, name, headers) for headers in (TRACEPARENT, {})]
        assert eventually(
            lambda: host.metric("nv_inference_pending_request_count", name) == len(others)
        )
        go_on.set()
        assert [answer.result().status for answer in (blocker, *others)] == [200] * 3

    assert seen[0] == [False]
    assert sorted(seen[1]) == [False, True]
    assert_under_client(spans.wait_for(1).popitem()[1])


def bind_traced(trace_config, server_config=None) -> None:
    row = {"dtype": np.float32, "shape": (-1,)}
    tensors = [Tensor(name="x", **row)], [Tensor(name="y", **row)]
    triton = Triton(config=TritonConfig(trace_config=server_config))
    triton.bind("M", double, *tensors, trace_config=trace_config)


@pytest.mark.parametrize("server_config, config", [(OTLP, None), (None, OTLP)])
def test_bind_makes_the_tracer_of_the_process(monkeypatch, server_config, config):
    monkeypatch.setattr(telemetry, "_tracer", None)

    bind_traced(config, server_config)

    tracer = telemetry.get_telemetry_tracer()
    assert tracer is not None
    bind_traced(OTLP)
    assert telemetry.get_telemetry_tracer() is tracer


def test_bind_takes_settings_of_tritons_own_tracing(monkeypatch):
    monkeypatch.setattr(telemetry, "_tracer", None)

    bind_traced(["mode=triton", "triton,file=trace.json"])

    assert telemetry.get_telemetry_tracer() is None
