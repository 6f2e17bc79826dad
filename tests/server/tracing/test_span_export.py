# SPDX-License-Identifier: Apache-2.0
"""How spans reach a collector, through the real OpenTelemetry."""

from __future__ import annotations

import asyncio

import pytest

from pytriton.serving.server.tracing.tracing import SpanExport, SpanRecord
from pytriton.utils.trace_config import read_trace_config
from tests.otlp_collector import Collector

NEVER = "opentelemetry,bsp_schedule_delay=600000"


@pytest.fixture
def collector():
    with Collector() as running:
        yield running


def record(**changes):
    known = {
        "name": "compute",
        "scope": "triton-server",
        "trace_id": 0xAB,
        "span_id": 0xCD,
        "parent_id": 0xEF,
        "is_parent_remote": False,
        "tracestate": "a=b",
        "start_ns": 1_000_000_000_000,
        "end_ns": 1_000_000_000_500,
        "events": [("COMPUTE_START", 1_000_000_000_100)],
        "attributes": {"triton.model_version": 3},
        "error": None,
    }
    return SpanRecord(**{**known, **changes})


def send(collector, *records, settings=()):
    """Send spans in the way of a server that ends at once."""
    export = SpanExport(read_trace_config([*collector.settings, NEVER, *settings]))
    export.add(records)
    asyncio.run(export.close(timeout_s=20.0))
    return collector.spans


def test_span_arrives_as_it_was_recorded(collector):
    (span,) = send(collector, record())

    assert (span.name, span.scope, span.kind) == ("compute", "triton-server", 2)
    assert (span.trace_id, span.span_id) == (f"{0xAB:032x}", f"{0xCD:016x}")
    assert (span.parent_id, span.tracestate) == (f"{0xEF:016x}", "a=b")
    assert (span.start_ns, span.end_ns) == (1_000_000_000_000, 1_000_000_000_500)
    assert (span.events, span.attributes) == (("COMPUTE_START",), {"triton.model_version": 3})
    assert span.error is None


def test_span_without_a_parent_begins_its_trace(collector):
    (span,) = send(collector, record(parent_id=0, tracestate=""))

    assert (span.trace_id, span.span_id, span.parent_id) == (f"{0xAB:032x}", f"{0xCD:016x}", "")


def test_error_is_the_status(collector):
    (span,) = send(collector, record(error="no luck"))

    assert span.error == "no luck"


def test_tracestate_that_is_none_is_left_out(collector):
    (span,) = send(collector, record(tracestate="no such thing"))

    assert span.tracestate == ""


def test_service_has_tritons_name_unless_it_is_told(collector, monkeypatch):
    send(collector, record())
    send(collector, record(), settings=["opentelemetry,resource=service.name=told"])
    monkeypatch.setenv("OTEL_SERVICE_NAME", "of the environment")
    send(collector, record())

    names = [span.resource["service.name"] for span in collector.spans]
    assert names == ["triton-inference-server", "told", "of the environment"]


def test_end_does_not_wait_for_a_collector_that_hangs(caplog):
    with Collector(hangs=True) as collector:
        export = SpanExport(read_trace_config(collector.settings))
        export.add([record()])
        asyncio.run(export.close(timeout_s=0.01))

    assert "The last spans could not be sent within 0.01 s." in caplog.text
