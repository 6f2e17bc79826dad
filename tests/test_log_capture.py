# SPDX-License-Identifier: Apache-2.0
"""What a model's code prints and logs on its way to the server that keeps it."""
# ruff: noqa: T201  what is printed is the subject

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import subprocess
import sys
import threading

import pytest

from pytriton.base import log_capture, log_lines
from pytriton.base.log_capture import (
    CapturedStream,
    LineSource,
    capture_lines,
    keep_line,
    release_lines,
    set_line_source,
)
from pytriton.base.log_lines import LogOutbox, SentLine
from pytriton.base.request_ids import add_to_log_records, request_ids
from tests.e2e.waiting import DEADLINE_S


class KeptLines:
    """A server that keeps what it gets."""

    def __init__(self):
        self.lines = []
        self.lost_count = 0
        self.outbox = LogOutbox(self.take)

    def take(self, sent):
        self.lines += sent.lines
        self.lost_count += sent.lost_count

    def texts(self):
        self.outbox.close(30)
        return [line.message for line in self.lines]


@pytest.fixture
def kept():
    factory = logging.getLogRecordFactory()
    add_to_log_records()
    server = KeptLines()
    capture_lines(server.outbox)
    yield server
    release_lines(server.outbox)
    server.outbox.close(30)
    logging.setLogRecordFactory(factory)


def in_model(kept, work, model="scale"):
    """Runs something on a thread that works for a model."""
    capture_lines(kept.outbox)  # pytest has replaced the streams after the fixture was made

    def run():
        set_line_source(LineSource(model, kept.outbox))
        work()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def test_lines_that_a_model_prints_are_sent_and_printed(kept, capsys):
    in_model(kept, lambda: print("one\ntwo", 3))
    in_model(kept, lambda: print("wrong", file=sys.stderr))

    assert kept.texts() == ["one", "two 3", "wrong"]
    assert [line.place for line in kept.lines] == ["stdout", "stdout", "stderr"]
    assert {(line.model, line.level) for line in kept.lines} == {("scale", logging.INFO)}
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("one\ntwo 3\n", "wrong\n")


def test_line_has_the_ids_of_its_requests(kept):
    def work():
        with request_ids({0: "order-17", 1: "order-18"}):
            print("two of them")

    in_model(kept, work)

    kept.texts()
    assert kept.lines[0].request_ids == ["order-17", "order-18"]


def test_prints_of_the_program_around_models_are_not_sent(kept, capsys):
    capture_lines(kept.outbox)
    print("mine")

    assert kept.texts() == []
    assert capsys.readouterr().out == "mine\n"


def test_tasks_and_their_threads_work_for_the_model(kept):
    async def work():
        await asyncio.to_thread(print, "in a thread")
        await asyncio.create_task(say())

    async def say():
        print("in a task")

    in_model(kept, lambda: asyncio.run(work()))

    assert kept.texts() == ["in a thread", "in a task"]


def test_progress_bar_leaves_its_last_state(kept):
    in_model(kept, lambda: sys.stderr.write("10 %\r50 %\r100 %\n\n"))

    assert kept.texts() == ["100 %"]


def test_record_that_a_handler_prints_is_sent_once(kept):
    capture_lines(kept.outbox)
    log = logging.getLogger("tests.log_capture")
    handler = logging.StreamHandler(sys.stderr)
    log.addHandler(handler)
    try:
        in_model(kept, lambda: log.warning("%d of %d", 1, 2))
    finally:
        log.removeHandler(handler)

    assert isinstance(handler.stream, CapturedStream)
    assert kept.texts() == ["1 of 2"]
    assert kept.lines[0].level == logging.WARNING
    assert kept.lines[0].place.startswith("test_log_capture.py:")


def test_traceback_of_a_record_is_sent(kept):
    def work():
        try:
            int("deep inside")
        except ValueError:
            logging.getLogger("tests.log_capture").exception("it failed")

    in_model(kept, work)

    assert kept.texts() == ["it failed"]
    assert kept.lines[0].exception.startswith("Traceback")
    assert "deep inside" in kept.lines[0].exception


def test_our_own_records_are_sent_from_any_thread_and_others_are_not(kept):
    logging.getLogger("pytriton.binding").error("the server ended")
    logging.getLogger("users.program").error("something of mine")

    assert kept.texts() == ["the server ended"]
    assert kept.lines[0].model == ""


