# SPDX-License-Identifier: Apache-2.0
"""What the server process writes to its log."""

from __future__ import annotations

import logging

import pytest

from pytriton.server.logs import set_up_logging
from pytriton.server.options import LogOptions


@pytest.fixture
def log(tmp_path):
    """Sets the log up; what was written to it, line by line, comes from the function it gives."""
    path = tmp_path / "server.log"
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level

    def start(**settings):
        set_up_logging(LogOptions(file=str(path), **settings))
        return lambda: path.read_text().splitlines()

    yield start
    for handler in root.handlers[:]:
        if handler not in handlers:
            root.removeHandler(handler)
            handler.close()
    root.setLevel(level)


logger = logging.getLogger("pytriton.test")
FORGED = "x\n2026-01-01 00:00:00,000 ERROR 1 pytriton: forged\x1b[31m"


def refuse(text):
    raise ValueError(text)


def test_line_has_time_level_process_and_name(log):
    lines = log(info=True)
    logger.info("served %s", "it")

    (line,) = lines()
    assert line.endswith("pytriton.test: served it")
    assert " INFO " in line


def test_text_of_a_client_stays_on_its_line(log):
    lines = log()
    logger.error("no model %s", FORGED)

    (line,) = lines()
    assert line.endswith(r"no model x\n2026-01-01 00:00:00,000 ERROR 1 pytriton: forged\x1b[31m")


def test_text_beside_a_traceback_stays_on_its_line_too(log):
    lines = log()
    try:
        refuse(FORGED)
    except ValueError:
        logger.exception("no model %s", FORGED)

    first, *rest = lines()
    assert first.endswith(r"forged\x1b[31m")
    assert rest[0] == "  Traceback (most recent call last):"
    assert all(line.startswith("  ") for line in rest)


@pytest.mark.parametrize(
    "settings, levels",
    [
        ({"verbose": 1}, ["DEBUG", "INFO", "WARNING", "ERROR"]),
        ({"info": True}, ["INFO", "WARNING", "ERROR"]),
        ({"info": False}, ["WARNING", "ERROR"]),
        ({"info": False, "warning": False}, ["ERROR"]),
    ],
)
def test_level_is_what_was_asked_for(log, settings, levels):
    lines = log(**settings)
    for name in ("debug", "info", "warning", "error"):
        getattr(logger, name)("text")

    assert [line.split()[2] for line in lines()] == levels
