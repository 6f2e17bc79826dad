# SPDX-License-Identifier: Apache-2.0
"""Results and documents of load tests, made up for tests."""

from __future__ import annotations

import dataclasses

import numpy as np

from pytriton.tools.perf.load.records import Records
from pytriton.tools.perf.measuring.results import LevelResult, LevelStatus, Mode
from pytriton.tools.perf.measuring.summary import SummaryRules, Window, WindowSummary, summarise
from pytriton.tools.perf.output.run_document import RunDocument, ServerRun, level_record
from pytriton.tools.perf.server_state import Counted, ServerCounts

COUNTED = Counted(
    inferences=100, executions=50, requests=100, request_ns=60_000_000, queue_ns=2_000_000,
    input_count=100, input_ns=10_000_000, infer_ns=30_000_000, output_ns=8_000_000,
)  # fmt: skip


def records(count: int = 100, latency_us: int = 1000, streams: int = 1, **fields) -> Records:
    """Requests that each take a little longer than the one before, with so many responses."""
    begin = np.arange(count, dtype=np.int64) * 10_000_000
    first = begin + latency_us * 1000 + np.arange(count) * 1000
    gaps = np.arange(streams, dtype=np.int64) * 500_000
    columns = {
        "begin_ns": begin,
        "sent_ns": begin + 20_000,
        "first_ns": first,
        "last_ns": first + gaps[-1],
        "responses": np.full(count, streams, np.int64),
        "ok": np.ones(count, np.bool_),
        "delayed": np.zeros(count, np.bool_),
        "input_index": np.zeros(count, np.int64),
        "sequence_id": np.zeros(count, np.uint64),
        "response_ns": (first[:, None] + gaps).ravel() if streams > 1 else first[:0],
    }
    return Records(**{**columns, **fields})


def window(found: Records | None = None, server: ServerCounts | None = None) -> Window:
    return Window(0, 1_000_000_000, records() if found is None else found, server)


def level(
    value: float = 1,
    status: LevelStatus = LevelStatus.STABLE,
    mode: Mode = Mode.CONCURRENCY,
    server: ServerCounts | None = None,
    rules: SummaryRules | None = None,
    **fields,
) -> LevelResult:
    measured = window(records(**fields), server)
    summary = summarise([measured], rules or SummaryRules())
    return LevelResult(mode, value, status, summary, [measured], 1)


def changed(result: LevelResult, **fields) -> LevelResult:
    summary: WindowSummary = dataclasses.replace(result.summary, **fields)
    return dataclasses.replace(result, summary=summary)


def document(*runs: ServerRun, **fields) -> RunDocument:
    found = runs or (server_run(),)
    return RunDocument(
        **{
            "when": "2026-01-01 00:00 UTC",
            "mode": "concurrency",
            "percentile": None,
            "is_decoupled": False,
            "runs": list(found),
            "settings": {"command": "pytriton perf M"},
            "environment": {"Python": "3"},
            **fields,
        }
    )


def server_run(label: str = "a:8000", latency_us: int = 1000, **fields) -> ServerRun:
    levels = [
        level(value, latency_us=latency_us * value, server=ServerCounts(COUNTED), **fields)
        for value in (1, 2, 4)
    ]
    return ServerRun(label, label, "HTTP", "triton 2", "M", [level_record(each) for each in levels])
