# SPDX-License-Identifier: Apache-2.0
"""The parts of `pytriton serve --reload`: files that change, the process of the models, its end."""

from __future__ import annotations

import os
import threading

import pytest

from pytriton.base.announcement import Addresses
from pytriton.tools.commands.serve import command
from pytriton.tools.commands.serve.command import CodeProcess, Reloader, ServeScreen, WatchedFiles
from pytriton.tools.commands.serve.options import read_options


class FakeChild:
    def __init__(self):
        self.ended = ""

    def start(self, *_, **__):
        pass

    def end(self, _timeout_s):
        self.ended = "in order"

    def abandon(self):
        self.ended = "at once"


class FakeServer:
    addresses = None

    def __init__(self, error):
        self._error = error

    def stop(self):
        if self._error:
            raise self._error


@pytest.fixture
def end(monkeypatch):
    child = FakeChild()
    monkeypatch.setattr(command, "CodeProcess", lambda: child)

    def run(error):
        stopped = threading.Event()
        stopped.set()
        Reloader(read_options(["m.py", "--reload"]), FakeServer(error), ServeScreen()).run(stopped)

    return child, run


def test_children_end_in_order_after_the_server(end):
    child, run = end

    run(None)

    assert child.ended == "in order"


def test_children_end_at_once_if_the_user_does_not_wait_for_the_server(end):
    child, run = end

    with pytest.raises(KeyboardInterrupt):
        run(KeyboardInterrupt())

    assert child.ended == "at once"


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "code.py"
    path.write_text("one")
    return path


@pytest.fixture
def files(path):
    files = WatchedFiles()
    files.watch([str(path)])
    return files


def write(path):
    path.write_text("other text")


def write_at_another_time(path):
    os.utime(path, ns=(0, 0))


def replace(path):
    status = path.stat()
    other = path.with_name("other")
    other.write_text("two")
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(path)


@pytest.mark.parametrize(
    "change", [write, write_at_another_time, replace, lambda path: path.unlink()]
)
def test_change_is_noticed_once(files, path, change):
    assert files.changed() == []

    change(path)

    assert files.changed() == [str(path)]
    assert files.changed() == []


def test_change_while_other_files_are_added_is_not_lost(files, path, tmp_path):
    path.write_text("changed")

    files.watch([str(path), str(tmp_path / "new.py")])

    assert files.changed() == [str(path)]


def test_file_that_appears_is_noticed(files, tmp_path):
    files.watch([str(tmp_path / "new.py")])
    (tmp_path / "new.py").write_text("")

    assert files.changed() == [str(tmp_path / "new.py")]


CODE = """
import threading
threading.Thread(target=threading.Event().wait).start()
raise RuntimeError("no model")
"""


def test_thread_of_code_that_fails_does_not_keep_its_process(tmp_path):
    path = tmp_path / "models.py"
    path.write_text(CODE)
    child = CodeProcess()
    child.start(read_options([str(path)]), Addresses("http://127.0.0.1:1", ""), colours=False)
    report = None
    while report is None:
        report = child.receive()

    assert "no model" in report.error
    assert child.exit_code() == 0
    child.end(0)
