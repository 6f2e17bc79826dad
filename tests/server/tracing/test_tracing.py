# SPDX-License-Identifier: Apache-2.0
"""Which requests are traced, and under which span."""

from __future__ import annotations

import asyncio
import sys

import pytest

from pytriton.base.errors import InvalidArgumentError, ServerError, UnavailableError
from pytriton.base.messages import TraceContext, TraceOrigin
from pytriton.serving.engine.observers import Watch
from pytriton.serving.server.tracing.settings import TraceSettings
from pytriton.serving.server.tracing.tracing import SpanExporter, Tracing, parse_traceparent
from tests.fakes import RecordingSink, model_spec, request

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"
UNSAMPLED = PARENT.removesuffix("01") + "00"


class Kept:
    """Keeps the spans of each request."""

    def __init__(self):
        self.traces = []

    def add(self, spans):
        self.traces.append({span.name: span for span in spans})

    async def close(self, timeout_s):
        raise AssertionError("nobody closes it")


@pytest.fixture
def kept():
    return Kept()


def trace(kept, *settings):
    return Tracing(TraceSettings.read(["mode=opentelemetry", *settings]), SpanExporter(kept))


@pytest.fixture
def tracing(kept):
    return trace(kept, "rate=0")


def begin(tracing, traceparent="", tracestate="", **fields):
    spec = model_spec(name="m", version=3)
    origin = TraceOrigin("HTTP", traceparent, tracestate)
    watcher = tracing.begin(request(**fields), spec, origin)
    return None if watcher is None else Watch(RecordingSink(), [watcher])


@pytest.fixture
def loop():
    made = asyncio.new_event_loop()
    yield made
    made.close()


@pytest.mark.parametrize("settings", [[], ["mode=triton", "rate=1"]])
def test_nothing_is_traced_that_could_go_nowhere(settings, loop, caplog):
    assert Tracing.start(TraceSettings.read(settings), loop) is None
    assert caplog.messages == []


def test_level_without_a_file_is_logged(loop, caplog):
    assert Tracing.start(TraceSettings.read(["level=TIMESTAMPS"]), loop) is None

    assert caplog.messages == ["Nothing is traced: no file for traces is given (triton,file)."]


def test_file_alone_makes_tracing_possible(loop, tmp_path):
    settings = TraceSettings.read([f"triton,file={tmp_path}/trace.json"])
    tracing = Tracing.start(settings, loop)
    assert begin(tracing) is None

    settings.update({"trace_level": ["TIMESTAMPS"], "trace_rate": ["1"]})
    assert begin(tracing, PARENT) is not None


def test_nothing_is_traced_at_level_off(kept):
    assert begin(trace(kept, "rate=1", "level=OFF"), PARENT) is None


def test_setting_of_opentelemetry_that_is_no_number_is_refused(loop):
    settings = TraceSettings.read(["mode=opentelemetry", "opentelemetry,bsp_schedule_delay=soon"])

    with pytest.raises(InvalidArgumentError, match="'bsp_schedule_delay', got 'soon'"):
        Tracing.start(settings, loop)


def test_missing_package_is_named_with_what_to_install(monkeypatch, loop):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)

    with pytest.raises(UnavailableError, match="pip install opentelemetry-api"):
        Tracing.start(TraceSettings.read(["mode=opentelemetry"]), loop)


def test_traceparent_is_read():
    assert parse_traceparent(PARENT) == (int(TRACE_ID, 16), 0xB7AD6B7169203331, True)
    assert not parse_traceparent(UNSAMPLED).is_sampled
    assert parse_traceparent(f"01{PARENT[2:]}-what-later-versions-add").is_sampled


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        "garbage",
        f"ff{PARENT[2:]}",
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        PARENT.upper(),
        f"{PARENT}1",
        f"{PARENT}-more",
        f" {PARENT}",
    ],
)
def test_traceparent_that_is_none_is_not_read(text):
    assert parse_traceparent(text) is None


def test_request_of_a_client_that_traces_is_traced_under_its_span(tracing, kept):
    made = begin(tracing, PARENT, "vendor=one", id="seven")
    made.on_response(None, final=True)

    (spans,) = kept.traces
    assert (spans["InferRequest"].parent_id, spans["InferRequest"].is_parent_remote) == (
        0xB7AD6B7169203331,
        True,
    )
    assert {f"{span.trace_id:032x}" for span in spans.values()} == {TRACE_ID}
    assert {span.tracestate for span in spans.values()} == {"vendor=one"}
    assert spans["m"].attributes == {
        "triton.model_name": "m",
        "triton.model_version": 3,
        "triton.trace_id": 1,
        "triton.trace_parent_id": 0,
        "triton.request_id": "seven",
    }


def test_request_whose_client_does_not_sample_is_not_traced(kept):
    assert begin(trace(kept, "rate=1"), UNSAMPLED) is None


def test_request_with_a_header_that_cannot_be_read_is_traced_as_sampling_says(kept):
    assert begin(trace(kept, "rate=1"), "garbage", "vendor=one") is not None
    assert begin(trace(kept, "rate=0"), "garbage") is None


def test_request_that_a_front_end_has_selected_is_only_counted(kept):
    tracing = trace(kept, "rate=1000", "count=1")
    origin = TraceOrigin("HTTP", is_sampled=True)
    spec = model_spec(name="m")

    assert tracing.begin(request(), spec, origin) is not None
    assert tracing.begin(request(), spec, origin) is None


def test_sampled_request_begins_a_trace_of_its_own(kept):
    tracing = trace(kept, "rate=1")
    for _ in range(2):
        begin(tracing, tracestate="of nobody").on_response(None, final=True)

    first, second = (spans["InferRequest"] for spans in kept.traces)
    assert first.trace_id != second.trace_id
    assert (first.parent_id, first.is_parent_remote, first.tracestate) == (0, False, "")


def test_call_of_a_model_is_traced_under_the_one_that_makes_it(tracing, kept):
    parent = TraceContext(PARENT, "vendor=one")
    made = Watch(RecordingSink(), [tracing.called(request(), model_spec(name="m"), parent)])
    made.on_error(ServerError("broken"))

    (spans,) = kept.traces
    assert set(spans) == {"m"}
    assert (spans["m"].parent_id, spans["m"].tracestate) == (0xB7AD6B7169203331, "vendor=one")
    assert spans["m"].error == "broken"
