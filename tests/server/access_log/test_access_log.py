# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import errno
import logging
import os
import threading

import pytest

from pytriton.serving.server.access_log.access_log import AccessLog, Destination, grouped
from pytriton.serving.server.access_log.setup import check_destination
from pytriton.serving.server.options.server_options import AccessLogOptions
from pytriton.testing import FakeClock
from tests.fakes import FakeLoop
from tests.server.access_log.test_access_lines import ENTRY


class FullDisk:
    is_full = True

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def write_lines(self, lines) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "no space")
        self.lines += lines

    def close(self) -> None:
        pass


def test_lines_are_grouped_without_being_cut():
    assert list(grouped([b"aa\n", b"bb\n", b"cccccccc\n", b"d\n"], 6)) == [
        b"aa\nbb\n",
        b"cccccccc\n",
        b"d\n",
    ]
    assert list(grouped([], 6)) == []


def test_file_that_was_moved_is_created_again(tmp_path):
    path, clock = tmp_path / "access.log", FakeClock(start_s=0)
    destination = Destination(str(path), clock)
    destination.write_lines([b"1\n"])
    path.rename(tmp_path / "access.log.1")
    destination.write_lines([b"2\n"])
    clock.advance(2)
    destination.write_lines([b"3\n"])
    destination.close()

    assert (tmp_path / "access.log.1").read_bytes() == b"1\n2\n"
    assert path.read_bytes() == b"3\n"


def test_pipe_without_a_reader_is_an_error_until_it_has_one(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    destination = Destination(str(path))
    with pytest.raises(OSError, match="nobody reads this pipe"):
        destination.write_lines([b"1\n"])
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    destination.write_lines([b"2\n"])

    assert os.read(reader, 10) == b"2\n"
    os.close(reader)
    destination.close()


def test_entries_are_written_together_and_in_order(tmp_path):
    path, loop = tmp_path / "access.log", FakeLoop()
    log = AccessLog(AccessLogOptions(file=str(path)), loop)
    log.add(ENTRY)
    log.add(ENTRY._replace(request_id="8"))

    assert loop.timer_count == 1
    assert not path.exists()
    loop.clock.jump()
    log.add(ENTRY._replace(request_id="9"))
    log.close()
    assert [line.split()[-2] for line in path.read_text().splitlines()] == ["7", "8", "9"]


def test_lost_lines_are_reported_once_and_counted(caplog):
    disk, loop = FullDisk(), FakeLoop()
    log = AccessLog(AccessLogOptions(file="x", format="json"), loop, disk)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            log._write([ENTRY])
        disk.is_full = False
        log._write([ENTRY])

    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("the access log cannot be written to 'x': [Errno 28] no space")
    assert second == "3 lines of the access log were lost"
    assert len(disk.lines) == 1


def test_lines_are_lost_while_there_is_no_thread_to_write_them(tmp_path, caplog, monkeypatch):
    path, loop = tmp_path / "access.log", FakeLoop()
    log = AccessLog(AccessLogOptions(file=str(path)), loop)
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(threading.Thread, "start", refuse_thread)
        log.add(ENTRY)
        loop.clock.jump()
    log.add(ENTRY._replace(request_id="8"))
    log.close()

    assert [line.split()[-2] for line in path.read_text().splitlines()] == ["8"]
    assert "1 lines of the access log were lost" in caplog.messages


def refuse_thread(_):
    raise RuntimeError("can't start new thread")


def test_server_is_refused_a_file_that_cannot_be_opened(tmp_path):
    with pytest.raises(NotADirectoryError):
        check_destination(AccessLogOptions(file=f"{__file__}/access.log"))
    check_destination(AccessLogOptions())
    check_destination(AccessLogOptions(file="-"))
