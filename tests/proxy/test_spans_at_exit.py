# SPDX-License-Identifier: Apache-2.0
"""What becomes of the last spans of a process, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.e2e.waiting import DEADLINE_S, eventually
from tests.otlp_collector import Collector

TRACE_ID = f"{0xAB:032x}"
SCRIPT = f"""
import os, sys
from pytriton.proxy import telemetry

settings = ["mode=opentelemetry", f"opentelemetry,url={{sys.argv[1]}}"]
settings.append("opentelemetry,bsp_schedule_delay=600000")
telemetry.trace_with(settings)
headers = {{"traceparent": "00-{TRACE_ID}-{1:016x}-01"}}
telemetry.end_span(telemetry.start_span_from_remote(headers, "last"))
if os.fork() == 0:
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
"""


def run(collector: Collector) -> None:
    subprocess.run(
        [sys.executable, "-c", SCRIPT, collector.url],
        check=True,
        env={**os.environ, "OTEL_EXPORTER_OTLP_TIMEOUT": "600"},
        timeout=DEADLINE_S,
    )


@pytest.mark.e2e
def test_last_spans_are_sent_when_a_process_ends():
    with Collector() as collector:
        run(collector)

        assert [span.name for span in collector.trace_list(TRACE_ID, 1)] == ["last"]


@pytest.mark.e2e
def test_process_ends_although_nobody_takes_its_last_spans():
    with Collector(hangs=True) as collector:
        run(collector)

        assert eventually(lambda: collector.request_count == 1)
