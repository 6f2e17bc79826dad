# SPDX-License-Identifier: Apache-2.0
import json
import pathlib
import subprocess
import sys
import zipfile

import pytest

from pytriton import __main__
from pytriton.check import command, serving
from pytriton.check.report import Finding, Section, State

REPOSITORY = pathlib.Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty folder to work in, with another one for temporary files."""
    folder, temporary = tmp_path / "here", tmp_path / "temporary"
    folder.mkdir()
    temporary.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(command.tempfile, "tempdir", str(temporary))
    return folder


@pytest.fixture
def answers(monkeypatch):
    """Lets a command find what a test wants it to."""

    def give(*findings, name="env"):
        section = Section("Checking things", findings)
        stand_in = command.Command("", lambda folder: iter([section]))
        monkeypatch.setitem(command.COMMANDS, name, stand_in)

    return give


def test_no_command_means_check(answers, capsys):
    answers(Finding("server", "works", State.OK), name="check")

    assert __main__.main([]) == 0
    assert "  [ok] server: works\nEverything works.\n" in capsys.readouterr().out


def test_failure_gives_exit_code_one(answers, capsys):
    answers(Finding("server", "broke", State.FAILED), Finding("port", "taken", State.NOTE))

    assert __main__.main(["env"]) == 1
    assert "1 of the checks failed" in capsys.readouterr().out


def test_note_is_no_failure(answers):
    answers(Finding("port", "taken", State.NOTE))

    assert __main__.main(["env"]) == 0


def test_json_is_all_that_is_printed(answers, capsys):
    answers(Finding("server", "broke", State.FAILED))

    assert __main__.main(["env", "--json"]) == 1

    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is False
    assert document["sections"][0]["findings"][0]["state"] == "failed"
    assert document["workspace"] is None
    assert document["archive"].endswith(".zip")


def test_workspace_that_exists_is_refused(here, capsys):
    (here / "old").mkdir()

    assert __main__.main(["env", "-w", "old"]) == 1
    assert "expected a new folder" in capsys.readouterr().err


def test_workspace_is_kept_and_packed_beside_it(answers, here):
    answers(Finding("cores", "2"))

    __main__.main(["env", "--workspace", "new"])

    assert (here / "new" / "report.txt").read_text() == "Checking things\n  cores: 2\n"
    assert zipfile.ZipFile(here / "new.zip").namelist() == ["report.txt"]


def test_temporary_workspace_is_packed_into_this_folder_and_removed(answers, here, tmp_path):
    answers(Finding("cores", "2"))

    __main__.main(["env"])

    (archive,) = here.iterdir()
    assert archive.name.startswith("pytriton_workspace_")
    assert zipfile.ZipFile(archive).namelist() == ["report.txt"]
    assert list((tmp_path / "temporary").iterdir()) == []


def test_workspace_is_not_packed_where_it_is_not_wanted(answers, here, tmp_path):
    answers(Finding("cores", "2"))

    __main__.main(["env", "--no-zip"])

    (folder,) = (tmp_path / "temporary").iterdir()
    assert (folder / "report.txt").exists()
    assert list(here.iterdir()) == []


def test_env_leaves_its_log_and_the_list_of_packages(here):
    __main__.main(["env", "-w", "new", "--no-zip"])

    assert "Checking OS version" in (here / "new" / "env_log.txt").read_text()
    assert "numpy==" in (here / "new" / "packages.txt").read_text()


def test_unknown_command_is_refused(capsys):
    with pytest.raises(SystemExit) as end:
        __main__.main(["chekc"])

    assert end.value.code == 2
    assert "example-add-sub-script" in capsys.readouterr().err


@pytest.mark.e2e
def test_check_finds_that_everything_works_here(here):
    done = subprocess.run(
        [sys.executable, "-m", "pytriton", "check", "-w", "new"],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    for text in (
        "add: [[2.0], [2.0]]",
        "sub: [[0.0], [0.0]]",
        "Checking OS version",
        'OS version: "',
        "Checking installed packages",
        "pytriton==",
        "Checking psutil stats",
        "Checking compiler and C libraries",
        "DecoupledModelClient over gRPC: stream: [3, 2, 1]",
    ):
        assert text in done.stdout
    for text in ("Error occurred in command:", "OS release file not found", "gcc failed"):
        assert text not in done.stdout
    assert (here / "new" / "env" / "env_log.txt").exists()
    assert (here / "new" / "examples" / "example_add_sub" / "server_log.txt").exists()
    assert (here / "new.zip").exists()


@pytest.mark.e2e
def test_server_that_cannot_start_is_a_failure(monkeypatch, capsys):
    def no_models(triton):
        raise RuntimeError("nothing to bind")

    monkeypatch.setattr(serving, "bind_models", no_models)

    assert __main__.main(["example-add-sub"]) == 1
    shown = capsys.readouterr().out
    assert (
        "[FAILED] server starts: Error occurred in command: RuntimeError: nothing to bind" in shown
    )


@pytest.mark.e2e
def test_client_that_reads_something_else_is_a_failure(monkeypatch, capsys):
    monkeypatch.setattr(serving, "_STREAM", [3, 2])

    assert __main__.main(["example-add-sub"]) == 1
    shown = capsys.readouterr().out
    assert "ValueError: Expected a stream of [3, 2], got [3, 2, 1]" in shown
    assert "[ok] server stops" in shown


def test_command_line_program_is_declared():
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]

    assert project["scripts"]["pytriton"] == f"{__main__.__name__}:{__main__.main.__name__}"
