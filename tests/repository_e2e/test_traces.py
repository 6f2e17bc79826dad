# SPDX-License-Identifier: Apache-2.0
"""Spans of requests to models of a repository, and what a model.py sees of them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.e2e import http_client
from tests.e2e.waiting import eventually
from tests.otlp_collector import Collector, new_trace_id
from tests.repository_e2e.model_files import (
    DECOUPLED,
    TRACED_CALLER,
    code,
    config,
    decoupled_code,
    ensemble,
    model,
)

PARENT_ID = f"{0xB7AD6B7169203331:016x}"
BODY = http_client.json_body({"X": np.ones((1, 1), np.float32)})
ECHO_CONTEXT = """
context = request.trace().get_context()
print("context of", request.request_id(), context, flush=True)
y = x
"""


STREAM = "send(x)\nsend(x)"


@pytest.fixture(scope="module")
def server(start_module_server, collector):
    models = {
        "leaf": model(code(ECHO_CONTEXT)),
        "caller": model(code(TRACED_CALLER)),
        "pipe": ensemble("leaf", "leaf"),
        "stream": model(decoupled_code(STREAM), config(DECOUPLED)),
    }
    settings = [*collector.settings, "rate=0"]
    flags = [f"--trace-config={setting}" for setting in settings]
    return start_module_server(models, flags=flags).await_ready()


class Caller:
    """A client that traces, each request in a trace of its own."""

    def __init__(self, server):
        self.server = server
        self.trace_id = new_trace_id()

    def post(self, name, body=BODY, **headers):
        headers["traceparent"] = f"00-{self.trace_id}-{PARENT_ID}-01"
        return http_client.call(self.server.http_port, f"/v2/models/{name}/infer", body, headers)


@pytest.fixture
def caller(server):
    return Caller(server)


def test_model_file_sees_the_span_of_its_request(server, caller, collector):
    body = json.dumps({**json.loads(BODY), "id": caller.trace_id}).encode()
    assert caller.post("leaf", body, tracestate="a=b").status == 200

    spans = collector.trace(caller.trace_id, 3)
    assert spans["InferRequest"].parent_id == PARENT_ID
    assert spans["leaf"].parent_id == spans["InferRequest"].span_id
    assert spans["compute"].parent_id == spans["leaf"].span_id
    span_id = spans["leaf"].span_id
    context = f'{{"traceparent":"00-{caller.trace_id}-{span_id}-01","tracestate":"a=b"}}'
    assert eventually(lambda: f"context of {caller.trace_id} {context}" in server.stdout)


def test_model_file_sees_no_span_of_a_request_that_is_not_traced(server):
    server.infer("leaf", id="untraced")

    assert eventually(lambda: "context of untraced None" in server.stdout)


def test_steps_of_an_ensemble_are_under_its_span(caller, collector):
    assert caller.post("pipe").status == 200

    spans = collector.trace_list(caller.trace_id, 7)
    (whole,) = (span for span in spans if span.name == "pipe")
    steps = [span for span in spans if span.name == "leaf"]
    assert [step.parent_id for step in steps] == [whole.span_id] * 2
    computed = [span.parent_id for span in spans if span.name == "compute"]
    assert sorted(computed) == sorted(span.span_id for span in (whole, *steps))


def test_call_that_passes_no_trace_on_has_no_spans(caller, collector):
    body = http_client.json_body({"X": np.zeros((1, 1), np.float32)})
    assert caller.post("caller", body).status == 200

    assert set(collector.trace(caller.trace_id, 3)) == {"InferRequest", "caller", "compute"}


def test_stream_of_a_model_file_has_spans(caller, collector):
    assert caller.post("stream", Accept="text/event-stream").status == 200

    spans = collector.trace(caller.trace_id, 3)
    assert spans["InferRequest"].events.count("INFER_RESPONSE_COMPLETE") == 3


def test_command_sends_the_last_spans_when_it_ends(start_server):
    with Collector() as collector:
        settings = [*collector.settings, "opentelemetry,bsp_schedule_delay=600000"]
        flags = [f"--trace-config={setting}" for setting in settings]
        server = start_server({"leaf": model(code())}, flags=flags).await_ready()
        server.infer("leaf")
        assert collector.spans == []

        assert server.end() == 0
        assert set(collector.new_trace(3)) == {"InferRequest", "leaf", "compute"}
