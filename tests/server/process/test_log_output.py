# SPDX-License-Identifier: Apache-2.0
"""A log that cannot be written: it is said once, and the server goes on."""

from __future__ import annotations

import errno
import io
import logging
import os
import subprocess
import sys

import pytest

from pytriton.base.log_switches import LogSwitches
from pytriton.serving.server.process.logs import (
    ConsoleHandler,
    LogFile,
    TritonFormatter,
    formatter_factory,
)
from pytriton.testing import FakeClock

FULL = OSError(errno.ENOSPC, "No space left on device")
SCRIPT = """
import logging, sys
from pytriton.serving.server.options.server_options import LogOptions
from pytriton.serving.server.process.logs import ConsoleHandler
from pytriton.serving.server.process.resources import (
    discard_unwritable_output, open_missing_streams
)
from pytriton.serving.server.process.logs import set_up_logging
open_missing_streams()
set_up_logging(LogOptions(file=sys.argv[1]), ConsoleHandler(sys.stdout, sys.stderr))
for number in range(100):
    logging.info("line %d", number)
logging.warning("the last")
discard_unwritable_output()
"""


class Stream(io.StringIO):
    """A stream that cannot be written while it has an error to raise."""

    error: Exception | None = None

    def write(self, text):
        if self.error is not None:
            raise self.error
        return super().write(text)


class Disk:
    """A file that takes so many bytes more."""

    def __init__(self):
        self.room = 1 << 20
        self.content = b""

    def write(self, data):
        if not self.room:
            raise FULL
        taken = bytes(data[: self.room])
        self.content += taken
        self.room -= len(taken)
        return len(taken)


def console(out, err):
    handler = ConsoleHandler(out, err)
    handler.set_formatters(formatter_factory(LogSwitches()))
    return handler


def record(message, level=logging.INFO):
    return logging.makeLogRecord({"levelno": level, "msg": message, "filename": "a.py"})


@pytest.fixture
def disk(tmp_path):
    return Disk()


@pytest.fixture
def file(disk, tmp_path):
    handler = LogFile(str(tmp_path / "server.log"), TritonFormatter())
    handler.file.write_some = disk.write
    yield handler
    handler.close()


def texts(content):
    return [line.partition("] ")[2] for line in content.splitlines()]


def test_file_is_appended_to(tmp_path):
    path = tmp_path / "server.log"
    path.write_text("before\n")
    handler = LogFile(str(path), TritonFormatter())
    handler.emit(record("é \ud800"))
    handler.close()
    handler.close()

    assert path.read_text().splitlines()[0] == "before"
    assert texts(path.read_text())[1] == '"é \\ud800"'


def test_full_disk_is_said_once_and_what_was_lost_when_there_is_room_again(file, disk, capsys):
    file.emit(record("first"))
    disk.room = 10
    for number in range(50):
        file.emit(record(f"lost {number}"))
    disk.room = 1 << 20
    file.emit(record("again"))
    file.emit(record("and on"))

    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "server.log': [Errno 28] No space left on device; its lines are lost until" in said[0]
    lines = disk.content.decode().splitlines()
    assert texts(lines[0]) == ['"first"']
    assert len(lines[1]) == 10  # as much of a line as there was room for
    assert texts("\n".join(lines[2:])) == [
        '"50 entries of the log were lost here"',
        '"again"',
        '"and on"',
    ]


def test_every_time_that_a_disk_is_full_is_said(file, disk, capsys):
    for _ in range(2):
        disk.room = 0
        file.emit(record("lost"))
        disk.room = 1 << 20
        file.emit(record("written"))

    assert len(capsys.readouterr().err.splitlines()) == 2


def test_stream_that_is_gone_is_said_once_on_the_other():
    out, err = Stream(), Stream()
    handler = console(out, err)
    out.error = BrokenPipeError(errno.EPIPE, "Broken pipe")
    for _ in range(50):
        handler.emit(record("lost"))
    handler.emit(record("seen", logging.WARNING))

    first, second = err.getvalue().splitlines()
    assert first.startswith("the log cannot be written to standard output: [Errno 32] Broken pipe")
    assert texts(second) == ['"seen"']


def test_streams_that_are_both_gone_harm_nobody(capsys):
    out = Stream()
    out.error = ValueError("I/O operation on closed file")
    handler = console(out, out)
    handler.emit(record("lost"))
    handler.emit(record("lost", logging.ERROR))

    assert capsys.readouterr() == ("", "")


def test_text_that_a_stream_has_no_letters_for_is_escaped():
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    console(out, out).emit(record("é"))

    assert out.buffer.getvalue().endswith(b'"\\xe9"\n')


