# SPDX-License-Identifier: Apache-2.0
"""Facts of traced requests for tests."""

from __future__ import annotations

from pytriton.base.messages import ExecutionTimes
from pytriton.serving.server.tracing.request_trace import TracedExecution, TraceFacts

TIMES = ExecutionTimes(
    queued_ns=110, started_ns=120, infer_start_ns=130, output_start_ns=140, ended_ns=150
)


def facts(number=1, **changes):
    known = {
        "trace_id": number,
        "number": number,
        "protocol": "HTTP",
        "model_name": "m",
        "model_version": 3,
        "request_id": "",
        "infer_id": 10 * number,
        "model_id": 10 * number + 1,
        "began_ns": 80,
        "received_ns": 90,
        "start_ns": 100,
        "answered_ns": 160,
        "end_ns": 170,
        "executions": [TracedExecution(12, TIMES)],
    }
    return TraceFacts(**{**known, **changes})
