# SPDX-License-Identifier: Apache-2.0
"""The table of commands, and how `pytriton` finds the one that is named."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from pytriton import __main__
from pytriton.tools.check.command import COMMANDS as CHECKS
from pytriton.tools.commands import table


def test_help_lists_every_command_in_its_group(capsys):
    assert __main__.main(["--help"]) == 0

    shown = capsys.readouterr().out
    places, columns = [], set()
    for group in table.Group:
        rows = [row for row in table.ROWS if row.group is group]
        if rows:
            places.append(shown.index(f"\n{group.value}:\n"))
        for row in rows:
            line = next(line for line in shown.splitlines() if line.startswith(f"  {row.name} "))
            assert line.endswith(f" {row.help}")
            assert len(line) <= 100
            places.append(shown.index(line))
            columns.add(line.index(row.help))
    assert places == sorted(places)
    assert len(columns) == 1


@pytest.mark.parametrize("row", table.ROWS, ids=lambda row: row.name)
def test_command_has_a_module_and_a_help_of_its_own(row, capsys):
    with pytest.raises(SystemExit) as end:
        __main__.main([row.name, "--help"])

    assert end.value.code == 0
    assert capsys.readouterr().out.lower().startswith("usage: pytriton")


def test_every_check_has_a_row():
    assert [row.name for row in table.ROWS if row.passes_name] == list(CHECKS)


@pytest.mark.parametrize(
    "name, hint",
    [
        ("chekc", "Did you mean 'check'?"),
        ("Trace", "Did you mean 'trace'?"),
        ("--vesion", "Did you mean '--version'?"),
        ("zzz", "'zzz' is not a command. 'pytriton --help' lists all commands.\n"),
    ],
)
def test_unknown_command_is_refused_with_names_like_it(name, hint, capsys):
    assert __main__.main([name]) == 2

    printed = capsys.readouterr()
    assert hint in printed.err
    assert printed.out == ""


@pytest.mark.parametrize(
    "line, given, option",
    [
        ("serve m.py --relod", "--relod", "--reload"),
        ("infer M --sequnce-id=3", "--sequnce-id=3", "--sequence-id"),
        ("models --tokn x", "--tokn", "--token"),
        ("top --interval 1 --onec", "--onec", "--once"),
        ("check --no-zp", "--no-zp", "--no-zip"),
        ("trace f --json --modle x", "--modle", "--model"),
        ("c-library --ouptut x", "--ouptut", "--output"),
        ("include --halp", "--halp", "--help"),
        ("new x --knd text", "--knd", "--kind"),
        ("package --outptu x", "--outptu", "--output"),
    ],
)
def test_misspelt_option_is_named_in_one_line_with_the_nearest(line, given, option, capsys):
    with pytest.raises(SystemExit) as end:
        __main__.main(line.split())

    command = line.split()[0]
    assert end.value.code == 2
    assert capsys.readouterr().err == (
        f"pytriton {command}: unrecognized option '{given}', did you mean {option}? "
        f"'pytriton {command} --help' lists all options.\n"
    )


def test_help_of_a_command_has_two_forms(capsys):
    with pytest.raises(SystemExit):
        __main__.main(["help", "trace"])

    assert "pytriton trace" in capsys.readouterr().out


def test_help_is_what_no_command_gets(capsys):
    assert __main__.main([]) == 0

    printed = capsys.readouterr()
    assert printed.out == f"{table.help_text()}\n"
    assert printed.err == ""


def test_ctrl_c_ends_any_command_without_a_traceback(monkeypatch, capsys):
    def interrupted(arguments, show, complain):
        raise KeyboardInterrupt

    row = table.row_of("include")
    monkeypatch.setattr(table.module_of(row), "run", interrupted)

    assert __main__.main(["include"]) == 130
    assert capsys.readouterr().err == "Interrupted\n"


def test_help_imports_no_command_and_no_rich():
    code = (
        "import sys, pytriton.__main__ as m; m.main(['--help']); "
        "print([n for n in sys.modules if n in ('rich', 'numpy', 'argparse')])"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )

    assert done.stdout.splitlines()[-1] == "[]"


def test_modules_are_where_the_table_says():
    assert all(importlib.util.find_spec(row.module) for row in table.ROWS)
