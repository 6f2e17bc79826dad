# SPDX-License-Identifier: Apache-2.0
"""Panels, pictures and the page of a run."""

from __future__ import annotations

import dataclasses
import html.parser
import re
import sys

import pytest

from pytriton.tools.perf.measuring.results import LevelStatus
from pytriton.tools.perf.measuring.summary import SummaryRules
from pytriton.tools.perf.output.panels import panels_of, unit_for
from pytriton.tools.perf.output.run_page import run_page
from pytriton.tools.plots.page import page_html
from pytriton.tools.plots.pictures import PlotError, draw, short_text
from tests.perf.runs import document, server_run

RANGE = ["throughput", "latency", "throughput_latency", "distribution", "histogram", "server"]


def one_level(**fields):
    run = server_run(**fields)
    return dataclasses.replace(run, levels=run.levels[:1])


def streams(label: str = "a:8000"):
    return server_run(label, rules=SummaryRules(is_decoupled=True), streams=3)


def test_panels_depend_on_what_was_measured():
    assert list(panels_of(document())) == RANGE
    assert list(panels_of(document(one_level()))) == ["distribution", "histogram", "server"]
    assert "between_responses" in panels_of(document(streams(), is_decoupled=True))
    empty = dataclasses.replace(server_run(), levels=[])
    assert panels_of(document(empty)) == {}


def two_levels(label: str = "a:8000", **fields):
    run = server_run(label, **fields)
    return dataclasses.replace(run, levels=run.levels[:2])


def test_two_levels_are_bars_with_their_values():
    panels = panels_of(document(two_levels(status=LevelStatus.UNSTABLE), latency_limit_ms=3))

    assert list(panels) == ["throughput", "latency", "distribution", "histogram", "server"]
    throughput, latency, server = (panels[name] for name in ("throughput", "latency", "server"))
    assert (throughput.lines, latency.lines, server.lines) == ((), (), ())
    assert list(throughput.bar_names) == ["concurrency 1", "concurrency 2"]
    assert list(throughput.bars[0].texts) == ["100 (less sure)"] * 2
    assert [group.label for group in latency.bars] == ["p50", "p95", "p99"]
    assert latency.limits == [(3.0, "limit")]
    assert [group.label for group in server.bars] == ["concurrency 1", "concurrency 2"]


def test_large_parts_of_the_time_are_written_without_powers_of_ten():
    panels = panels_of(document(two_levels(latency_us=900)))
    texts = [text for group in panels["server"].bars for text in group.texts]

    assert any(text.endswith("k") for text in texts), texts
    assert not any("e+" in text for text in texts)


def test_level_that_one_of_two_servers_has_not_is_named():
    panels = panels_of(document(two_levels("a"), one_level(label="b")))

    assert [group.label for group in panels["throughput"].bars] == ["a", "b"]
    assert panels["throughput"].bars[1].texts[1] == "not measured"
    assert [group.label for group in panels["latency"].bars] == ["a p50", "a p99", "b p50", "b p99"]


def test_last_of_an_odd_number_of_panels_fills_its_row():
    panels = list(panels_of(document(two_levels())).values())
    figure = draw(panels, title="M").figure

    columns = [ax.get_subplotspec().colspan for ax in figure.axes]
    assert [len(each) for each in columns] == [1, 1, 1, 1, 2]


def test_lines_of_two_servers_have_their_names_and_colours():
    panels = panels_of(document(server_run("a"), server_run("b")))

    assert [line.label for line in panels["throughput"].lines] == ["a", "b"]
    assert [(line.label, line.colour, line.is_dashed) for line in panels["latency"].lines] == [
        ("a p50", 0, False), ("a p99", 0, True), ("b p50", 1, False), ("b p99", 1, True),
    ]  # fmt: skip


def test_unstable_levels_are_hollow():
    panel = panels_of(document(server_run(status=LevelStatus.UNSTABLE)))["throughput"]

    assert list(panel.lines[0].hollow) == [0, 1, 2]


def test_latency_limit_is_drawn():
    panel = panels_of(document(latency_limit_ms=3))["latency"]

    assert panel.limits == [(3.0, "limit")]


@pytest.mark.parametrize("us, name", [(900, "µs"), (5000, "ms"), (3e6, "s")])
def test_unit_fits_the_numbers(us, name):
    assert unit_for(us).name == name


@pytest.mark.parametrize("value, text", [(0.5, "0.5"), (1500, "1.5k"), (2e6, "2M"), (0, "0")])
def test_numbers_at_axes_are_short(value, text):
    assert short_text(value) == text


def test_picture_is_png_and_svg_of_the_page_colours():
    panels = panels_of(document())
    picture = draw([panels["throughput"], panels["server"]], title="M")

    assert picture.png().startswith(b"\x89PNG")
    svg = picture.svg()
    assert svg.startswith("<svg")
    assert "currentColor" in svg
    assert "#1f2933" not in svg
    assert ">Throughput<" in svg  # texts are texts, not shapes


def test_picture_without_matplotlib_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    with pytest.raises(PlotError, match=r"pip install 'pytriton\[plots\]'"):
        draw(list(panels_of(document()).values()))


class Reader(html.parser.HTMLParser):
    """Finds what a page refers to, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.outside: list[str] = []
        self.ids: list[str] = []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in {"src", "href", "xlink:href"} and not (value or "").startswith("#"):
                self.outside.append(f"{tag} {value}")
            if name == "id":
                self.ids.append(value)

    def handle_data(self, data):
        self.text += data


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    return reader


def test_page_is_one_file_with_plots_and_tables():
    other = dataclasses.replace(server_run(latency_us=2000), label="before")

    drawn = draw([panels_of(document(), [other])["latency"]]).svg()
    page = page_html(run_page(document(), [drawn, drawn], [other]))

    found = read(page)
    assert found.outside == []
    assert "<script" not in page
    assert not re.search(r"url\((?!#)", page)
    assert len(found.ids) == len(set(found.ids))
    assert page.count("<svg") == 2
    for text in ("Load test of M", "a:8000 compared with before", "1.95x", "pytriton perf M"):
        assert text in found.text
    assert 'class="good"' in page
    assert "prefers-color-scheme:dark" in page


def test_page_names_what_went_wrong():
    run = server_run(status=LevelStatus.UNSTABLE)
    bad = dataclasses.replace(run.levels[0], failed=3, errors={"<b>no": 3}, is_generator_limit=True)
    found = document(dataclasses.replace(run, levels=[bad, *run.levels[1:]]))

    page = page_html(run_page(found, []))

    assert "3 requests failed at 1: 3 x &lt;b&gt;no" in page
    assert "The load generator itself was the limit at 1; the server may be quicker." in page
    assert "Less sure, with hollow points in the plots: 1 (unstable)" in page


def test_page_of_streams_has_their_times():
    text = read(page_html(run_page(document(streams(), is_decoupled=True), []))).text

    assert "between p99" in text
    assert "most responses" in text
