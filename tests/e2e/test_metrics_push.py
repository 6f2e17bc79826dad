# SPDX-License-Identifier: Apache-2.0
"""A server sends its metrics to a collector of OpenTelemetry."""

from __future__ import annotations

import gzip
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

from pytriton.model_config import Tensor
from tests.e2e import http_client
from tests.e2e.waiting import DEADLINE_S

ROW = np.ones((1, 1), np.float32)
TENSORS = [Tensor(name="x", dtype=np.float32, shape=(1,))]


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.received.put(ExportMetricsServiceRequest.FromString(body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture
def collector():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.received = queue.SimpleQueue()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def values(request, name):
    metrics = [
        metric
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == name
    ]
    return [point.as_double for metric in metrics for point in metric.sum.data_points]


def test_collector_gets_the_numbers_of_the_page(collector, run_triton):
    triton = run_triton(
        metrics_config=[
            f"opentelemetry_url=http://127.0.0.1:{collector.server_port}/v1/metrics",
            "opentelemetry_interval=0.05",
        ]
    )
    triton.bind("Same", lambda requests: requests, TENSORS, TENSORS)
    for _ in range(3):
        http_client.infer(triton._config.http_port, "Same", {"x": ROW})

    received = collector.received.get(timeout=DEADLINE_S)
    while values(received, "nv_inference_request_success") != [3.0]:
        received = collector.received.get(timeout=DEADLINE_S)
    assert values(received, "nv_inference_count") == [3.0]
