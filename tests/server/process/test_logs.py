# SPDX-License-Identifier: Apache-2.0
"""What the server process writes to its log."""

from __future__ import annotations

import io
import json
import logging
import os
import re

import pytest

from pytriton.base.log_switches import LogSwitches
from pytriton.serving.server.options.server_options import LogOptions
from pytriton.serving.server.process.logs import (
    ESCAPE_VARIABLE,
    ConsoleHandler,
    TritonFormatter,
    formatter_factory,
    log_table,
    quoted,
    set_up_logging,
    use_log_switches,
)

HEAD = r"[IWE]\d{4} \d{2}:\d{2}:\d{2}\.\d{6} \d+ test_logs\.py:\d+\]"


class Terminal(io.StringIO):
    """A stream that a person looks at."""

    def isatty(self):
        return True


@pytest.fixture
def root():
    """The root logger, as it was before once the test is over."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield root
    for handler in root.handlers[:]:
        if handler not in handlers:
            root.removeHandler(handler)
            handler.close()
    root.setLevel(level)


@pytest.fixture
def log(root, tmp_path):
    """Sets the log up; what was written to it, line by line, comes from the function it gives."""
    path = tmp_path / "server.log"

    def start(**settings):
        set_up_logging(LogOptions(file=str(path), **settings))
        return lambda: path.read_text().splitlines()

    return start


logger = logging.getLogger("pytriton.test")
FORGED = 'x\nE0101 00:00:00.000000 1 a.py:1] "forged\x1b[31m\u2028\x7f'
SHOWN = r"x\nE0101 00:00:00.000000 1 a.py:1] \"forged\u001b[31m\u2028\u007f"


def record(message="served", level=logging.INFO, **attributes):
    fields = {"name": "pytriton.x", "levelno": level, "msg": message, "created": 1767323045.678901}
    fields |= {"process": 42, "filename": "model.py", "lineno": 7}
    return logging.makeLogRecord(fields | attributes)


def refuse(text):
    raise ValueError(text)


@pytest.mark.parametrize(
    "level, letter",
    [
        (logging.DEBUG, "I"),
        (logging.INFO, "I"),
        (logging.WARNING, "W"),
        (logging.ERROR, "E"),
        (logging.CRITICAL, "E"),
    ],
)
def test_line_is_tritons(level, letter):
    line = TritonFormatter().format(record(level=level))

    assert line == f'{letter}0102 03:04:05.678901 42 model.py:7] "served"'


def test_iso_line_is_tritons():
    line = TritonFormatter("ISO8601").format(record())

    assert line == '2026-01-02T03:04:05Z I 42 model.py:7] "served"'


def test_message_is_written_as_it_is_where_that_is_asked_for(monkeypatch):
    monkeypatch.setenv(ESCAPE_VARIABLE, "0")
    assert TritonFormatter().format(record('a "b"\nc')).endswith('model.py:7] a "b"\nc')


def test_line_names_the_process_and_who_logged_it(log):
    lines = log()
    logger.info("served %s", "it")

    (line,) = lines()
    assert re.fullmatch(HEAD + ' "served it"', line)
    assert line.split()[2] == str(os.getpid())


def test_text_of_a_client_stays_on_its_line(log):
    lines = log()
    logger.error("no model %s", FORGED)

    (line,) = lines()
    assert line.endswith(f'] "no model {SHOWN}"')


def test_text_beside_a_traceback_stays_on_its_line_too(log):
    lines = log()
    try:
        refuse(FORGED)
    except ValueError:
        logger.exception("no model %s", FORGED)

    first, *rest = lines()
    assert first.endswith(f'{SHOWN}"')
    assert rest[0] == "  Traceback (most recent call last):"
    assert all(line.startswith("  ") for line in rest)
    assert any('File "' in line for line in rest)


@pytest.mark.parametrize("text", ["", "plain", 'a "b" \\ c', "tab\t", "\ud800", "🙂", FORGED])
def test_quoted_text_is_a_json_string(text):
    assert json.loads(f'"{quoted(text)}"') == text


def test_table_follows_its_line_as_it_is(log):
    lines = log()
    log_table(logger, '+---+\n| "a" |\n+---+\n')

    first, *rest = lines()
    assert re.fullmatch(HEAD + " ", first)
    assert rest == ["+---+", '| "a" |', "+---+", ""]


@pytest.mark.parametrize(
    "settings, letters",
    [
        ({"verbose": 1}, "dIWE"),
        ({"info": True}, "IWE"),
        ({"info": False}, "WE"),
        ({"info": False, "warning": False}, "E"),
        ({"warning": False}, "IE"),
        ({"error": False}, "IW"),
        ({"info": False, "warning": False, "error": False}, ""),
    ],
)
def test_levels_are_those_that_were_asked_for(log, settings, letters):
    lines = log(**settings)
    for letter, name in zip("dIWE", ("debug", "info", "warning", "error"), strict=True):
        getattr(logger, name)(letter)

    assert [line[-2] for line in lines()] == list(letters)


def console(out, err, live_line=None):
    handler = ConsoleHandler(out, err, live_line)
    handler.set_formatters(formatter_factory(LogSwitches()))
    for level in (logging.INFO, logging.WARNING, logging.ERROR):
        handler.emit(record(logging.getLevelName(level), level))


def test_console_has_warnings_and_errors_apart():
    out, err = io.StringIO(), io.StringIO()
    console(out, err)

    assert [line.split('"')[1] for line in out.getvalue().splitlines()] == ["INFO"]
    assert [line.split('"')[1] for line in err.getvalue().splitlines()] == ["WARNING", "ERROR"]


def test_console_has_colours_on_a_terminal_only(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    out, err = io.StringIO(), Terminal()
    console(out, err)

    assert "\x1b[" not in out.getvalue()
    assert [line[:5] for line in err.getvalue().splitlines()] == ["\x1b[33m", "\x1b[31m"]


@pytest.mark.parametrize("name, value", [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_console_has_no_colours_where_nobody_wants_them(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    err = Terminal()
    console(io.StringIO(), err)

    assert "\x1b[" not in err.getvalue()


def test_console_writes_around_the_live_line():
    out = io.StringIO()

    class LiveLine:
        def hide(self):
            out.write("<")

        def show(self):
            out.write(">\n")

    console(out, out, LiveLine())

    assert [line[0] + line[-1] for line in out.getvalue().splitlines()] == ['<"', ">>"] * 3


def test_log_goes_to_the_handler_that_is_given_unless_a_file_is(root):
    out = io.StringIO()
    set_up_logging(LogOptions(info=False), ConsoleHandler(out, out))
    logger.info("quiet")
    logger.warning("loud")

    assert [line[-6:] for line in out.getvalue().splitlines()] == ['"loud"']


def test_traceback_of_another_process_follows_its_line_and_cannot_forge_one():
    text = f"Traceback (most recent call last):\n  File\nValueError: {FORGED}"
    lines = TritonFormatter().format(record("failed", exc_text=text)).splitlines()

    assert lines[0].endswith('"failed"')
    assert lines[1:] == [
        "  Traceback (most recent call last):",
        "    File",
        "  ValueError: x",
        '  E0101 00:00:00.000000 1 a.py:1] "forged\\u001b[31m',
        "  \\u007f",
    ]


def test_settings_change_while_the_log_is_written(log):
    lines = log()
    logger.debug("hidden")
    use_log_switches(LogSwitches(info=False, verbose=1, format="ISO8601"))
    logger.info("hidden")
    logger.debug("shown")
    use_log_switches(LogSwitches(warning=False))
    logger.warning("hidden")
    logger.error("an error")

    first, second = lines()
    assert re.fullmatch(r'\d{4}-\d{2}-\d{2}T[\d:]{8}Z I \d+ test_logs.py:\d+] "shown"', first)
    assert re.fullmatch(HEAD + ' "an error"', second)


def test_settings_change_nothing_in_a_process_that_has_another_log(root):
    level = root.level
    use_log_switches(LogSwitches(info=False, warning=False))

    assert root.level == level


@pytest.mark.parametrize(
    "ids, beginning",
    [
        ([], ""),
        (["a"], "[request id: a] "),
        (["a", "b", "and 3 more"], "[request ids: a, b, and 3 more] "),
        ([FORGED], f"[request id: {SHOWN}] "),
    ],
)
def test_line_begins_with_the_ids_of_its_requests(ids, beginning):
    line = TritonFormatter().format(record("done", triton_request_ids=ids))

    assert line == f'I0102 03:04:05.678901 42 model.py:7] "{beginning}done"'


def test_json_line_has_all_fields():
    line = formatter_factory(LogSwitches(format="json"))(None).format(
        record(FORGED, logging.WARNING, triton_request_ids=["a", FORGED], exc_text="Traceback\nx")
    )

    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2026-01-02T03:04:05.678901Z",
        "level": "WARNING",
        "pid": 42,
        "file": "model.py",
        "line": 7,
        "message": FORGED,
        "request_ids": ["a", FORGED],
        "exception": "Traceback\nx",
    }


@pytest.mark.parametrize(
    "level, name",
    [
        (logging.DEBUG, "VERBOSE"),
        (logging.INFO, "INFO"),
        (logging.WARNING, "WARNING"),
        (logging.CRITICAL, "ERROR"),
    ],
)
def test_json_line_has_only_fields_with_a_value(level, name):
    line = formatter_factory(LogSwitches(format="json"))(Terminal()).format(record("\ud800", level))

    entry = json.loads(line)
    assert list(entry) == ["time", "level", "pid", "file", "line", "message"]
    assert entry["level"] == name
    assert entry["message"] == "\ud800"


def test_json_log_has_exceptions_and_tables_on_one_line(log):
    lines = log(format="json")
    try:
        refuse(FORGED)
    except ValueError:
        logger.exception("no model")
    log_table(logger, "+---+\n| a |\n+---+\n")

    first, second = (json.loads(line) for line in lines())
    assert first["message"] == "no model"
    assert first["exception"].startswith("Traceback (most recent call last):\n")
    assert second["message"] == "+---+\n| a |\n+---+\n"
