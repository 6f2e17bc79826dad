# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import inspect
import re

import pytest
from triton_python_backend_utils import Logger


def here():
    return inspect.currentframe().f_back.f_lineno


@pytest.mark.parametrize(
    "write, level",
    [
        (Logger.log_info, "INFO"),
        (Logger.log_warn, "WARNING"),
        (Logger.log_error, "ERROR"),
        (Logger.log_verbose, "VERBOSE"),
        (Logger.log, "INFO"),
    ],
)
def test_line_goes_to_the_server_with_its_level_and_place(runtime, write, level):
    line_before = here()
    write("hello")

    assert runtime.lines == [(level, "hello", "test_logger.py", line_before + 1)]


@pytest.mark.parametrize("level", ["INFO", "WARNING", "ERROR", "VERBOSE"])
def test_level_can_be_an_argument(runtime, level):
    Logger.log(b"hello", level=getattr(Logger, level))

    assert runtime.lines[0][:2] == (level, "hello")


@pytest.mark.parametrize("arguments", [(5,), (None,), ("x", None), ("x", 1), ("x", "INFO")])
def test_other_types_are_type_errors(runtime, arguments):
    with pytest.raises(TypeError, match="must be"):
        Logger.log(*arguments)


def test_logger_is_not_made():
    with pytest.raises(TypeError, match="used as it is"):
        Logger()


def test_line_without_a_server_goes_to_stderr(capsys):
    Logger.log_warn("careful")

    assert re.fullmatch(
        r"W\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ test_logger\.py:\d+\] careful\n", capsys.readouterr().err
    )
