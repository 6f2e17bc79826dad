# SPDX-License-Identifier: Apache-2.0
"""Every file of recorded answers is as its writer leaves it: a changed record is a changed line."""

from __future__ import annotations

import pathlib

from tests import recorded_json, scheduling

TESTS = pathlib.Path(__file__).parent
WRITTEN_OTHERWISE = {scheduling.DURATIONS, *(TESTS / "simulation").glob("*.json")}


def test_files_have_one_record_in_a_line():
    files = set(TESTS.rglob("*.json")) - WRITTEN_OTHERWISE

    wrong = [
        path
        for path in files
        if path.read_text() != recorded_json.text_of(recorded_json.load(path))
    ]

    assert files
    assert wrong == []


def test_records_are_sorted_by_name():
    text = recorded_json.text_of({"b": [1, 2], "a": {"y": None, "x": "é"}})

    assert text == '{\n"a": {"x": "\\u00e9", "y": null},\n"b": [1, 2]\n}\n'


def test_records_that_are_equal_but_for_the_last_part_of_their_name_share_a_line(tmp_path):
    records = {"a: x: one": 1, "a: x: two": 2, "a: x: three": 1, "a: y": 1, "b": 1, "c": 1}
    (tmp_path / "file.json").write_text(text := recorded_json.text_of(records))

    assert text == '{\n"a: x: one | three": 1,\n"a: x: two": 2,\n"a: y": 1,\n"b": 1,\n"c": 1\n}\n'
    assert recorded_json.load(tmp_path / "file.json") == records
