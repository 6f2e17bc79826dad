# SPDX-License-Identifier: Apache-2.0
"""The screens of `pytriton top`, drawn without a terminal."""

from __future__ import annotations

import dataclasses
import io
import re

import pytest
from rich.console import Console

from pytriton.tools.commands.model_cards import ModelCard, TensorCard
from pytriton.tools.commands.top.rows import Row
from pytriton.tools.commands.top.samples import GpuUse, MetricsSample, ModelCounts
from pytriton.tools.commands.top.state import TopScreen, ViewState
from pytriton.tools.commands.top.view import Shown, draw, table_lines
from tests.pictures import keep

RATES = [180, 210, 260, 300, 280, 340, 420, 390, 450, 520, 610, 580, 640, 700, 690, 720]


def row(name, requests_s, **values):
    usual = {
        "state": "READY",
        "errors_s": 0.0,
        "pending": 0.0,
        "running": 1.0,
        "instances": 1,
        "succeeded": 1000.0,
        "failed": 0.0,
    }
    return Row(name, "1", **{**usual, "requests_s": requests_s, **values})


def shown(*, has_histograms=True):
    """A server with work to do."""
    latencies = {"p50_ms": 2.4, "p95_ms": 6.1, "p99_ms": 11.8} if has_histograms else {}
    averages = {"average_ms": 2.9, "queue_ms": 0.6, "compute_ms": 2.1}
    rows = [
        row("classifier", 612.0, inferences_s=2448.0, batch=6.2, pending=4.0, running=2.0,
            instances=2, **latencies, **averages),
        row("embedder", 108.4, inferences_s=108.4, batch=1.0, errors_s=0.5, **averages,
            **{name: value * 6 for name, value in latencies.items()}),
        row("tokenizer", 0.0, inferences_s=0.0),
        Row("translator", "2", "UNAVAILABLE", "no module named 'sentencepiece'"),
    ]  # fmt: skip
    counts = ModelCounts(pending=0.0, running=0.0, instances=1)
    if has_histograms:
        counts.latencies = {0.1: 1.0}
    sample = MetricsSample(
        1.0,
        {each.key: counts for each in rows},
        cpu=0.43,
        memory_used=6.1 * 2**30,
        memory_total=25.2 * 2**30,
        server_memory=61 * 2**20,
        uptime_s=11_520.0,
    )
    result = Shown("http://localhost:8000", "triton 2.73.0", rows, sample)
    result.history.total.extend(RATES)
    for each in rows:
        result.history.models[each.key] = result.history.total.copy()
    return result


def screen(width, height, state=None, **options):
    lines = draw(shown(**options), state or ViewState(), width, height)
    assert all(line.cell_len <= width for line in lines)
    assert len(lines) == height
    return "\n".join(line.plain.rstrip() for line in lines)


def test_screen_of_80_columns_has_what_matters_most():
    assert screen(80, 12) == (
        " pytriton top   http://localhost:8000  triton 2.73.0  up 3 h 12 min\n"
        " models 3 of 4 ready   requests 720/s   errors 0.5/s   queue 4   running 4\n"
        " cpu 43%   memory 6.1 GiB of 25.2 GiB   server 61 MiB   ▃▄▄▄▄▅▆▅▆▇▇▇████\n"
        "\n"
        " MODEL          VER STATE      REQ/S ERR/S QUEUE  RUN BATCH    P50    P95    P99\n"
        " classifier       1 READY        612     0     4    2   6.2  2.4ms  6.1ms 11.8ms\n"
        " embedder         1 READY        108   0.5     0    1     1 14.4ms 36.6ms 70.8ms\n"
        " tokenizer        1 READY          0     0     0    1     -      -      -      -\n"
        " translator       2 UNAVAIL.       -     -     -    -     -      -      -      -\n"
        "\n"
        "\n"
        " q quit  s sort (name)  / filter  e errors  Enter details  ? help"
    )


def test_wide_screen_has_every_column_and_trends():
    lines = screen(130, 10).split("\n")

    assert lines[4].split() == [
        *("MODEL", "VER", "STATE", "REQ/S", "INF/S", "ERR/S", "QUEUE", "RUN", "INST", "BATCH"),
        *("P50", "P95", "P99", "TREND"),
    ]
    assert lines[5].endswith("▄▅▆▅▆▇▇▇████")


