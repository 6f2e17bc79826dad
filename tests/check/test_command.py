# SPDX-License-Identifier: Apache-2.0
import json
import os
import pathlib
import signal
import subprocess
import sys
import zipfile
from importlib.metadata import version

import psutil
import pytest

from pytriton import __main__
from pytriton.tools.check import command
from pytriton.tools.check.report import Finding, State
from tests.e2e.waiting import DEADLINE_S, eventually
from tests.snippets import snippets

REPOSITORY = pathlib.Path(__file__).parents[2]

needs_full_device = pytest.mark.skipif(
    not pathlib.Path("/dev/full").exists(), reason="no device that is always full"
)


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
        def run(folder, report):
            report.begin("Checking things")
            for finding in findings:
                report.add(finding)

        monkeypatch.setitem(command.COMMANDS, name, run)

    return give


def test_options_without_a_command_mean_check_as_in_nvidia_pytriton(answers, capsys, here):
    answers(Finding("server", "works", State.OK), name="check")

    assert __main__.main(["-w", "new"]) == 0
    assert "  [ok] server: works\nEverything works.\n" in capsys.readouterr().out
    assert (here / "new.zip").exists()


def test_failure_gives_exit_code_one(answers, capsys):
    answers(Finding("server", "broke", State.FAILED), Finding("port", "taken", State.NOTE))

    assert __main__.main(["env"]) == 1
    assert "1 of the checks failed" in capsys.readouterr().out


def test_note_is_no_failure(answers, capsys):
    answers(Finding("port", "taken", State.NOTE))

    assert __main__.main(["env"]) == 0
    assert "Everything works; worth a look, see above: 1.\n" in capsys.readouterr().out


def test_json_is_all_that_is_printed(answers, capsys):
    answers(Finding("server", "broke", State.FAILED))

    assert __main__.main(["env", "--json"]) == 1

    document = json.loads(capsys.readouterr().out)
    archive = document.pop("archive")
    assert archive.endswith(".zip")
    assert document == {
        "schema": 1,
        "pytriton": version("pytriton"),
        "command": "env",
        "ok": False,
        "sections": [
            {
                "title": "Checking things",
                "findings": [
                    {"name": "server", "value": "broke", "state": "failed", "took_ms": None}
                ],
            }
        ],
        "workspace": None,
    }


def test_json_is_as_its_page_shows(answers, capsys):
    (shown,) = snippets(REPOSITORY / "docs" / "check.md", "json")
    answers(Finding("server", "works", State.OK, took_ms=1.5))

    __main__.main(["env", "--json"])

    assert kinds(json.loads(capsys.readouterr().out)) == kinds(json.loads(shown.text))


def kinds(document):
    """The keys of a document with the types of what they hold."""
    if isinstance(document, dict):
        return {key: kinds(value) for key, value in document.items()}
    if isinstance(document, list):
        return [kinds(element) for element in document]
    return type(document)


def test_workspace_that_exists_is_refused(here, capsys):
    (here / "old").mkdir()

    assert __main__.main(["env", "-w", "old"]) == 1
    assert "expected a new folder" in capsys.readouterr().err


def test_workspace_is_kept_and_packed_beside_it(answers, here):
    answers(Finding("cores", "2"))

    __main__.main(["env", "--workspace", "new"])

    assert (here / "new" / "report.txt").read_text() == "Checking things\n  cores: 2\n"
    assert zipfile.ZipFile(here / "new.zip").namelist() == ["report.txt"]


def test_nothing_stays_of_a_check_that_worked(answers, capsys, here, tmp_path):
    answers(Finding("server", "works", State.OK))

    assert __main__.main(["env"]) == 0
    assert [*here.iterdir(), *(tmp_path / "temporary").iterdir()] == []
    assert capsys.readouterr().out.endswith("Everything works.\n")


@pytest.mark.parametrize(
    "finding, options",
    [
        (Finding("cores", "2"), ["--zip"]),
        (Finding("server", "broke", State.FAILED), []),
    ],
)
def test_temporary_workspace_is_packed_where_it_is_needed_and_removed(
    answers, capsys, here, tmp_path, finding, options
):
    answers(finding)

    __main__.main(["env", *options])

    (archive,) = (tmp_path / "temporary").iterdir()
    assert archive.name.startswith("pytriton_workspace_")
    assert zipfile.ZipFile(archive).namelist() == ["report.txt"]
    assert f"Report and logs: {archive}\n" in capsys.readouterr().out
    assert list(here.iterdir()) == []


def test_workspace_is_not_packed_where_it_is_not_wanted(answers, here, tmp_path):
    answers(Finding("server", "broke", State.FAILED))

    __main__.main(["env", "--no-zip"])

    (folder,) = (tmp_path / "temporary").iterdir()
    assert (folder / "report.txt").exists()
    assert list(here.iterdir()) == []


def test_workspace_is_kept_where_no_zip_can_be_written(answers, capsys, monkeypatch, tmp_path):
    answers(Finding("cores", "2"))

    def refuse(*arguments):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(command.shutil, "make_archive", refuse)

    assert __main__.main(["env", "--zip"]) == 0
    (folder,) = (tmp_path / "temporary").iterdir()
    shown = capsys.readouterr().out
    assert f"Report and logs: {folder}\n" in shown
    assert "No zip file could be written: [Errno 30] Read-only file system" in shown


