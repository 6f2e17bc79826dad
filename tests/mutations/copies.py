# SPDX-License-Identifier: Apache-2.0
"""Copies of the checkout, in which the source can be changed and tests run.

Each has an environment of its own over the packages of the one that runs this, as many tests start
processes without PYTHONPATH.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import time
from dataclasses import dataclass, field

import psutil
import pytest

REPOSITORY = pathlib.Path(__file__).parents[2]
NOT_COPIED = (".git", ".venv*", ".*_cache", ".hypothesis", "__pycache__", "build", "dist")
IN_COPY = "MUTATED_COPY"  # in the environment of all processes of a copy


@dataclass(frozen=True)
class Outcome:
    """How a run of tests ended."""

    failed: list[str] = field(default_factory=list)
    stopped_in: str | None = None  # the file where the process died or hung
    seconds: dict[str, float] = field(default_factory=dict)  # by file

    @property
    def blamed(self) -> str | None:
        """The test that failed first, or the file that did not end; None if all is well."""
        return self.stopped_in or next(iter(self.failed), None)


class ClosedError(Exception):
    """The copy was closed while its tests ran, or before."""


class Copy:
    """A copy in a folder that does not exist yet."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.watched = folder / "reached"
        self._writes = 0
        self._is_closed = False
        shutil.copytree(REPOSITORY, folder, ignore=shutil.ignore_patterns(*NOT_COPIED))
        self._make_environment(pathlib.Path(sys.prefix), folder / ".venv")

    def _make_environment(self, ours: pathlib.Path, new: pathlib.Path) -> None:
        packages = pathlib.Path(sysconfig.get_path("purelib"))
        (new / "bin").mkdir(parents=True)
        for each in (ours / "bin").iterdir():
            if each.is_symlink():
                (new / "bin" / each.name).symlink_to(each.readlink())
            elif each.read_bytes().startswith(b"#!" + os.fsencode(ours)):
                text = each.read_text().replace(str(ours), str(new), 1)
                (new / "bin" / each.name).write_text(text)
                (new / "bin" / each.name).chmod(0o755)
        for each in [*ours.glob(".pytriton-*"), ours / "pyvenv.cfg"]:
            shutil.copy(each, new)
        for name in ("share", "etc"):
            (new / name).symlink_to(ours / name)
        own_packages = new / packages.relative_to(ours)
        own_packages.mkdir(parents=True)
        for each in packages.glob("*.pth"):
            if each.name != "_pytriton.pth":  # the source that is not changed
                shutil.copy(each, own_packages)
        (own_packages / "_pytriton.pth").write_text(f"{self.folder / 'src'}\n{packages}\n")

    def write(self, file: str, source: bytes) -> None:
        """Replace a file of the source; no compiled form of other contents fits it."""
        self._writes += 1
        path = self.folder / file
        path.write_bytes(source)
        os.utime(path, (self._writes, self._writes))

    def test(
        self, *arguments: str, environment: dict[str, str], limit_s: float | None = None
    ) -> Outcome:
        """Run pytest; a run that takes longer is ended."""
        if self._is_closed:
            raise ClosedError
        shutil.rmtree(self.watched, ignore_errors=True)
        self.watched.mkdir()
        plugin = ("-p", "tests.mutations.watching", "--watch", str(self.watched))
        command = [str(self.folder / ".venv/bin/python"), "-m", "pytest", "-q", *plugin, *arguments]
        left_out = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV"}
        environment = {
            **{name: value for name, value in os.environ.items() if name not in left_out},
            "PATH": f"{self.folder / '.venv/bin'}{os.pathsep}{os.environ['PATH']}",
            IN_COPY: str(self.folder),
            **environment,
        }
        with (self.folder / "output.txt").open("w") as output:
            process = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                process.wait(limit_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            finally:
                self._end_what_is_left()
        if self._is_closed:
            raise ClosedError  # what it found is due to that
        return self._outcome(process.pid, process.returncode)

    def close(self) -> None:
        """End its processes; no tests run after that."""
        self._is_closed = True
        self._kill(self._processes())

    def _outcome(self, process: int, status: int) -> Outcome:
        outcome, current = self.watched / "outcome.json", self.watched / str(process)
        if outcome.exists():
            found = Outcome(**json.loads(outcome.read_text()))
            if found.failed or status in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
                return found
        return Outcome(stopped_in=current.read_text() if current.exists() else "the start")

    def _end_what_is_left(self) -> None:
        """End processes that outlive their tests, as those of a changed source may."""
        deadline = time.monotonic() + 2  # servers see that their tests are gone
        while left := self._processes():
            time.sleep(0.1)
            if time.monotonic() > deadline:
                self._kill(left)

    def _kill(self, processes: list[psutil.Process]) -> None:
        for each in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()

    def _processes(self) -> list[psutil.Process]:
        found = []
        for each in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                is_ours = each.environ().get(IN_COPY) == str(self.folder)
                if is_ours and each.status() != psutil.STATUS_ZOMBIE:
                    found.append(each)
        return found
