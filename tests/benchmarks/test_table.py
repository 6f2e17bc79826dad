# SPDX-License-Identifier: Apache-2.0
"""The benchmark's table: medians, ratios, and what a missing figure looks like."""

from __future__ import annotations

from benchmarks.measurement import Measurement
from benchmarks.table import median_of_rounds, render

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
