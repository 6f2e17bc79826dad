# SPDX-License-Identifier: Apache-2.0
"""The spans that the server sends of requests to bound callables, as a collector receives them."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from opentelemetry import trace

from pytriton.model_config import Tensor
from pytriton.proxy import telemetry
from pytriton.triton import Triton, TritonConfig
from tests.e2e import http_client
from tests.e2e.conftest import new_ports
from tests.e2e.hosts import Host
from tests.e2e.waiting import DEADLINE_S, eventually
from tests.otlp_collector import Collector, new_trace_id

ROW = np.ones((1, 2), np.float32)
BODY = http_client.json_body({"x": ROW})
PARENT_ID = f"{0xB7AD6B7169203331:016x}"
SERVER, INTERNAL = 2, 1  # kinds of spans


@pytest.fixture(scope="module", autouse=True)
def _no_spans_of_this_process():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(telemetry, "_tracer", trace.NoOpTracer())
        yield


@pytest.fixture(scope="module")
def collector():
    with Collector() as running:
        yield running


@pytest.fixture(scope="module")
def running_host(collector):
    ports = new_ports()
    config = [*collector.settings, "rate=0", "opentelemetry,resource=service.name=mine"]
    settings = {"cache_config": ["local,size=1048576"], "trace_config": config}
    with Triton(config=TritonConfig(**ports, **settings)) as triton:
        host = Host(triton, ports)
        host.grpc_port = ports["grpc_port"]
        yield host


class Caller:
    """A client that traces, each request in a trace of its own."""

    def __init__(self) -> None:
        self.trace_id = new_trace_id()
        self.headers = {"traceparent": f"00-{self.trace_id}-{PARENT_ID}-01"}

    def post(self, host, name, action="infer", body=BODY, **headers):
        path = f"/v2/models/{name}/{action}"
        return http_client.call(host.port, path, body, self.headers | headers, "POST")


@pytest.fixture
def caller():
    return Caller()


def double(requests):
    return [{"y": 2 * request["x"]} for request in requests]


def test_request_over_http_has_the_spans_of_triton(host, caller, collector):
    name = host.bind(double)
    body = http_client.json_body({"x": ROW}, id="seven")
    assert caller.post(host, name, body=body).status == 200

    spans = collector.trace(caller.trace_id, 4)
    outer, model, compute = spans["InferRequest"], spans[name], spans["compute"]
    assert (outer.parent_id, outer.kind, outer.scope) == (PARENT_ID, SERVER, "triton-server")
    assert outer.events[:2] == ("HTTP_RECV_START", "HTTP_RECV_END")
    assert outer.events[2:] == ("INFER_RESPONSE_COMPLETE", "HTTP_SEND_START", "HTTP_SEND_END")
    assert outer.resource["service.name"] == "mine"
    assert (model.parent_id, compute.parent_id) == (outer.span_id, model.span_id)
    assert model.attributes["triton.model_name"] == name
    assert model.attributes["triton.model_version"] == 1
    assert model.attributes["triton.request_id"] == "seven"
    assert model.events == ("REQUEST_START", "QUEUE_START", "REQUEST_END")
    assert compute.events == (
        "COMPUTE_START",
        "COMPUTE_INPUT_END",
        "COMPUTE_OUTPUT_START",
        "COMPUTE_END",
    )
    backend = spans["python_backend_execute"]
    assert (backend.parent_id, backend.kind, backend.scope) == (model.span_id, INTERNAL, "pbe")
    assert outer.start_ns <= model.start_ns <= compute.start_ns < compute.end_ns
    assert compute.end_ns <= model.end_ns <= outer.end_ns
    assert {span.error for span in spans.values()} == {None}


def grpc_client(host):
    return triton_grpc.InferenceServerClient(f"127.0.0.1:{host.grpc_port}")


def grpc_input():
    tensor = triton_grpc.InferInput("x", ROW.shape, "FP32")
    tensor.set_data_from_numpy(ROW)
    return tensor


def test_request_over_grpc_has_the_same_spans(host, caller, collector):
    name = host.bind(double)
    with grpc_client(host) as client:
        client.infer(name, [grpc_input()], headers=caller.headers | {"tracestate": "a=b"})

    spans = collector.trace(caller.trace_id, 4)
    assert spans["InferRequest"].parent_id == PARENT_ID
    assert spans["InferRequest"].events[::3] == ("GRPC_WAITREAD_START", "GRPC_SEND_START")
    assert {span.tracestate for span in spans.values()} == {"a=b"}


def test_stream_over_grpc_has_spans_of_each_request(host, caller, collector):
    def count(requests):
        for _ in range(3):
            yield double(requests)

    name = host.bind(count, decoupled=True)
    ended = threading.Event()

    def on_answer(result, error):
        assert error is None
        if result.get_response().parameters["triton_final_response"].bool_param:
            ended.set()

    with grpc_client(host) as client:
        client.start_stream(on_answer, headers=caller.headers)
        client.async_stream_infer(name, [grpc_input()], enable_empty_final_response=True)
        assert ended.wait(DEADLINE_S)
        client.stop_stream()

    spans = collector.trace(caller.trace_id, 4)
    assert spans["InferRequest"].events.count("INFER_RESPONSE_COMPLETE") == 4
    assert spans["compute"].end_ns <= spans[name].end_ns


def test_generate_has_spans(host, caller, collector):
    row = {"dtype": np.float32, "shape": (1,)}
    name = host.bind(double, [Tensor(name="x", **row)], [Tensor(name="y", **row)])

    assert caller.post(host, name, "generate", b'{"x": 2}').status == 200
    assert caller.post(host, name, "generate_stream", b'{"x": 2}').status == 200
    assert len(collector.trace_list(caller.trace_id, 8)) == 8


def bind(triton):
    row = {"dtype": np.float32, "shape": (-1,)}
    triton.bind("M", double, [Tensor(name="x", **row)], [Tensor(name="y", **row)])


def test_last_spans_are_sent_when_the_server_stops(run_triton):
    with Collector() as collector:
        never = "opentelemetry,bsp_schedule_delay=600000"
        triton = run_triton(trace_config=[*collector.settings, never])
        bind(triton)
        http_client.infer(triton._config.http_port, "M", {"x": ROW})
        assert collector.spans == []
        triton.stop()

        assert set(collector.new_trace(4)) >= {"InferRequest", "M", "compute"}


def test_collector_that_hangs_delays_nothing_but_the_end(run_triton):
    with Collector(hangs=True) as collector:
        triton = run_triton(
            trace_config=[*collector.settings, "opentelemetry,bsp_max_queue_size=8"]
        )
        bind(triton)
        port = triton._config.http_port
        for _ in range(20):
            http_client.infer(port, "M", {"x": ROW})
            assert eventually(lambda: collector.request_count == 1)
        triton.stop()

        assert collector.request_count == 1
        assert not triton.is_alive()
