# SPDX-License-Identifier: Apache-2.0
"""The text of a report has the lines of perf_analyzer 2.50, which recorded the expected ones."""

from __future__ import annotations

import re

import numpy as np
import pytest

from pytriton.tools.perf.load.records import GeneratorState
from pytriton.tools.perf.measuring.results import LevelStatus, Mode
from pytriton.tools.perf.measuring.summary import SummaryRules
from pytriton.tools.perf.output.text import (
    ReportSettings,
    TextWatcher,
    comparison_lines,
    level_heading,
    level_text,
    problem_text,
    settings_text,
    window_text,
)
from pytriton.tools.perf.server_state import Counted, ServerCounts
from tests.perf.runs import COUNTED, changed, level

SERVER = ServerCounts(COUNTED)
SPLIT = (
    "Avg request latency: N usec (overhead N usec + queue N usec + compute input N usec + "
    "compute infer N usec + compute output N usec)"
)


def shape(text: str) -> list[str]:
    """Lines with each number as N."""
    return re.sub(r"\d+(\.\d+)?(e\+\d+)?", "N", text).splitlines()


def test_settings_of_a_single_level():
    assert settings_text(ReportSettings()).splitlines() == [
        "*** Measurement Settings ***",
        "  Batch size: 1",
        "  Service Kind: TRITON",
        '  Using "time_windows" mode for stabilization',
        "  Stabilizing using average latency and throughput",
        "  Measurement window: 5000 msec",
        "  Using synchronous calls for inference",
    ]


@pytest.mark.parametrize(
    "settings, line",
    [
        (ReportSettings(load_limit=3), "  Concurrency limit: 3 concurrent requests"),
        (ReportSettings(load_limit=3, latency_limit_ms=7), "  Latency limit: 7 msec"),
        (
            ReportSettings(mode=Mode.RATE, load_limit=100),
            "  Request Rate limit: 100 requests per seconds",
        ),
        (
            ReportSettings(mode=Mode.RATE, is_poisson=True),
            "  Using poisson distribution on request generation",
        ),
        (ReportSettings(mode=Mode.RATE), "  Using uniform distribution on request generation"),
        (ReportSettings(percentile=95), "  Stabilizing using p95latency and throughput"),
        (ReportSettings(is_async=True), "  Stabilizing using average throughput"),
        (ReportSettings(is_async=True), "  Using asynchronous calls for inference"),
        (ReportSettings(window_requests=50), "  Minimum number of samples in each window: 50"),
        (ReportSettings(request_count=9), "  Sending 9 benchmark requests"),
        (ReportSettings(is_binary_search=True), "  Using Binary Search algorithm"),
        (
            ReportSettings(is_decoupled=True),
            "  Detected decoupled model, using the first response for measuring latency",
        ),
    ],
)
def test_settings_name_what_is_unusual(settings, line):
    assert line in settings_text(settings).splitlines()


def test_level_over_http():
    assert shape(level_text(level(server=SERVER), ReportSettings())) == [
        "  Client: ",
        "    Request count: N",
        "    Throughput: N infer/sec",
        "    Avg latency: N usec (standard deviation N usec)",
        "    pN latency: N usec",
        "    pN latency: N usec",
        "    pN latency: N usec",
        "    pN latency: N usec",
        "    Avg HTTP time: N usec (send/recv N usec + response wait N usec)",
        "  Server: ",
        "    Inference count: N",
        "    Execution count: N",
        "    Successful request count: N",
        f"    {SPLIT}",
    ]


def test_numbers_of_a_level():
    text = level_text(level(server=SERVER), ReportSettings())

    assert "    Request count: 100\n    Throughput: 100 infer/sec\n" in text
    assert "    p50 latency: 1050 usec\n" in text
    assert (
        "Avg request latency: 600 usec (overhead 100 usec + queue 20 usec + compute input 100 "
        "usec + compute infer 300 usec + compute output 80 usec)"
    ) in text


@pytest.mark.parametrize(
    "settings, line",
    [
        (
            ReportSettings(is_grpc=True),
            (
                "    Avg gRPC time: N usec ((un)marshal request/response N usec + response wait N "
                "usec)"
            ),
        ),
        (
            ReportSettings(is_grpc=True, verbose=True),
            "    Avg gRPC time: N usec (marshal N usec + response wait N usec + unmarshal N usec)",
        ),
        (
            ReportSettings(verbose=True),
            "    Avg HTTP time: N usec (send N usec + response wait N usec + receive N usec)",
        ),
        (ReportSettings(verbose=True), "    Avg client overhead: N%"),
        (ReportSettings(has_sequences=True), "    Sequence count: N (N seq/sec)"),
        (ReportSettings(is_decoupled=True), "    Response Throughput: N infer/sec"),
    ],
)
def test_lines_of_other_protocols_and_models(settings, line):
    assert line in shape(level_text(level(), settings))


def test_percentile_replaces_the_mean():
    result = level(rules=SummaryRules(percentile=85))
    settings = ReportSettings(percentile=85)

    text = level_text(result, settings)

    assert "Avg latency" not in text
    assert "    p85 latency: 1084 usec\n    p90 latency" in text
    assert comparison_lines([result], settings) == (
        "Inferences/Second vs. Client p85 Batch Latency\n"
        "Concurrency: 1, throughput: 100 infer/sec, latency 1084 usec"
    )


