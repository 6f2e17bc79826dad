# SPDX-License-Identifier: Apache-2.0
"""`pytriton new`: each kind of project is complete, and runs as its README says."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import pathlib
import pty
import re
import subprocess
import sys
import threading

import pytest

from pytriton import __main__
from pytriton.tools.commands.project.new import KINDS, TEMPLATES, check_name, words_of
from pytriton.tools.commands.project.package import read_project
from tests.docs.page_walk import PageWalk
from tests.free_ports import free_ports

TIMEOUT_S = 180


def new(*arguments: str) -> int:
    return __main__.main(["new", *arguments])


@pytest.fixture(params=KINDS)
def project(request, tmp_path, monkeypatch):
    """The folder of a project of each kind."""
    if request.param == "image" and importlib.util.find_spec("PIL") is None:
        pytest.skip("projects about pictures need pillow")
    monkeypatch.chdir(tmp_path)
    assert new(f"my-{request.param}", "--kind", request.param) == 0
    return tmp_path / f"my-{request.param}"


@pytest.mark.e2e
def test_commands_of_the_readme_run_and_print_what_it_shows(project):
    walk = PageWalk(project / "README.md", project, free_ports(3))

    walk.run()

    commands = " ".join(step.command for step in walk.steps)
    assert not walk.misfits(), "\n".join(walk.misfits())
    assert re.search(r"pytriton serve|tritonserver", commands)
    assert re.search(r"pytriton infer|curl", commands)
    assert "python -m pytest" in commands
    assert (project / "deploy/Dockerfile").is_file()


def test_project_has_its_files_and_no_word_of_a_template(project):
    files = [path for path in project.rglob("*") if path.is_file()]
    names = {path.name for path in files}
    kind = KINDS[project.name.removeprefix("my-")]
    texts = "".join(path.read_text() for path in files)

    assert {".gitignore", "README.md", "pyproject.toml"} < names
    assert any(name.startswith("test_") for name in names)
    assert [word for word in words_of(project.name, kind) if f"__{word}__" in texts] == []
    assert read_project(project).name == project.name


@pytest.mark.part("quick")
def test_chats_are_answered_at_the_same_time(tmp_path, monkeypatch):
    assert new(str(tmp_path / "mine"), "--kind", "chat") == 0
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    spec = importlib.util.spec_from_file_location("served", tmp_path / "mine/service.py")
    service = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(service)
    meeting = threading.Barrier(2, timeout=60)

    def answer(messages):
        meeting.wait()  # until the model thinks about both
        return f"{messages[0]}!"

    monkeypatch.setattr(service, "answer", answer)

    async def chat(name):
        return [piece async for piece in service.assistant(f'["{name}"]')]

    async def chats():
        return await asyncio.gather(chat("a"), chat("b"))

    assert asyncio.run(chats()) == [["a!"], ["b!"]]


def test_project_passes_the_linter(project):
    ruff = pathlib.Path(sys.executable).with_name("ruff")
    if not ruff.exists():
        pytest.skip("ruff is not installed")
    for command in (
        ["check", "--select=E,F,I,UP,B"],
        ["format", "--check"],
    ):
        done = subprocess.run(
            [ruff, *command, "--isolated", "--no-cache"],
            cwd=project,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

        assert done.returncode == 0, done.stdout + done.stderr


def test_every_kind_has_templates_and_every_folder_of_templates_is_used():
    folders = {path.name for path in TEMPLATES.iterdir()}

    assert folders - {"common", "deploy"} == set(KINDS)


def test_kinds_are_listed(capsys):
    assert new("--list") == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(KINDS)


def test_folder_with_files_is_left_as_it_is(tmp_path, capsys):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "service.py").write_text("precious")

    assert new(str(folder), "--kind", "text") == 1
    assert "has files. Nothing was written." in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["service.py"]
    assert (folder / "service.py").read_text() == "precious"


def test_file_in_the_place_of_the_folder_is_left_as_it_is(tmp_path, capsys):
    (tmp_path / "mine").write_text("precious")

    assert new(str(tmp_path / "mine"), "--kind", "text") == 1
    assert "is a file" in capsys.readouterr().err
    assert (tmp_path / "mine").read_text() == "precious"


@pytest.mark.parametrize("place", ["mine", "."])
def test_empty_folder_is_filled(place, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path if place == "mine" else tmp_path / "mine")

    assert new(place, "--kind", "chat") == 0
    assert read_project(tmp_path / "mine").name == "mine"


def test_folder_that_cannot_be_written_is_told(tmp_path, capsys):
    (tmp_path / "file").touch()

    assert new(str(tmp_path / "file/mine"), "--kind", "text") == 1
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name, hint",
    [
        ("My Service", "Try my-service."),
        ("my_service", "Try my-service."),
        ("myService", "Try my-service."),
        ("-x-", "Try x."),
        ("3d-model", "Try d-model."),
        ("a--b", "Try a-b."),
        ("a" * 51, f"Try {'a' * 50}."),
        ("ä", "got 'ä'."),
        ("pytriton", "Try pytriton-service."),
    ],
)
def test_wrong_name_is_refused_with_a_near_one(name, hint, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    assert new("--kind", "text", "--", name) == 1
    assert hint in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_suggested_names_are_valid():
    for name in ("my-service", "d-model", "a", "pytriton-service", "a" * 50):
        check_name(name)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "expected NAME"),
        (["mine"], "expected --kind with one of text, image, chat, embeddings, repository"),
        (["mine", "--kind", "video"], "invalid choice: 'video'"),
    ],
)
def test_program_that_is_no_terminal_has_to_say_everything(arguments, message, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "pytriton", "new", *arguments],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )

    assert done.returncode == 2
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_person_at_a_terminal_is_asked(tmp_path):
    ours, theirs = pty.openpty()
    os.write(ours, b"mine\nchat\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytriton", "new"],
        cwd=tmp_path,
        stdin=theirs,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    os.close(theirs)
    os.close(ours)

    assert done.returncode == 0, done.stderr
    assert 'openai="chat"' in (tmp_path / "mine/service.py").read_text()
