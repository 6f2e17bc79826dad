# SPDX-License-Identifier: Apache-2.0
"""What models print, line by line."""

from __future__ import annotations

import io
import json
import sys
import threading

import pytest

from pytriton.base.request_ids import set_request_ids
from pytriton.runtime.python_backend.output import (
    LabelledStream,
    end_output,
    end_printed_lines,
    label_output,
    send_printed_lines,
)


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


class Writes(NamedBytes):
    """Remembers what was written with each call, as other processes may write between two."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def write(self, data):
        self.calls.append(bytes(data))
        return super().write(data)


def test_printed_line_is_written_with_its_end():
    raw = Writes()
    stream = LabelledStream(raw, "utf-8", line_buffering=True)
    set_request_ids({0: "x"})
    print("a", "b", file=stream)
    print("c\nd", file=stream)
    set_request_ids(None)

    assert raw.calls == [b"[request id: x] a b\n", b"[request id: x] c\n", b"[request id: x] d\n"]


@pytest.mark.parametrize("is_json", [False, True])
def test_lines_that_threads_print_at_the_same_time_stay_whole(stream, raw, is_json):
    LabelledStream.is_json = is_json
    has_begun, may_end = threading.Event(), threading.Event()

    def print_slowly():
        set_request_ids({0: "slow"})
        stream.write("a line")
        has_begun.set()
        may_end.wait()
        stream.write("\n")

    thread = threading.Thread(target=print_slowly)
    thread.start()
    has_begun.wait()
    set_request_ids({0: "quick"})
    print("another", file=stream)
    may_end.set()
    thread.join()

    lines = raw.getvalue().decode().splitlines()
    if is_json:
        entries = [json.loads(line) for line in lines]
        found = [(entry["request_ids"], entry["message"]) for entry in entries]
        assert found == [(["quick"], "another"), (["slow"], "a line")]
    else:
        assert lines == ["[request id: quick] another", "[request id: slow] a line"]


def test_line_without_an_end_is_written_by_a_flush_and_as_a_bar_of_progress(stream, raw):
    set_request_ids({0: "x"})
    stream.write("10%")
    assert raw.getvalue() == b""
    stream.flush()
    assert raw.getvalue() == b"[request id: x] 10%"
    stream.write("\r20%")
    stream.write("\r30%")
    assert raw.getvalue() == b"[request id: x] 10%\r20%\r30%"
    stream.write(" done\n")
    stream.write("x" * 9000)
    stream.write("y\n")

    assert raw.getvalue().decode().splitlines(keepends=True)[-1] == (
        f"[request id: x] {'x' * 9000}y\n"
    )
    assert b"\r30% done\n" in raw.getvalue()


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


def test_json_line_that_never_ends_is_written_in_parts(stream, raw):
    LabelledStream.is_json = True
    for number in range(3000):
        stream.write(f"\r{number:9}")
    stream.end_line()
    stream.end_line()

    messages = [json.loads(line)["message"] for line in raw.getvalue().splitlines()]
    assert "".join(messages) == "".join(f"\r{number:9}" for number in range(3000))
    assert len(messages) == 4


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


@pytest.mark.parametrize("is_json", [False, True])
def test_line_without_an_end_is_written_when_the_process_ends(monkeypatch, raw, stream, is_json):
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", None)
    LabelledStream.is_json = is_json
    thread = threading.Thread(target=sys.stdout.write, args=("last words",))
    thread.start()
    thread.join()
    end_output()
    stream.flush()

    written = raw.getvalue().decode()
    assert (json.loads(written)["message"] if is_json else written) == "last words"


@pytest.fixture
def sent():
    """The lines that the server gets."""
    lines = []
    send_printed_lines("m", lambda sent: lines.extend(sent.lines))
    yield lines
    end_printed_lines()


def test_printed_lines_are_sent_without_their_label(stream, raw, sent):
    set_request_ids({0: "order-17"})
    print("a", "b", file=stream)
    set_request_ids(None)
    print("c", file=stream)
    end_printed_lines()
    print("d", file=stream)

    assert [(line.message, line.model) for line in sent] == [("a b", "m"), ("c", "m")]
    assert [line.request_ids for line in sent] == [["order-17"], []]
    assert sent[0].place == "stdout"
    assert raw.getvalue() == b"[request id: order-17] a b\nc\nd\n"


def test_lines_that_the_server_gets_anyway_are_not_sent_twice(stream, monkeypatch):
    monkeypatch.setattr(LabelledStream, "is_returned", True)
    send_printed_lines("m", lambda sent: pytest.fail("sent"))
    print("a", file=stream)

    assert LabelledStream.source is None


@pytest.mark.parametrize("is_json", [False, True])
def test_stream_that_was_opened_again_is_called_by_its_name(monkeypatch, sent, is_json):
    class Numbered(io.BytesIO):
        name = 2

    monkeypatch.setattr(LabelledStream, "is_json", is_json)
    raw = Numbered()
    stream = LabelledStream(raw, "utf-8", line_buffering=True)
    print("a", file=stream)
    end_printed_lines()

    assert [line.place for line in sent] == ["stderr"]
    if is_json:
        assert json.loads(raw.getvalue())["file"] == "stderr"
