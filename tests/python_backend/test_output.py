# SPDX-License-Identifier: Apache-2.0
"""What models print, line by line."""

from __future__ import annotations

import io
import json
import sys

import pytest

from pytriton.python_backend.output import LabelledStream, label_output
from pytriton.request_ids import set_request_ids


class NamedBytes(io.BytesIO):
    name = "<stdout>"


@pytest.fixture
def raw():
    return NamedBytes()


@pytest.fixture
def stream(raw):
    yield LabelledStream(raw, "utf-8", line_buffering=True)
    set_request_ids(None)
    LabelledStream.is_json = False


def test_lines_without_a_request_stay_as_they_are(stream, raw):
    print("a", "b", file=stream)
    print(file=stream)
    stream.write("c\nd\n")

    assert raw.getvalue() == b"a b\n\nc\nd\n"


def test_lines_of_a_request_begin_with_its_id(stream, raw):
    set_request_ids({0: "x\n"})
    print("a", "b", file=stream)
    print(file=stream)
    count = stream.write("c\n\nd")
    set_request_ids({0: "y"})
    stream.write("e\nf\n")

    assert count == 4
    assert raw.getvalue().decode().splitlines() == [
        "[request id: x\\n] a b",
        "",
        "[request id: x\\n] c",
        "",
        "[request id: x\\n] de",
        "[request id: y] f",
    ]


def test_printed_lines_are_json_if_the_log_is(stream, raw):
    LabelledStream.is_json = True
    set_request_ids({0: "x"})
    print("a", "b", file=stream)
    stream.write("c\nd")
    set_request_ids(None)
    LabelledStream.is_json = False
    stream.write("e\nplain\n")
    print("after", file=stream)

    lines = raw.getvalue().decode().splitlines()
    entries = [json.loads(line) for line in lines[:4]]
    assert [entry["message"] for entry in entries] == ["a b", "c", "de", "plain"]
    assert [entry.get("request_ids") for entry in entries] == [["x"], ["x"], None, None]
    assert {entry["file"] for entry in entries} == {"stdout"}
    assert lines[4:] == ["after"]


def test_streams_of_the_process_are_replaced_where_there_are_any(monkeypatch, raw):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, "ascii", "backslashreplace"))
    monkeypatch.setattr(sys, "stderr", None)
    sys.stdout.write("before")
    old = sys.stdout
    label_output()
    set_request_ids({0: "é"})
    sys.stdout.write(" and after\n")
    set_request_ids(None)

    assert isinstance(sys.stdout, LabelledStream)
    assert sys.stderr is None
    assert raw.getvalue() == b"before[request id: \\xe9]  and after\n"
    assert old.buffer is raw
