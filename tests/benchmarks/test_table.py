# SPDX-License-Identifier: Apache-2.0
"""The benchmark's tables: medians, ratios, what a missing figure looks like, and the summary."""

from __future__ import annotations

import itertools
import json

import msgspec

from benchmarks import servers, summary, user_requests
from benchmarks.measurement import Measurement
from benchmarks.table import Comparison, median_of_rounds, render, render_all

RATE = "HTTP AddSub c=1"
START = "start to ready"


def rate(value: float) -> Measurement:
    return Measurement(RATE, value, "req/s")


def start(value: float) -> Measurement:
    return Measurement(START, value, "s", higher_is_better=False)


def cells(table: str, row: str) -> list[str]:
    line = next(line for line in table.splitlines() if line.startswith(f"| {row}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_median_of_rounds_is_taken_for_each_row():
    figures = median_of_rounds([[rate(1), start(9)], [rate(5), start(7)], [rate(3), start(8)]])

    assert [figure.value for figure in figures.values()] == [3, 8]
    assert list(figures) == [RATE, START]


def test_spread_of_rounds_is_a_share_of_their_median():
    figures = median_of_rounds([[rate(90)], [rate(100)], [rate(120)]])

    assert figures[RATE] == Measurement(RATE, 100, "req/s", spread=0.3)


def test_one_round_and_a_median_of_zero_have_no_spread():
    assert median_of_rounds([[rate(5)]]) == {RATE: rate(5)}
    assert median_of_rounds([[start(0)], [start(0)]]) == {START: start(0)}


def test_table_of_several_rounds_ends_with_the_largest_spread():
    results = {
        "ours": median_of_rounds([[rate(90)], [rate(110)]]),
        "peer": median_of_rounds([[rate(99)], [rate(101)]]),
    }

    table = render(results, subject="ours")

    assert cells(table, RATE)[-1] == "20%"
    assert table.splitlines()[0].endswith("spread |")


def test_ratio_says_how_many_times_better_in_either_direction():
    results = {
        "ours": {RATE: rate(5000), START: start(0.5)},
        "peer": {RATE: rate(1000), START: start(2)},
    }

    table = render(results, subject="ours")

    assert cells(table, RATE) == [f"{RATE} [req/s]", "5,000", "1,000", "5x"]
    assert cells(table, START) == [f"{START} [s]", "0.5", "2", "4x"]


def test_missing_figure_is_a_dash_and_has_no_ratio():
    results = {"ours": {RATE: rate(10)}, "peer": {RATE: rate(20), START: start(2)}}

    assert cells(render(results, subject="ours"), START)[1:] == ["-", "2", "-"]


def test_table_without_the_subject_has_no_ratios():
    header = render({"peer": {RATE: rate(1)}}, subject="ours").splitlines()[0]

    assert [cell.strip() for cell in header.strip("|").split("|")] == ["", "peer"]


def test_zero_is_never_divided_by():
    results = {"ours": {START: start(0)}, "peer": {START: start(2)}}

    assert cells(render(results, subject="ours"), START)[-1] == "-"


COMPARISONS = [
    Comparison("Functions", subject="ours", peers=("PyTriton", "Triton")),
    Comparison("Repositories", subject="our server", peers=("Triton",)),
]


def headings_and_columns(tables: str) -> list[tuple[str, list[str]]]:
    """Of each table its heading, if it has one, and the first cells of its columns."""
    found, heading = [], ""
    lines = tables.splitlines()
    for line, next_line in itertools.pairwise(lines):
        if line.startswith("### "):
            heading = line.removeprefix("### ")
        if next_line.startswith("| -"):
            found.append((heading, [cell.strip() for cell in line.strip("|").split("|")][1:]))
            heading = ""
    return found


def test_each_system_is_compared_with_those_that_do_the_same():
    titles = ["ours", "PyTriton", "our server", "Triton"]
    results = {title: {RATE: rate(10)} for title in titles}

    tables = render_all(results, COMPARISONS)

    assert headings_and_columns(tables) == [
        ("Functions", ["ours", "PyTriton", "Triton", "vs PyTriton", "vs Triton"]),
        ("Repositories", ["our server", "Triton", "vs Triton"]),
    ]


def test_row_that_only_another_comparison_has_is_left_out():
    results = {
        "ours": {RATE: rate(10)},
        "our server": {RATE: rate(10), START: start(1)},
        "Triton": {RATE: rate(5), START: start(2)},
    }

    functions, repositories = render_all(results, COMPARISONS).split("### Repositories")

    assert START not in functions
    assert cells(repositories, START) == [f"{START} [s]", "1", "2", "2x"]


def test_comparison_without_its_subject_is_left_out():
    results = {"our server": {RATE: rate(10)}, "Triton": {RATE: rate(5)}}

    tables = render_all(results, COMPARISONS)

    assert headings_and_columns(tables) == [("Repositories", ["our server", "Triton", "vs Triton"])]


def test_system_without_a_comparison_is_shown_all_the_same():
    results = {"our server": {RATE: rate(10)}, "PyTriton": {RATE: rate(5)}}

    tables = render_all(results, COMPARISONS)

    assert headings_and_columns(tables) == [
        ("Repositories", ["our server"]),
        ("", ["PyTriton"]),
    ]


BINARY = "HTTP binary, outputs named c=64"
TITLES = {
    "ours": servers.OURS,
    "repository": servers.OUR_TRITONSERVER,
    "triton": servers.TRITON,
}


def figures(row: str, **values: float) -> dict[str, dict[str, Measurement]]:
    return {TITLES[key]: {row: Measurement(row, value, "req/s")} for key, value in values.items()}


def test_each_of_ours_has_its_ratios():
    text = summary.render(figures(BINARY, ours=50_000, repository=30_000, triton=10_000))

    assert text.splitlines()[2] == (
        "| HTTP as `tritonclient` sends, 64 connections | 50,000 requests/s | 5x "
        "| 30,000 requests/s | 3x |"
    )


def test_what_was_not_measured_is_left_out():
    assert len(summary.render(figures("start to ready", repository=1)).splitlines()) == 3


def test_a_later_file_takes_the_place_of_an_earlier(tmp_path):
    files = []
    for value in (1.0, 2.0):
        files.append(tmp_path / f"{value}.json")
        figure = msgspec.to_builtins(Measurement(BINARY, value, "req/s"))
        files[-1].write_text(json.dumps({servers.OURS: [[figure]]}))

    assert summary.merged(files)[servers.OURS][BINARY].value == 2


def test_rows_of_users_have_the_titles_of_their_forms():
    titles = {form.title for form in user_requests.FORMS.values()}
    rows = [row for row in summary.ROWS.values() if " c=" in row]

    assert {row.split(" c=")[0] for row in rows} <= titles
