# SPDX-License-Identifier: Apache-2.0
"""The short table of the README."""

from __future__ import annotations

import json

import msgspec

from benchmarks import servers, summary, user_requests
from benchmarks.measurement import Measurement

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