def test_mistake_of_who_logs_is_shown_with_its_place(file, capsys):
    wrong = record("%d")
    wrong.args = ("text",)
    file.emit(wrong)

    assert "TypeError" in capsys.readouterr().err


def unread_pipe():
    """Returns the end to write to of a pipe that nobody reads any more."""
    reading, writing = os.pipe()
    os.close(reading)
    return writing


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")  # noqa: PTH110
@pytest.mark.parametrize("where", ["file", "stdout", "closed stdout"])
def test_process_without_room_for_its_log_ends_in_order(where):
    command = [sys.executable, "-c", SCRIPT, "/dev/full" if where == "file" else ""]
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        output = unread_pipe() if where == "closed stdout" else os.dup(full.fileno())
    process = subprocess.Popen(command, stdout=output, stderr=subprocess.PIPE, text=True)
    os.close(output)
    with process:
        said = process.stderr.read().splitlines()

    assert process.returncode == 0
    assert len(said) == (1 if where == "file" else 2)
    assert "cannot be written to" in said[0]


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def open_log(clock):
    """Opens log files, which are closed after the test."""
    handlers = []

    def start(path):
        handlers.append(LogFile(str(path), TritonFormatter(), clock))
        return handlers[-1]

    yield start
    for handler in handlers:
        handler.close()


@pytest.mark.parametrize("change", ["moved", "deleted", "replaced"])
def test_file_that_is_gone_is_created_again(open_log, clock, tmp_path, change):
    path, old = tmp_path / "server.log", tmp_path / "server.log.1"
    handler = open_log(path)
    handler.emit(record("before"))
    if change == "deleted":
        path.unlink()
    else:
        path.rename(old)
    if change == "replaced":
        path.write_text("")
    handler.emit(record("at once"))
    clock.advance(1.0)
    handler.emit(record("after"))

    assert texts(path.read_text()) == ['"after"']
    if change != "deleted":
        assert texts(old.read_text()) == ['"before"', '"at once"']


def test_file_that_cannot_be_created_again_stays_the_old_one(open_log, clock, tmp_path, capsys):
    folder = tmp_path / "logs"
    folder.mkdir()
    handler = open_log(folder / "server.log")
    moved = tmp_path / "moved"
    folder.rename(moved)
    clock.advance(1.0)
    handler.emit(record("after"))

    assert texts((moved / "server.log").read_text()) == ['"after"']
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_pipe_without_a_reader_stops_nobody_and_is_used_when_one_comes(open_log, tmp_path, capsys):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    handler = open_log(path)
    handler.emit(record("lost"))
    handler.emit(record("lost"))
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    handler.emit(record("read"))
    seen = os.read(reader, 1 << 16).decode()
    os.close(reader)
    handler.emit(record("lost"))
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    handler.emit(record("read again"))
    seen += os.read(reader, 1 << 16).decode()
    os.close(reader)

    assert len(capsys.readouterr().err.splitlines()) == 2
    assert texts(seen) == [
        '"2 entries of the log were lost here"',
        '"read"',
        '"1 entries of the log were lost here"',
        '"read again"',
    ]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_pipe_whose_reader_is_slow_loses_lines_instead_of_time(open_log, tmp_path, capsys):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    handler = open_log(path)
    for _ in range(1000):
        handler.emit(record("x" * 1000))
    size = len(os.read(reader, 1 << 20))
    handler.emit(record("again"))
    last = os.read(reader, 1 << 20).decode().splitlines()
    os.close(reader)

    assert 0 < size < 1000 * 1000
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert texts("\n".join(last))[-1] == '"again"'
    assert "entries of the log were lost here" in last[-2]


def test_process_without_standard_streams_starts_and_logs_to_its_file(tmp_path):
    path = tmp_path / "server.log"
    command = f'exec "{sys.executable}" -c "$SCRIPT" "{path}" >&- 2>&-'
    done = subprocess.run(["sh", "-c", command], env={**os.environ, "SCRIPT": SCRIPT}, check=False)

    assert done.returncode == 0
    assert texts(path.read_text())[-1] == '"the last"'


def test_numbers_of_missing_streams_are_not_given_to_files():
    script = """
import os, sys
from pytriton.serving.server.process.resources import open_missing_streams
open_missing_streams()
with open(sys.argv[1], "wb") as file:
    print(file.fileno() > 2, os.get_inheritable(2), sys.stderr.write("x"))
"""
    command = f'exec "{sys.executable}" -c "$SCRIPT" /dev/null 2>&-'
    done = subprocess.run(
        ["sh", "-c", command],
        env={**os.environ, "SCRIPT": script},
        check=False,
        capture_output=True,
        text=True,
    )

    assert done.stdout == "True True 1\n"
