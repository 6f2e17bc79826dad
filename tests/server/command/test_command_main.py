# SPDX-License-Identifier: Apache-2.0
"""The `tritonserver` command as a person meets it, before anything is served."""

from __future__ import annotations

import logging

import pytest

from pytriton.serving.server.command.arguments import help_page
from pytriton.serving.server.command.run import run_command, without_secrets


@pytest.fixture(autouse=True)
def root_logger():
    """Leaves logging as it was."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    for handler in root.handlers[:]:
        if handler not in handlers:
            root.removeHandler(handler)
            handler.close()
    root.setLevel(level)


async def build(options, loop):
    pytest.fail("nothing was to be served")


def run(arguments):
    return run_command(arguments, lambda options: build)


def test_help_is_what_was_asked_for(capsys):
    assert run(["--help"]) == 0
    assert capsys.readouterr() == (help_page(), "")


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["junk"], "Unexpected argument: junk"),
        (["--bogus"], "tritonserver: unrecognized option '--bogus'"),
        (
            ["--http-port=abc"],
            (
                'Bad option: "--http-port".\n'
                "Expected an integer from 0 to 65535 for --http-port, got 'abc'"
            ),
        ),
        (
            ["--http-port=70000"],
            (
                'Bad option: "--http-port".\n'
                "Expected an integer from 0 to 65535 for --http-port, got '70000'"
            ),
        ),
        (
            ["--rate-limit=foo"],
            (
                'Bad option: "--rate-limit".\n'
                "invalid argument for --rate-limit: expected one of off, execution_count, got 'foo'"
            ),
        ),
        (
            ["--load-model=a"],
            (
                "Error: Use of '--load-model' requires setting "
                "'--model-control-mode=explicit' as well."
            ),
        ),
        (
            ["--http-port=7", "--grpc-port=7"],
            (
                "The server cannot listen to HTTP requests and GRPC requests at the same address "
                "and port 0.0.0.0:7"
            ),
        ),
        (
            ["--http-max-input-size=0"],
            (
                'Bad option: "--http-max-input-size".\n'
                "Error: --http-max-input-size must be greater than 0."
            ),
        ),
        (
            ["--http-restricted-api=foo:a=b"],
            "Bad option: \"--http-restricted-api\".\nunknown restricted api 'foo' ",
        ),
    ],
)
def test_bad_command_line_is_refused_without_a_long_usage(capsys, arguments, expected):
    assert run(arguments) == 1
    assert capsys.readouterr() == ("", f"{expected}\n'tritonserver --help' lists all options.\n")


def test_log_file_that_cannot_be_written_is_refused(capsys, tmp_path):
    assert run([f"--log-file={tmp_path}/none/server.log"]) == 1
    assert 'Bad option: "--log-file".\nthe log cannot be written: ' in capsys.readouterr().err


def test_repository_is_needed(capsys):
    assert run([]) == 1
    assert capsys.readouterr() == (
        "",
        "error: creating server: Invalid argument - --model-repository must be specified\n",
    )


def test_warnings_are_logged_as_everything_is(capsys):
    run(["--sagemaker-thread-count=3", "--log-format=ISO8601", "--trace-rate=5"])

    warnings = capsys.readouterr().err.splitlines()[:2]
    assert [warning.split("] ")[1] for warning in warnings] == [
        '"--sagemaker-thread-count has no effect on this server"',
        "\"'--trace-rate' has been deprecated, please use '--trace-config=rate=5' instead\"",
    ]


@pytest.mark.parametrize(
    "arguments, shown",
    [
        (["--page-token=hush", "--id=a"], ["--page-token=...", "--id=a"]),
        (["--page-token", "hush", "--id", "a"], ["--page-token", "...", "--id", "a"]),
        (["--id=a"], ["--id=a"]),
    ],
)
def test_title_of_the_process_has_no_token(arguments, shown):
    assert without_secrets(arguments) == shown
