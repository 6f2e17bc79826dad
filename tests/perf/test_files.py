# SPDX-License-Identifier: Apache-2.0
"""Files of a run: CSV, every request, the whole run, and comparisons of runs."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import numpy as np
import pytest

from pytriton.testing import FakeClock
from pytriton.tools.perf.errors import PerfError
from pytriton.tools.perf.load.plan import InputSet
from pytriton.tools.perf.measuring.results import LevelResult, LevelStatus, Mode
from pytriton.tools.perf.measuring.summary import SummaryRules
from pytriton.tools.perf.output.exports import (
    composing_texts,
    csv_text,
    unaccounted_us,
    write_export,
)
from pytriton.tools.perf.output.run_document import (
    comparison_text,
    level_record,
    pairs_of,
    read_run,
)
from pytriton.tools.perf.output.text import ReportSettings
from pytriton.tools.perf.server_state import (
    Counted,
    GpuGauges,
    ServerCounts,
    counted_of,
    read_gauges,
)
from tests.perf.runs import COUNTED, changed, document, level, server_run, window

SERVER = ServerCounts(COUNTED)
USUAL = (
    "Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,"
    "Server Compute Input,Server Compute Infer,Server Compute Output,Client Recv,p50 latency,"
    "p90 latency,p95 latency,p99 latency"
)


def test_csv_has_the_columns_of_perf_analyzer_by_throughput():
    slow, quick = level(1, server=SERVER), level(2, server=SERVER, count=50)

    lines = csv_text([slow, quick], ReportSettings()).splitlines()

    assert lines[0] == USUAL
    assert [line.split(",")[:2] for line in lines[1:]] == [["2", "50"], ["1", "100"]]
    assert lines[2] == "1,100,20,529,20,100,300,80,0,1050,1089,1094,1098"


@pytest.mark.parametrize(
    "fields, settings, columns",
    [
        ({"verbose": True}, ReportSettings(), "Avg latency,request/response,response wait"),
        ({"verbose": True}, ReportSettings(percentile=99), "request/response,response wait"),
        ({"with_gpu": True}, ReportSettings(), "Total GPU Memory"),
    ],
)
def test_verbose_csv_has_more_columns(fields, settings, columns):
    assert csv_text([level()], settings, **fields).splitlines()[0].endswith(f",{columns}")


def test_csv_of_rates_and_streams():
    head = csv_text([level(mode=Mode.RATE)], ReportSettings(is_decoupled=True)).splitlines()[0]

    assert head.startswith("Request Rate,Inferences/Second,Response Throughput,Client Send,")


def test_csv_with_a_cache():
    counted = Counted(requests=10, cache_hits=9, cache_hit_ns=90_000, cache_misses=1)
    text = csv_text([level(server=ServerCounts(counted))], ReportSettings())

    assert ",Server Compute Output,Server Cache Hit,Server Cache Miss,Client Recv," in text
    assert ",10,0,0,1050," in text


def test_csv_of_gpus_is_by_uuid():
    result = changed(level(), gpu={"utilization": {"GPU-1": 0.5, "GPU-2": 0.25}})

    assert csv_text([result], ReportSettings(), with_gpu=True).endswith(
        ",GPU-1:0.5;GPU-2:0.25;,,,\n"
    )


def test_composing_models_have_files_beside():
    steps = {("one", "1"): COUNTED}
    results = [level(server=ServerCounts(COUNTED, steps)), level(2)]  # one without counters

    texts = composing_texts(results, pathlib.Path("a/x.csv"))

    assert list(texts) == [pathlib.Path("a/one_v1.x.csv")]
    assert texts[pathlib.Path("a/one_v1.x.csv")].splitlines()[1] == "1,100,20,100,300,80"


def test_network_time_is_what_nobody_else_has():
    late = ServerCounts(Counted(requests=1, queue_ns=9_000_000))

    assert unaccounted_us(level(server=SERVER), ReportSettings()) == 529
    assert unaccounted_us(level(server=late), ReportSettings()) < 0


def export(tmp_path, result: LevelResult) -> dict:
    path = tmp_path / "export.json"
    sets = [InputSet({"a": np.array([1.5, 2.5]), "t": np.array([b"x"], object)})]
    write_export(path, [result], sets, "0.1")
    return json.loads(path.read_text())


def test_export_has_every_request(tmp_path):
    found = export(tmp_path, level(4, count=3))

    assert found["service_kind"] == "triton"
    assert found["experiments"][0]["experiment"] == {"mode": "concurrency", "value": 4}
    assert found["experiments"][0]["window_boundaries"] == [0, 1_000_000_000]
    requests = found["experiments"][0]["requests"]
    assert len(requests) == 3
    assert requests[1] == {
        "timestamp": 10_000_000,
        "request_inputs": {"a": [1.5, 2.5], "t": "x"},
        "response_timestamps": [11_001_000],
        "response_outputs": [{}],
    }


def test_export_has_responses_sequences_and_outputs(tmp_path):
    outputs = [[{"y": np.array([7])}, {"y": np.array([8])}]] * 2
    result = level(
        50.0, mode=Mode.RATE, count=2, streams=2, outputs=outputs, ok=np.array([True, False]),
        sequence_id=np.array([9, 9], np.uint64),
    )  # fmt: skip

    experiment = export(tmp_path, result)["experiments"][0]

    assert experiment["experiment"] == {"mode": "request_rate", "value": 50.0}
    (request,) = experiment["requests"]
    assert request["sequence_id"] == 9
    assert request["response_timestamps"] == [1_000_000, 1_500_000]
    assert request["response_outputs"] == [{"y": 7}, {"y": 8}]


def test_run_is_read_as_it_was_written(tmp_path):
    written = document(
        server_run(rules=SummaryRules(is_decoupled=True), streams=3), is_decoupled=True
    )
    path = tmp_path / "run.json"
    path.write_text(written.to_json())

    assert read_run(path) == written


@pytest.mark.parametrize(
    "text, error",
    [
        ("{", "is not JSON"),
        ("{}", "is not a saved run, expected a file of pytriton perf --json"),
        ('{"format": "pytriton-perf/1", "runs": [{}]}', "is not a whole run"),
        (None, "cannot be read"),
    ],
)
def test_other_files_are_not_runs(tmp_path, text, error):
    path = tmp_path / "run.json"
    if text is not None:
        path.write_text(text)

    with pytest.raises(PerfError, match=error):
        read_run(path)


def test_comparison_has_ratios_of_common_loads():
    first, other = server_run("a:1"), server_run("b:2", latency_us=2000)

    text = comparison_text(first, other)

    assert text.splitlines()[0] == "a:1 compared with b:2"
    assert text.splitlines()[2].split() == [
        "1", "100", "100", "1.00x", "1050", "2050", "1.95x", "1098", "2098", "1.91x",
    ]  # fmt: skip
    assert len(pairs_of(first, other)) == 3


def test_comparison_without_a_common_load():
    first = server_run()
    other = type(first)("b", "b", "HTTP", "", "M", [])

    assert comparison_text(first, other) == "a:8000 compared with b: they have no load in common"


def test_unstable_levels_are_kept_in_the_document_and_marked():
    run = server_run(status=LevelStatus.UNSTABLE)

    assert not any(each.is_sure for each in run.levels)


@pytest.mark.parametrize("number", [int, str])
def test_statistics_are_read_from_both_protocols(number):
    found = counted_of(
        {
            "inference_count": number(12),
            "execution_count": number(3),
            "batch_stats": [
                {"batch_size": number(4), "compute_infer": {"count": number(2)}},
                {"batch_size": number(7), "compute_infer": {"count": number(1)}},
            ],
            "inference_stats": {
                "success": {"count": number(6), "ns": number(600)},
                "queue": {"count": number(6), "ns": number(60)},
                "cache_hit": {},
            },
        }
    )

    assert found == Counted(
        inferences=12, executions=3, rows=15, requests=6, request_ns=600, queue_ns=60
    )


def test_failed_executions_do_not_make_batches_smaller():
    counted = Counted(executions=3, inferences=8, rows=12)

    record = level_record(level(server=ServerCounts(counted)))

    assert record.batch == 4
    assert dataclasses.replace(record, rows=0, inferences=6).batch == 2


PAGE = """# HELP x
nv_gpu_utilization{gpu_uuid="GPU-1"} 0.5
nv_gpu_memory_used_bytes{gpu_uuid="GPU-1"} 100
nv_gpu_memory_used_bytes{gpu_uuid="GPU-2"} 7e2
nv_gpu_fan{gpu_uuid="GPU-1"} 9
nv_inference_count{model="M"} 3
"""


def test_gauges_of_gpus_are_found_on_the_page():
    assert read_gauges(PAGE) == {
        "utilization": {"GPU-1": 0.5},
        "memory_used": {"GPU-1": 100.0, "GPU-2": 700.0},
    }


def test_gauges_are_means_and_the_most_memory():
    pages = iter([PAGE, PAGE.replace("0.5", "0.7").replace(" 100", " 300"), ""])
    clock = FakeClock()
    gauges = GpuGauges(lambda: next(pages), 1.0, clock)

    gauges.begin()
    gauges.tick()  # too soon
    clock.advance(1.0)
    gauges.tick()

    found = gauges.end()
    assert found["utilization"]["GPU-1"] == pytest.approx(0.6)
    assert found["memory_used"]["GPU-1"] == 300
    assert window().gpu == {}
