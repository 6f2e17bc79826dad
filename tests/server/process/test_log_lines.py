# SPDX-License-Identifier: Apache-2.0
"""Lines about requests: the texts of records of `logging`, in the same order, in few writes."""

from __future__ import annotations

import logging
import os

import pytest

from pytriton.base.log_lines import LogLines, ServerLine
from pytriton.base.log_switches import LOG_FORMATS, LogSwitches
from pytriton.serving.server.process.kept_lines import LogRing
from pytriton.serving.server.process.log_lines import LineLog, write_lines
from pytriton.serving.server.process.logs import (
    ESCAPE_VARIABLE,
    ConsoleHandler,
    LogFile,
    format_lines,
    formatter_factory,
)

NAME = "tests.log_lines"
TEXTS = ["plain", 'with "quotes" and \\', "two\nlines", "ä \x07 \udcff", "%s of 100 %"]
LINES = LogLines(
    NAME,
    "/code/served.py",
    4711,
    [
        ServerLine(
            1_700_000_000.25 + index, 10 + index, text, [f'a{text}"', "b"] if index % 2 else []
        )
        for index, text in enumerate(TEXTS)
    ],
)


class Loop:
    def __init__(self):
        self.due = []

    def call_soon(self, callback):
        self.due.append(callback)

    def run(self):
        due, self.due = self.due, []
        for callback in due:
            callback()


@pytest.fixture
def logger():
    logger = logging.getLogger(NAME)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    yield logger
    logger.propagate = True
    for handler in logger.handlers[:]:
        logger.removeHandler(handler)
        handler.close()


@pytest.fixture
def loop():
    return Loop()


@pytest.fixture
def lines(loop):
    return LineLog(NAME, __file__, loop)


def log_file(path, **switches):
    handler = LogFile(str(path), logging.Formatter())
    switches = LogSwitches(**{"verbose": 1, **switches})
    handler.use(switches, formatter_factory(switches))
    return handler


class Records(logging.Handler):
    """A handler of another program."""

    def __init__(self):
        super().__init__()
        self.texts = []

    def emit(self, record):
        self.texts.append((record.getMessage(), record.levelname, record.triton_request_ids))


@pytest.mark.parametrize("is_quoted", [True, False])
@pytest.mark.parametrize("name", LOG_FORMATS)
def test_lines_have_the_texts_of_their_records(monkeypatch, name, is_quoted):
    if not is_quoted:
        monkeypatch.setenv(ESCAPE_VARIABLE, "0")
    formatter = formatter_factory(LogSwitches(format=name))(None)

    expected = "\n".join(formatter.format(record) for record in LINES.records())
    assert format_lines(formatter, LINES) == expected
    assert expected.count("4711") == len(TEXTS)


def test_lines_of_a_formatter_of_others_are_those_of_its_records():
    formatter = logging.Formatter("%(filename)s %(lineno)d %(message)s")

    assert format_lines(formatter, LINES).startswith("served.py 10 plain\nserved.py 11 with")


def test_lines_of_an_iteration_are_one_write(monkeypatch, logger, lines, loop, tmp_path):
    logger.addHandler(log_file(tmp_path / "log"))
    writes = []
    write = os.write
    monkeypatch.setattr(os, "write", lambda *arguments: writes.append(1) or write(*arguments))
    lines.add("first", "one")
    lines.add_all("others", ["", "two"])
    assert not writes
    loop.run()
    lines.add("later")
    loop.run()

    assert len(writes) == 2
    endings = [line.partition("] ")[2] for line in (tmp_path / "log").read_text().splitlines()]
    assert endings == [
        '"[request id: one] first"', '"others"', '"[request id: two] others"', '"later"',
    ]  # fmt: skip


def test_other_records_come_after_the_lines_before_them(logger, lines, loop, tmp_path, capsys):
    logger.addHandler(log_file(tmp_path / "log"))
    ring = LogRing()
    logger.addHandler(ring)
    lines.add("first")
    logger.warning("second")
    lines.add("third")
    loop.run()

    endings = [line.partition("] ")[2] for line in (tmp_path / "log").read_text().splitlines()]
    assert endings == ['"first"', '"second"', '"third"']
    assert [(each.number, each.text) for each in ring.after(0)] == [
        (1, "first"), (2, "second"), (3, "third"),
    ]  # fmt: skip
    assert [each.text for each in ring.after(2)] == ["third"]


def test_two_logs_of_a_thread_keep_their_order(logger, lines, loop):
    records = Records()
    logger.addHandler(records)
    other = LineLog(NAME, __file__, loop)
    lines.add("first")
    other.add("second")
    lines.add("third")
    loop.run()

    assert [text for text, *_ in records.texts] == ["first", "second", "third"]


def test_lines_are_written_at_the_end_of_the_program(logger, lines, tmp_path):
    handler = log_file(tmp_path / "log")
    logger.addHandler(handler)
    lines.add("last")
    handler.flush()  # as `logging.shutdown` does

    assert '"last"' in (tmp_path / "log").read_text()


def test_handlers_of_others_get_records(logger, lines, loop):
    records = Records()
    logger.addHandler(records)
    lines.add("text", "id")
    loop.run()

    assert records.texts == [("text", "DEBUG", ["id"])]


@pytest.mark.parametrize("is_file", [True, False])
def test_lines_that_nobody_wants_are_not_written(logger, tmp_path, capfd, is_file):
    path = tmp_path / "log"
    handler = log_file(path, verbose=0) if is_file else ConsoleHandler(None, None)
    if not is_file:
        handler.use(LogSwitches(), formatter_factory(LogSwitches()))
    logger.addHandler(handler)
    write_lines(LINES)
    assert not is_file or not path.read_text()

    logger.setLevel(logging.INFO)
    handler.use(LogSwitches(verbose=1), formatter_factory(LogSwitches()))
    write_lines(LINES)
    assert not is_file or not path.read_text()
