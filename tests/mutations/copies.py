# SPDX-License-Identifier: Apache-2.0
"""A copy of the checkout, in which the source can be changed and tests run.

It has an environment of its own over the packages of the one that runs this, as many tests start
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
    seconds: dict[str, float] = field(default_factory=dict)  # by file
    is_stopped: bool = False  # the process died or hung


class Copy:
    """A copy in a folder that does not exist yet; its tests run with options of pytest."""

    def __init__(self, folder: pathlib.Path, options: tuple[str, ...]) -> None:
        self.folder = folder
        self.watched = folder / "reached"
        self._options = options
        self._writes = 0
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

    def test(self, *arguments: str, limit_s: float | None = None) -> Outcome:
        """Run pytest; a run that takes longer is ended."""
        shutil.rmtree(self.watched, ignore_errors=True)
        self.watched.mkdir()
        plugin = ("-p", "tests.mutations.watching", "--watch", str(self.watched))
        command = [str(self.folder / ".venv/bin/python"), "-m", "pytest", "-q", *plugin]
        left_out = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV"}
        environment = {name: each for name, each in os.environ.items() if name not in left_out}
        environment["PATH"] = f"{self.folder / '.venv/bin'}{os.pathsep}{os.environ['PATH']}"
        environment[IN_COPY] = str(self.folder)
        with (self.folder / "output.txt").open("w") as output:
            process = subprocess.Popen(
                [*command, *self._options, *arguments], cwd=self.folder, env=environment,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(limit_s)
        self._end_what_is_left()
        outcome = self.watched / "outcome.json"
        if outcome.exists():
            found = Outcome(**json.loads(outcome.read_text()))
            if found.failed or process.wait() == pytest.ExitCode.OK:
                return found
        return Outcome(is_stopped=True)

    def _end_what_is_left(self) -> None:
        """End processes that outlive their tests, as those of a changed source may."""
        for each in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if each.environ().get(IN_COPY) == str(self.folder):
                    each.kill()