def test_interrupt_gives_exit_code_130_and_leaves_nothing(monkeypatch, here, tmp_path, capsys):
    def interrupted(folder, report):
        raise KeyboardInterrupt

    monkeypatch.setitem(command.COMMANDS, "env", interrupted)

    assert __main__.main(["env"]) == 130
    assert capsys.readouterr().err == "Interrupted\n"
    assert [*here.iterdir(), *(tmp_path / "temporary").iterdir()] == []


def test_reader_that_goes_away_does_not_end_the_check(here):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "pytriton", "env", "-w", "new"],
        check=False,
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=120,
    )
    os.close(writer)

    assert (done.returncode, done.stderr) == (0, b"")
    assert (here / "new.zip").exists()


@needs_full_device
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_output_that_cannot_be_written_is_told(options):
    with pathlib.Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "pytriton", "env", *options],
            check=False,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
        )

    told = "The report cannot be written: [Errno 28] No space left on device\n"
    assert (done.returncode, done.stderr) == (1, told)


@needs_full_device
def test_log_that_cannot_be_written_is_told_once(monkeypatch, capsys):
    made = command._LogFile
    monkeypatch.setattr(command, "_LogFile", lambda path, **options: made("/dev/full", **options))

    assert __main__.main(["env"]) == 1
    told = "The report cannot be written: [Errno 28] No space left on device\n"
    assert capsys.readouterr().err == told


def test_names_that_the_terminal_cannot_show_are_escaped(here):
    folder = here / "gr\u00f6\u00dfe\udcff"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "pytriton", "env", "-w", "new"],
        check=False,
        cwd=folder,
        env=os.environ | {"PYTHONIOENCODING": "ascii", "PYTRITON_HOME": os.fspath(folder)},
        capture_output=True,
        timeout=120,
    )

    assert (done.returncode, done.stderr) == (0, b"")
    assert b"gr\\xf6\\xdfe" in done.stdout


def test_broken_package_is_a_failure_that_hides_nothing_else(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pytriton.tools.check.serving", None)

    assert __main__.main(["check", "--no-zip"]) == 1
    shown = capsys.readouterr().out
    assert "Checking OS version" in shown
    assert "[FAILED] example_add_sub: Error occurred in command: ModuleNotFoundError:" in shown


def test_version_is_that_of_the_package(capsys):
    assert __main__.main(["--version"]) == 0
    assert capsys.readouterr().out == f"pytriton {version('pytriton')}\n"


def test_env_leaves_its_log_and_the_list_of_packages(here):
    __main__.main(["env", "-w", "new", "--no-zip"])

    assert "Checking OS version" in (here / "new" / "env_log.txt").read_text()
    assert "numpy==" in (here / "new" / "packages.txt").read_text()


@pytest.mark.parametrize("name", command.COMMANDS)
def test_command_is_described_on_its_page_and_in_the_help(name, capsys):
    __main__.main(["--help"])

    assert f"  {name} " in capsys.readouterr().out
    assert f"| `{name}` |" in (REPOSITORY / "docs" / "check.md").read_text()


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
        "nvidia-pytriton==",
        "Checking psutil stats",
        "Checking compiler and C libraries",
        "DecoupledModelClient over gRPC: stream: [3, 2, 1]",
        "RemoteTriton: add: [[2.0], [2.0]]",
        "Checking tritonserver with a model repository",
    ):
        assert text in done.stdout
    for text in ("Error occurred in command:", "OS release file not found", "gcc failed", "FAILED"):
        assert text not in done.stdout
    assert (here / "new" / "env" / "env_log.txt").exists()
    assert (here / "new" / "examples" / "example_add_sub" / "server_log.txt").exists()
    assert (here / "new.zip").exists()


@pytest.mark.e2e
@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_ends_a_check_and_its_servers(here, number, code):
    process, children = end_amid("example-add-sub-script", number)

    assert process.returncode == code
    assert children
    assert eventually(lambda: not any(map(is_alive, children)))
    assert list(here.iterdir()) == []


@pytest.mark.e2e
@pytest.mark.parametrize(
    "name", ["example-add-sub", "example-add-sub-script", "example-repository"]
)
def test_servers_of_a_check_that_is_killed_end(name):
    _, children = end_amid(name, signal.SIGKILL)

    assert children
    assert eventually(lambda: not any(map(is_alive, children)))


def heed_interrupts():
    """Undo what a shell does to the jobs that it starts in the background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def end_amid(name, number):
    """Send a signal to a check whose server runs; gives it and the processes below it."""
    command_line = [sys.executable, "-m", "pytriton", name]
    with subprocess.Popen(
        command_line,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,  # noqa: PLW1509  no thread of this process holds a lock then
    ) as process:
        for line in process.stdout:
            if "server starts" in line:
                break
        process.send_signal(signal.SIGSTOP)  # or it might be done before the signal comes
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)
        process.communicate(timeout=DEADLINE_S)
    return process, children


def is_alive(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_command_line_program_is_declared():
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]

    assert project["scripts"]["pytriton"] == f"{__main__.__name__}:{__main__.main.__name__}"
