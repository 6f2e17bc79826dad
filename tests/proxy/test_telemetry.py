# SPDX-License-Identifier: Apache-2.0
import json
import sys

import numpy as np
import pytest

from pytriton.decorators import batch
from pytriton.proxy import telemetry
from pytriton.proxy.types import Request

OTLP = ["mode=opentelemetry", "opentelemetry,url=http://127.0.0.1:1/v1/traces"]


@pytest.fixture(autouse=True)
def _no_tracer(monkeypatch):
    monkeypatch.setattr(telemetry, "_tracer", None)


@pytest.fixture
def exported():
    """The spans that ended, by a tracer of the real SDK."""
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    exporter = memory.InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    telemetry.set_telemetry_tracer(provider.get_tracer("test"))
    return exporter.get_finished_spans


def test_trace_config_gives_url_and_resource():
    config = [*OTLP, "opentelemetry,resource=a=b,c=d", "opentelemetry,resource=e=f", "rate=1"]

    assert telemetry.parse_trace_config(config) == (
        "http://127.0.0.1:1/v1/traces",
        {"a": "b", "c": "d", "e": "f"},
    )


@pytest.mark.parametrize("config", [[], ["triton,file=x"], ["mode=triton", OTLP[1]]])
def test_trace_config_of_another_mode_is_refused(config):
    with pytest.raises(ValueError, match="Only opentelemetry mode is supported"):
        telemetry.parse_trace_config(config)


def test_trace_config_without_url_is_refused():
    with pytest.raises(ValueError, match="opentelemetry,url is required"):
        telemetry.parse_trace_config(["mode=opentelemetry"])


def test_tracer_can_be_set_once():
    tracer = object()
    telemetry.set_telemetry_tracer(tracer)

    with pytest.raises(ValueError, match="Telemetry tracer is already set"):
        telemetry.set_telemetry_tracer(object())

    assert telemetry.get_telemetry_tracer() is tracer


def test_missing_package_is_named_with_its_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)

    with pytest.raises(ImportError, match="pip install opentelemetry-api"):
        telemetry.raise_if_no_telemetry()
    with pytest.raises(ImportError, match="pip install opentelemetry-api"):
        telemetry.build_proxy_tracer_from_triton_config(OTLP)


def test_without_tracer_nothing_is_traced(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    span, headers = object(), {"traceparent": "00-1-2-01"}

    with telemetry.traced_span(Request({}, span=span), "step") as opened:
        assert opened is None
    assert telemetry.start_span_from_span(span, "step") is None
    assert telemetry.start_span_from_remote(headers, "step") is None
    assert telemetry.TracableModel().start_requests_spans([object(), object()]) == [None, None]


def test_without_span_nothing_is_traced():
    telemetry.set_telemetry_tracer(object())

    assert telemetry.start_span_from_span(None, "step") is None
    assert telemetry.start_span_from_remote({}, "step") is None
    assert telemetry.get_span_dict(None) == {}
    telemetry.end_span(None, error="none to take it")


def test_request_span_is_the_parent_of_its_traced_spans(exported):
    root = telemetry.get_telemetry_tracer().start_span("root")

    with Request({}, span=root).traced_span("step"):
        pass

    (step,) = exported()
    assert step.name == "step"
    assert step.parent.span_id == root.get_span_context().span_id


def test_span_crosses_a_process_as_headers(exported):
    root = telemetry.get_telemetry_tracer().start_span("root")

    headers = telemetry.get_span_dict(root)
    telemetry.end_span(telemetry.start_span_from_remote(headers, "remote"))

    (remote,) = exported()
    assert headers["traceparent"].startswith("00-")
    assert remote.parent.span_id == root.get_span_context().span_id
    assert remote.status.is_ok


def test_span_ends_with_the_error_that_came(exported):
    root = telemetry.get_telemetry_tracer().start_span("root")

    telemetry.end_span(telemetry.start_span_from_span(root, "child"), error=ValueError("broken"))

    (child,) = exported()
    assert not child.status.is_ok
    assert child.status.description == "broken"


def test_batch_opens_a_span_for_each_traced_request(exported):
    tracer = telemetry.get_telemetry_tracer()
    spans = [tracer.start_span("first"), None, tracer.start_span("third")]
    requests = [Request({"a": np.ones((1, 1))}, span=span) for span in spans]

    batch(lambda a: {"a": a})(requests)

    assert [span.name for span in exported()] == ["pytriton-batch-decorator-span"] * 2
    parents = {span.parent.span_id for span in exported()}
    assert parents == {span.get_span_context().span_id for span in (spans[0], spans[2])}


def test_model_of_the_python_backend_traces_its_requests(exported):
    headers = telemetry.get_span_dict(telemetry.get_telemetry_tracer().start_span("server"))

    class BackendRequest:
        def __init__(self, context):
            self.context = context

        def trace(self):
            return self

        def get_context(self):
            return self.context

    model = telemetry.TracableModel()
    requests = [BackendRequest(json.dumps(headers)), BackendRequest(None)]
    spans = model.start_requests_spans(requests)
    model.end_requests_spans(spans, ValueError("broken"))

    (span,) = exported()
    assert spans[1] is None
    assert (span.name, span.status.description) == ("python_backend_execute", "broken")


def test_tracer_is_built_from_the_trace_config():
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    model = telemetry.TracableModel()

    model.configure_tracing(None)
    assert telemetry.get_telemetry_tracer() is None

    model.configure_tracing([*OTLP, "opentelemetry,resource=service.name=tested"])
    span = telemetry.get_telemetry_tracer().start_span("root")
    assert span.resource.attributes["service.name"] == "tested"
