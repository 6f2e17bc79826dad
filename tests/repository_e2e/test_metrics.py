# SPDX-License-Identifier: Apache-2.0
"""The metrics of a real server: every kind of request is in its distributions."""

from __future__ import annotations

import contextlib
import queue
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc as grpc_client

from tests.e2e.http_client import call
from tests.e2e.waiting import DEADLINE_S, eventually
from tests.repository_e2e.model_files import (
    DECOUPLED,
    HELD,
    HOLD,
    config,
    decoupled_code,
    model,
)

BUCKETS = """model_metrics { metric_control [
    { metric_identifier { family: "nv_inference_first_response_histogram_ms" }
      histogram_options { buckets: [ 5000, 60000 ] } },
    { metric_identifier { family: "nv_inference_batch_size" }
      histogram_options { buckets: [ 3 ] } } ] }"""
FLAGS = (
    "--metrics-config=histogram_latencies=true",
    "--metrics-config=summary_latencies=true",
)


@pytest.fixture(scope="module")
def server(start_module_server):
    models = {
        "many": model(settings=config("dynamic_batching { }")),
        "stream": model(
            decoupled_code(f"send(x)\n{HOLD}\nsend(x)"),
            config(DECOUPLED + BUCKETS, max_batch_size=0),
            **HELD,
        ),
    }
    return start_module_server(models, flags=FLAGS).await_ports()


def value(server, name, model_name, more=""):
    """A value of the page; `more` are the labels after the version."""
    page = call(server.metrics_port, "/metrics").body.decode()
    found = re.search(
        rf'^{name}{{model="{model_name}",version="1"{more}}} (\S+)$', page, re.MULTILINE
    )
    assert found is not None, page
    return float(found[1])


@contextlib.contextmanager
def stream(server, model_name):
    """Send one request on a stream; gives a function that waits for its next response.

    The function returns whether that was the last one.
    """
    answers = queue.Queue()
    tensor = grpc_client.InferInput("X", [1], "FP32")
    tensor.set_data_from_numpy(np.ones(1, np.float32))

    def is_final() -> bool:
        result, error = answers.get(timeout=DEADLINE_S)
        assert error is None
        return result.get_response().parameters["triton_final_response"].bool_param

    with server.grpc_client() as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer(model_name, [tensor], enable_empty_final_response=True)
        yield is_final


def counts(server, model_name):
    return {
        name: value(server, f"nv_inference_{name}_latency_seconds_count", model_name)
        for name in ("request", "queue", "compute")
    }


def test_requests_of_a_crowd_are_all_in_the_histograms(server):
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda number: server.infer("many", number), range(200)))

    assert counts(server, "many") == {"request": 200, "queue": 200, "compute": 200}
    assert value(server, "nv_inference_request_success", "many") == 200
    assert value(server, "nv_inference_batch_size_sum", "many") == 200
    executions = value(server, "nv_inference_exec_count", "many")
    assert value(server, "nv_inference_batch_size_count", "many") == executions
    assert value(server, "nv_inference_request_summary_us_count", "many") == 200
    assert value(server, "nv_inference_first_response_histogram_ms_count", "many") == 200
    seconds = value(server, "nv_inference_request_latency_seconds_sum", "many")
    assert seconds == pytest.approx(
        value(server, "nv_inference_request_duration_us", "many") / 1e6, abs=1e-5
    )


def test_stream_is_counted_at_its_first_response_and_at_its_end(server):
    first = "nv_inference_first_response_histogram_ms"
    with stream(server, "stream") as is_final:
        assert not is_final()
        assert eventually(lambda: value(server, f"{first}_count", "stream") == 1)
        assert counts(server, "stream")["request"] == 0
        first_ms = value(server, f"{first}_sum", "stream")
        (server.repository / "stream" / "1" / "hold").unlink()
        assert [is_final(), is_final()] == [False, True]

    assert eventually(lambda: counts(server, "stream")["request"] == 1)
    whole_s = value(server, "nv_inference_request_latency_seconds_sum", "stream")
    assert 0 < first_ms < whole_s * 1000
    assert value(server, f"{first}_sum", "stream") == first_ms
    assert value(server, f"{first}_bucket", "stream", ',le="60000"') == 1
    assert value(server, "nv_inference_batch_size_bucket", "stream", ',le="3"') == 1
