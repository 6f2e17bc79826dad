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

from pytriton.server.options.log_options import LogOptions
from pytriton.server.process.log_output import ConsoleHandler, LogFile
from pytriton.server.process.logs import TritonFormatter

FULL = OSError(errno.ENOSPC, "No space left on device")
SCRIPT = """
import logging, sys
from pytriton.server.options.log_options import LogOptions
from pytriton.server.process.log_output import ConsoleHandler, discard_unwritable_output
from pytriton.server.process.logs import TritonFormatter, set_up_logging
formatters = TritonFormatter.factory(LogOptions())
set_up_logging(LogOptions(file=sys.argv[1]), ConsoleHandler(sys.stdout, sys.stderr, formatters))
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

    def close(self):
        raise FULL


def record(message, level=logging.INFO):
    return logging.makeLogRecord({"levelno": level, "msg": message, "filename": "a.py"})


@pytest.fixture
def disk(tmp_path):
    return Disk()


@pytest.fixture
def file(disk, tmp_path):
    handler = LogFile(str(tmp_path / "server.log"), TritonFormatter(LogOptions()))
    handler._file.close()
    handler._file = disk
    yield handler
    handler.close()


def texts(content):
    return [line.partition("] ")[2] for line in content.splitlines()]


def test_file_is_appended_to(tmp_path):
    path = tmp_path / "server.log"
    path.write_text("before\n")
    handler = LogFile(str(path), TritonFormatter(LogOptions()))
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
    handler = ConsoleHandler(out, err, TritonFormatter.factory(LogOptions()))
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
    handler = ConsoleHandler(out, out, TritonFormatter.factory(LogOptions()))
    handler.emit(record("lost"))
    handler.emit(record("lost", logging.ERROR))

    assert capsys.readouterr() == ("", "")


def test_text_that_a_stream_has_no_letters_for_is_escaped():
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    ConsoleHandler(out, out, TritonFormatter.factory(LogOptions())).emit(record("é"))

    assert out.buffer.getvalue().endswith(b'"\\xe9"\n')


def test_mistake_of_who_logs_is_shown_with_its_place(file, capsys):
    wrong = record("%d")
    wrong.args = ("text",)
    file.emit(wrong)

    assert "TypeError" in capsys.readouterr().err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")  # noqa: PTH110
@pytest.mark.parametrize("where", ["file", "stdout", "closed stdout"])
def test_process_without_room_for_its_log_ends_in_order(where):
    command = [sys.executable, "-c", SCRIPT, "/dev/full" if where == "file" else ""]
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE if where == "closed stdout" else full,
            stderr=subprocess.PIPE,
            text=True,
        )
    if process.stdout is not None:
        process.stdout.close()
    with process:
        said = process.stderr.read().splitlines()

    assert process.returncode == 0
    assert len(said) == (1 if where == "file" else 2)
    assert "cannot be written to" in said[0]
