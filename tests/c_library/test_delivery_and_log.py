# SPDX-License-Identifier: Apache-2.0
"""The thread of callbacks, and the log that all servers of a process share."""

from __future__ import annotations

import logging
import threading

import pytest

from pytriton.base.errors import InvalidArgumentError
from pytriton.inprocess.c_library.servers import Delivery
from pytriton.inprocess.c_library.start import Log
from pytriton.runtime.native_backend.callbacks import exported

_INFO, _WARN, _ERROR, _VERBOSE = range(4)


def test_calls_are_made_in_order_on_one_thread(caplog):
    delivery, seen = Delivery(), []
    delivery.start()
    for number in range(3):
        delivery.add(lambda number=number: seen.append((number, threading.get_ident())))
        delivery.add(lambda: 1 / 0)
    delivery.add(lambda: seen.append(delivery.is_this_thread))
    delivery.stop()

    assert [number for number, _ in seen[:3]] == [0, 1, 2]
    assert len({thread for _, thread in seen[:3]}) == 1
    assert seen[3] is True
    assert not delivery.is_this_thread
    assert caplog.text.count("a response could not be delivered") == 3


class Lines:
    """A log in a file, and its functions by name."""

    def __init__(self, log: Log, path) -> None:
        self._functions = exported(log)
        self._path = path

    def __call__(self, name: str, *arguments: object) -> object:
        return self._functions[f"TRITONSERVER_{name}"](*arguments)

    def read(self) -> list[str]:
        return [
            line.partition(" ")[2].partition(" ")[2] for line in self._path.read_text().split("\n")
        ]


@pytest.fixture
def lines(tmp_path):
    logger = logging.getLogger("pytriton")
    before = logger.level, logger.propagate, list(logger.handlers)
    log = Log()
    log.open()
    path = tmp_path / "log"
    made = Lines(log, path)
    made("ServerOptionsSetLogFile", 0, str(path).encode())
    yield made
    made("ServerOptionsSetLogFile", 0, b"")
    logger.setLevel(before[0])
    logger.propagate = before[1]
    logger.handlers[:] = before[2]


def test_lines_of_an_application_name_its_file(lines):
    lines("LogMessage", _WARN, b"/some/where/program.c", 7, b'a "text"')

    assert lines.read()[0].endswith(r' program.c:7] "a \"text\""')


def test_settings_hold_at_once(lines):
    lines("ServerOptionsSetLogInfo", 0, False)
    lines("LogMessage", _INFO, b"a.c", 1, b"hidden")
    lines("LogMessage", _VERBOSE, b"a.c", 1, b"hidden")
    lines("ServerOptionsSetLogVerbose", 0, 1)
    lines("LogMessage", _VERBOSE, b"a.c", 1, b"shown")

    enabled = [lines("LogIsEnabled", level) for level in (_INFO, _WARN, _ERROR, _VERBOSE, 9)]
    assert enabled == [False, True, True, True, False]
    assert len(lines.read()) == 2
    lines("ServerOptionsSetLogWarn", 0, False)
    lines("ServerOptionsSetLogError", 0, False)
    assert not lines("LogIsEnabled", _ERROR)


def test_format_of_times_can_be_chosen(lines):
    lines("ServerOptionsSetLogFormat", 0, 1)
    lines("LogMessage", _ERROR, b"a.c", 1, b"text")

    assert lines.read()[0].endswith('a.c:1] "text"')
    with pytest.raises(InvalidArgumentError, match="unknown log format '5'"):
        lines("ServerOptionsSetLogFormat", 0, 5)


def test_wrong_level_and_file_are_refused(lines):
    with pytest.raises(InvalidArgumentError, match="unknown logging level '9'"):
        lines("LogMessage", 9, b"a.c", 1, b"text")
    with pytest.raises(InvalidArgumentError, match=r"failed opening log file: .*No such file"):
        lines("ServerOptionsSetLogFile", 0, b"/no/such/folder/log")