@pytest.mark.parametrize("width", [20, 30, 45, 60, 79, 100, 200])
def test_every_width_keeps_the_name_and_fits(width):
    assert "classifier" in screen(width, 10)


def test_tiny_screen_does_not_fail():
    screen(10, 3)
    screen(1, 1)


def test_server_without_histograms_has_averages():
    assert " BATCH    AVG   IN-Q  INFER\n" in screen(80, 10, has_histograms=False)


def test_rows_scroll_with_the_selection():
    state = ViewState(selected=("translator", "2"))
    shown_lines = screen(80, 8, state)

    assert shown_lines.endswith("? help  3-4 of 4")
    assert "translator" in shown_lines
    assert "classifier" not in shown_lines


def test_details_have_numbers_and_the_signature():
    state = ViewState(screen=TopScreen.DETAILS, selected=("classifier", "1"))
    result = shown()
    tensor = TensorCard("x", "FP32", (-1, 3))
    card = ModelCard("classifier", "1", "READY", "", "python", (tensor,), (tensor,), 8)
    result.cards["classifier", "1"] = card
    text = "\n".join(line.plain for line in draw(result, state, 80, 30))

    assert "   requests    612/s, 1,000 so far\n" in text
    assert "   average     2.9ms, 0.60ms in the queue, 2.1ms in the model\n" in text
    assert "   p50 p95 p99 2.4ms  6.1ms  11.8ms\n" in text
    assert "   serves      batches of up to 8\n" in text
    assert "pytriton infer classifier 'x=[1.5, 1.5, 1.5]'\n" in text


def test_details_of_a_model_that_failed_have_the_reason():
    state = ViewState(screen=TopScreen.DETAILS, selected=("translator", "2"))

    assert "reason      no module named 'sentencepiece'" in screen(80, 24, state)


def test_help_fits_into_a_terminal_of_24_lines():
    text = screen(80, 24, ViewState(TopScreen.HELP))

    assert "\n q          quit\n" in text
    assert "\n CACHE      answers that came from the response cache\n" in text
    assert "…" not in text.replace("P50 … P99", "")


def test_problem_replaces_the_totals_and_the_rows_stay():
    result = shown()
    result.problem = "No server answers"
    text = "\n".join(line.plain for line in draw(result, ViewState(), 80, 12))

    assert "\n No server answers\n" in text
    assert "requests 720/s" not in text
    assert "classifier" in text


def test_gpus_and_filters_are_shown():
    result = shown()
    result.sample.gpus["a"] = GpuUse(0.5, 10 * 2**30, 80 * 2**30)
    state = ViewState(name_filter="zzz")
    text = "\n".join(line.plain for line in draw(result, state, 130, 12))

    assert "gpu 0 50% 10.0 GiB of 80.0 GiB" in text
    assert "no model has 'zzz' in its name" in text


def test_gpu_memory_of_models_has_a_column_and_a_line_if_it_is_known():
    result = shown()
    key = result.rows[0].key
    result.sample.models[key].gpu_memory = 3.0 * 2**30
    result.rows = [dataclasses.replace(result.rows[0], gpu_memory=3.0 * 2**30), *result.rows[1:]]
    head, first, *others = table_lines(result)
    details = draw(result, ViewState(screen=TopScreen.DETAILS, selected=key), 80, 24)

    assert head.split()[-1] == "GPU"
    assert first.endswith(" 3.0 GiB")
    assert others[0].endswith("-")
    assert "   GPU memory  3.0 GiB of its processes" in [line.plain for line in details]


def test_table_for_scripts_has_every_column():
    head, *rows = table_lines(shown())

    assert head.split()[-3:] == ["P50", "P95", "P99"]
    assert [line.split()[0] for line in rows] == [
        "classifier",
        "embedder",
        "tokenizer",
        "translator",
    ]


def test_picture_of_the_live_view():
    console = Console(record=True, width=100, file=io.StringIO(), force_terminal=True)
    for line in draw(shown(), ViewState(), 100, 14):
        console.print(line, no_wrap=True, crop=True)
    svg = console.export_svg(title="pytriton top")
    # rich's template loads a font from another host.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL).replace("Fira Code, ", "")

    assert "classifier" in svg
    assert set(re.findall(r"https?://[\w.]+", svg)) == {"http://localhost", "http://www.w3.org"}
    keep("top.svg", svg.encode())