def test_ensemble_has_its_steps():
    steps = {("one", "1"): COUNTED, ("two", "1"): COUNTED}

    lines = shape(level_text(level(server=ServerCounts(COUNTED, steps)), ReportSettings()))

    start = lines.index("  Server: ")
    assert lines[start + 4 :] == [
        "    Avg request latency: N usec (overhead N usec + queue N usec + compute N usec)",
        "",
        "  Composing models: ",
        "  one, version: N",
        "      Inference count: N",
        "      Execution count: N",
        "      Successful request count: N",
        f"      {SPLIT}",
        "",
        "  two, version: N",
        "      Inference count: N",
        "      Execution count: N",
        "      Successful request count: N",
        f"      {SPLIT}",
    ]


def test_cache_has_hits_and_misses():
    counted = Counted(
        inferences=1, executions=1, requests=100, request_ns=4_000_000, input_count=1,
        input_ns=100_000, infer_ns=200_000, output_ns=50_000, cache_hits=99,
        cache_hit_ns=1_287_000, cache_misses=1, cache_miss_ns=96_000,
    )  # fmt: skip

    text = level_text(level(server=ServerCounts(counted)), ReportSettings())

    assert text.splitlines()[10:] == [
        "    Inference count: 1",
        "    Execution count: 1",
        "    Cache hit count: 99",
        "    Cache miss count: 1",
        "    Successful request count: 100",
        (
            "    Avg request latency: 40 usec "
            "(overhead 22 usec + queue 0 usec + cache hit/miss 17 usec)"
        ),
        "      Average Cache Hit Latency: 13 usec",
        (
            "      Average Cache Miss Latency: 446 usec (cache lookup/insertion 96 usec + "
            "compute input 100 usec + compute infer 200 usec + compute output 50 usec)"
        ),
    ]


def test_streams_have_times_between_responses():
    result = level(rules=SummaryRules(is_decoupled=True), streams=3)

    text = level_text(result, ReportSettings(is_decoupled=True))

    assert "    Avg responses per request: 3\n" in text
    assert "    Avg time between responses: 500 usec (p50 500 usec, p90 500 usec" in text
    assert "    Avg time to last response: 2049 usec" in text


def test_failed_requests_are_counted_with_their_first_texts():
    ok = np.arange(100) > 9
    errors = {f"text {index}": 5 - index for index in range(5)}

    text = level_text(level(ok=ok, errors=errors), ReportSettings())

    assert "    Failed request count: 10 of 100\n      5 x text 0\n      4 x text 1\n" in text
    assert "      and 2 other texts" in text


def test_busy_generator_and_late_requests_are_said_plainly():
    busy = GeneratorState(processes=1, cpu_share=0.99, is_limit=True)
    result = level(mode=Mode.RATE, value=200, delayed=np.arange(100) < 5, generator=busy)

    text = level_text(result, ReportSettings(mode=Mode.RATE))

    assert (
        "The load generator itself is the limit: it was busy 99% of the time in 1 process." in text
    )
    assert (
        "5.0% of the requests began later than they should. The rate was 100 requests per second."
        in text
    )


def test_level_headings():
    assert level_heading(Mode.CONCURRENCY, 4.0) == "Request concurrency: 4"
    assert level_heading(Mode.RATE, 50.0) == "Request Rate: 50 inference requests per seconds"
    assert level_heading(Mode.INTERVALS, 50.0) is None


def test_window_in_a_verbose_report():
    found = level().summary

    assert window_text(2, found, ReportSettings()) == (
        "  Pass [2] throughput: 100 infer/sec. Avg latency: 1049 usec (std 29 usec). "
    )
    assert window_text(2, changed(level(), latency=None).summary, ReportSettings()).endswith(
        "No request was answered. "
    )


def test_level_without_any_answer_says_so():
    nothing = level(4, LevelStatus.UNSTABLE, count=0)

    text = problem_text(nothing, ReportSettings(max_trials=3))

    assert text is not None
    assert text.startswith("No request was answered within 3 measurement windows for concurrency 4")


def test_levels_without_numbers_say_why():
    settings = ReportSettings(max_trials=3, latency_limit_ms=2)

    assert problem_text(level(4, LevelStatus.UNSTABLE), settings) == (
        "Failed to obtain stable measurement within 3 measurement windows for concurrency 4. "
        "Please try to increase the --measurement-interval."
    )
    assert problem_text(level(4, LevelStatus.OVER_LIMIT), settings) == (
        "Measured latency went over the set limit of 2 msec. "
    )
    failed = changed(level(4, LevelStatus.FAILED), failed=3, errors={"not ready": 3})
    assert problem_text(failed, settings) == "No request was answered well (3 failed): not ready"


def test_last_lines_for_rates_and_intervals():
    rate = level(50, mode=Mode.RATE)
    intervals = level(66.7, mode=Mode.INTERVALS)

    assert comparison_lines([rate], ReportSettings()).splitlines() == [
        "Inferences/Second vs. Client Average Batch Latency",
        "Request Rate: 50, throughput: 100 infer/sec, latency 1049 usec",
    ]
    assert comparison_lines([intervals], ReportSettings()).endswith(
        "Request Rate: 66, throughput: 100 infer/sec, latency 1049 usec"
    )


@pytest.mark.parametrize(
    "status, allow, shown, complained",
    [
        (LevelStatus.STABLE, False, True, False),
        (LevelStatus.UNSTABLE, False, True, True),
        (LevelStatus.UNSTABLE, True, True, False),
        (LevelStatus.FAILED, True, False, True),
    ],
)
def test_watcher_prints_numbers_or_the_reason(status, allow, shown, complained):
    out: list[str] = []
    errors: list[str] = []
    watcher = TextWatcher(ReportSettings(), out.append, errors.append, allow_unstable=allow)

    watcher.level_ended(level(status=status))

    assert (bool(out), bool(errors)) == (shown, complained)
    assert ("these numbers are not stable" in "".join(out)) == (status is LevelStatus.UNSTABLE)