def test_record_with_wrong_arguments_stops_nothing(kept, monkeypatch):
    monkeypatch.setattr(logging, "raiseExceptions", False)
    in_model(kept, lambda: logging.getLogger("tests.log_capture").error("%d", "text"))
    in_model(kept, lambda: print("after"))

    assert kept.texts() == ["after"]


def test_models_of_two_servers_in_one_process_keep_apart(kept):
    other = KeptLines()
    capture_lines(other.outbox)
    in_model(kept, lambda: print("first"))
    in_model(other, lambda: print("second"))
    release_lines(other.outbox)

    assert (kept.texts(), other.texts()) == (["first"], ["second"])


def test_streams_are_given_back_when_the_last_server_ends(monkeypatch):
    # Other tests may keep servers running in this process, which capture its streams.
    monkeypatch.setattr(log_capture, "_open", {})
    monkeypatch.setattr(log_capture, "observe_log_records", lambda observer: None)
    monkeypatch.setattr(sys, "stdout", before := io.StringIO())
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    kept, other = KeptLines(), KeptLines()
    capture_lines(kept.outbox)
    capture_lines(other.outbox)
    release_lines(kept.outbox)
    assert isinstance(sys.stdout, CapturedStream)
    release_lines(other.outbox)
    release_lines(other.outbox)

    assert sys.stdout is before


def test_stream_that_somebody_else_has_replaced_stays(kept):
    capture_lines(kept.outbox)
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream):
        release_lines(kept.outbox)
        assert sys.stdout is stream


def test_captured_stream_is_otherwise_as_it_was(kept):
    capture_lines(kept.outbox)
    stream = sys.stdout

    assert stream.encoding == stream.stream.encoding
    assert stream.isatty() == stream.stream.isatty()
    with pytest.raises(TypeError):
        stream.write(b"bytes")


def test_slow_server_costs_lines_and_no_time():
    is_open = threading.Event()
    taken = []

    def take(sent):
        is_open.wait(DEADLINE_S)
        taken.append(sent)

    outbox = LogOutbox(take)
    added = 0
    for number in range(3 * log_lines.MAX_LINES):
        if outbox.has_room():
            outbox.add(SentLine(0.0, logging.INFO, "stdout", str(number)))
            added += 1
    is_open.set()
    while outbox._lines:  # what was dropped is told with the next message
        outbox._is_awake.set()
    assert outbox.has_room()
    outbox.add(SentLine(0.0, logging.INFO, "stdout", "last"))
    outbox.close(30)

    assert added < 3 * log_lines.MAX_LINES
    assert sum(len(each.lines) for each in taken) == added + 1
    assert sum(each.lost_count for each in taken) == 3 * log_lines.MAX_LINES - added
    assert taken[-1].lines[-1].message == "last"


def test_outbox_ends_with_its_server():
    def refuse(sent):
        raise ConnectionError

    outbox = LogOutbox(refuse)
    outbox.add(SentLine(0.0, logging.INFO, "stdout", "first"))
    outbox._thread.join(DEADLINE_S)

    assert not outbox._thread.is_alive()
    assert not outbox.has_room()


def test_long_line_is_cut():
    kept = KeptLines()
    kept.outbox.add(SentLine(0.0, logging.INFO, "stdout", "x" * 10_000))

    assert kept.texts() == ["x" * log_lines.MAX_CHARACTERS + " ..."]


def test_line_that_is_shown_in_another_way_is_sent(kept, capsys):
    capture_lines(kept.outbox)
    keep_line(logging.ERROR, "it cannot be served", "Traceback of it")

    assert kept.texts() == ["it cannot be served"]
    assert (kept.lines[0].place, kept.lines[0].exception) == (
        "test_log_capture.py",
        "Traceback of it",
    )
    assert capsys.readouterr().err == ""


def test_thread_may_print_while_streams_are_released():
    # In a process of its own: a stream that `print` still used ended the whole process.
    source = """
import threading
from pytriton.base.log_capture import capture_lines, release_lines
from pytriton.base.log_lines import LogOutbox

outbox, is_over = LogOutbox(lambda sent: None), threading.Event()

def print_often():
    while not is_over.is_set():
        print("", end="", flush=True)

printing = threading.Thread(target=print_often)
printing.start()
for _ in range(20_000):
    capture_lines(outbox)
    release_lines(outbox)
is_over.set()
printing.join()
outbox.close(30)
"""
    subprocess.run([sys.executable, "-c", source], check=True)
