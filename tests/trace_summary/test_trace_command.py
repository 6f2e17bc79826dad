# SPDX-License-Identifier: Apache-2.0
"""The command `pytriton trace`."""

from __future__ import annotations

import json

import pytest

from pytriton.__main__ import main
from tests.trace_summary.traces import HTTP_TIMES, request, text_of


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(text_of(request(1, HTTP_TIMES), request(2, HTTP_TIMES, "other")))
    return path


def test_summary_is_printed(file, capsys):
    assert main(["trace", str(file)]) == 0

    printed = capsys.readouterr()
    assert "m (version 1): trace count = 1" in printed.out
    assert "other (version 1): trace count = 1" in printed.out
    assert "trace 1:" not in printed.out
    assert printed.err == ""


def test_several_files_are_one_summary(file, tmp_path, capsys):
    second = tmp_path / "trace.json.1"
    second.write_text(text_of(request(3, HTTP_TIMES)))
    assert main(["trace", str(file), str(second)]) == 0

    assert "m (version 1): trace count = 2" in capsys.readouterr().out


def test_one_model_is_selected(file, capsys):
    assert main(["trace", str(file), "--model", "other", "-t"]) == 0

    printed = capsys.readouterr().out
    assert "trace 2: other (version 1)" in printed
    assert "m (version 1)" not in printed


def test_json_has_the_same_values(file, capsys):
    assert main(["trace", "--json", str(file)]) == 0

    first, _ = json.loads(capsys.readouterr().out)["models"]
    assert (first["model"], first["protocol"], first["count"]) == ("m", "http", 1)
    assert first["times_us"]["queue"] == {
        "avg": 10.0,
        "p50": 10.0,
        "p90": 10.0,
        "p99": 10.0,
        "max": 10.0,
    }
    assert first["composing"] == []


def test_model_without_requests_is_an_error(file, capsys):
    assert main(["trace", str(file), "--model", "none"]) == 1

    expected = f"expected requests for model 'none' in {file}, found none\n"
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize(
    "text, reason",
    [
        (None, "cannot be read: No such file or directory"),
        ("[]", "expected traces in"),
        ("no traces", "is not a file of traces"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path, capsys, text, reason):
    path = tmp_path / "trace.json"
    if text is not None:
        path.write_text(text)
    assert main(["trace", str(path)]) == 1

    assert reason in capsys.readouterr().err


def test_file_that_was_cut_is_summarised_with_a_warning(file, capsys):
    file.write_text(file.read_text()[:-30])
    assert main(["trace", str(file)]) == 0

    printed = capsys.readouterr()
    assert "m (version 1): trace count = 1" in printed.out
    assert printed.err.startswith(f"{file} is incomplete: ")


def test_help_names_the_command(capsys):
    main(["--help"])

    assert "  trace FILE  " in capsys.readouterr().out
