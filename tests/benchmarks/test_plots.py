# SPDX-License-Identifier: Apache-2.0
"""The pictures of the benchmarks, and the figures that they are drawn from."""

from __future__ import annotations

import pathlib
import re

import pytest

from benchmarks import plots, table
from benchmarks.__main__ import COMPARISONS
from tests.pictures import keep

FOLDER = pathlib.Path(plots.__file__).parent
FIGURES = table.read_figures(FOLDER / "figures.json")


@pytest.mark.parametrize("comparison", COMPARISONS, ids=lambda comparison: comparison.heading)
def test_kept_figures_are_those_of_the_page(comparison):
    systems = {
        title: figures
        for title, figures in FIGURES.items()
        if title in (comparison.subject, *comparison.peers)
    }
    text = (FOLDER / "README.md").read_text().split(f"### {comparison.heading}\n")[1]
    shown = cells(text.split("\n### ")[0], 1 + len(systems))

    drawn = cells(table.render_all(systems, [comparison]), 1 + len(systems))

    assert len(shown) > 20
    assert [row for row in shown if row not in drawn] == []


def cells(text, number):
    """The first cells of each line of a table; the others are ratios of figures not yet rounded."""
    lines = [line for line in text.splitlines() if re.match(r"\| +\S.*\[", line)]
    return [[cell.strip() for cell in line.split("|")[1 : number + 1]] for line in lines]


def test_lines_have_the_figures_of_their_rows():
    http, grpc = plots.request_panels(FIGURES)

    assert len(http.lines) == len(grpc.lines) == 4
    assert http.lines[0].y[-1] == FIGURES["pytriton (this project)"]["HTTP AddSub c=64"].value
    assert grpc.lines[2].y[0] == FIGURES["Triton + python_backend"]["gRPC AddSub c=1"].value


def test_ratio_is_above_one_where_ours_is_better_whichever_direction_that_is():
    bound = plots.ratio_panel(FIGURES).bars[0]
    ratios = dict(zip(plots.RATIOS, bound.values, strict=True))

    assert ratios["HTTP, 64 connections"] == pytest.approx(44262 / 7493)
    assert ratios["start to ready"] == pytest.approx(1.98 / 0.765)


def test_pictures_of_the_site_are_drawn():
    pytest.importorskip("matplotlib")

    drawn = plots.pictures(FIGURES)

    assert set(drawn) == {"bench_requests", "bench_ratios"}
    for name, picture in drawn.items():
        keep(f"{name}.png", picture.png())
