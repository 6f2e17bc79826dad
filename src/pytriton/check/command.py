# SPDX-License-Identifier: Apache-2.0
"""The commands of `pytriton`: what each looks at, and where its logs and its report are left."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import logging
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from pytriton.check.environment import report_environment
from pytriton.check.monitoring import DEFAULT_LOG_FORMAT
from pytriton.check.packages import PACKAGE, installed_packages, version_of
from pytriton.check.report import Finding, Report, State

logger = logging.getLogger(__name__)

TEMPORARY_PREFIX = "pytriton_workspace_"
_SCHEMA = 1  # of the JSON; a higher number where something that was there changes


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What a command found, and where it lies."""

    command: str
    report: Report
    workspace: pathlib.Path | None  # None where it was temporary and is packed up
    archive: pathlib.Path | None
    archive_error: str | None  # why there is none, where one was wanted

    @property
    def is_ok(self) -> bool:
        """Whether nothing failed."""
        return not self.report.count(State.FAILED)

    def to_text(self) -> str:
        """The last lines for a person."""
        failed, notes = self.report.count(State.FAILED), self.report.count(State.NOTE)
        verdict = "Everything works" if self.is_ok else f"{failed} of the checks failed, see above"
        lines = [f"{verdict}; worth a look, see above: {notes}." if notes else f"{verdict}."]
        lines += [f"Report and logs: {path}" for path in (self.workspace, self.archive) if path]
        if self.archive_error:
            lines.append(f"No zip file could be written: {self.archive_error}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The whole outcome for a machine, as docs/check.md describes it."""
        return {
            "schema": _SCHEMA,
            "pytriton": version_of(PACKAGE),
            "command": self.command,
            "ok": self.is_ok,
            "sections": self.report.to_json(),
            "workspace": self.workspace and str(self.workspace),
            "archive": self.archive and str(self.archive),
        }


def run_command(
    name: str, workspace: pathlib.Path | None, *, packs: bool, show: Callable[[str], None]
) -> Outcome:
    """Run a command and keep its logs.

    Args:
        name: name of the command.
        workspace: folder to make for the logs; a temporary one where it is None.
        packs: whether to make a zip file of the folder, beside it; a temporary one is then removed.
        show: called with each line of the report as soon as it is known.

    Returns:
        What was found.

    Raises:
        FileExistsError: The workspace is there already.
        OSError: The logs cannot be written.
    """
    report = Report(show)
    if workspace is not None:
        folder = workspace.resolve()
        folder.mkdir(parents=True)
        _run_into(folder, name, report)
        archive, error = _packed(folder) if packs else (None, None)
        return Outcome(name, report, folder, archive, error)
    folder = pathlib.Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX))
    try:
        _run_into(folder, name, report)
    except BaseException:  # as Ctrl-C: nobody was told of the folder
        shutil.rmtree(folder, ignore_errors=True)
        raise
    archive, error = _packed(folder) if packs else (None, None)
    if archive is None:
        return Outcome(name, report, folder, None, error)
    shutil.rmtree(folder)
    return Outcome(name, report, None, archive, None)


def _run_into(folder: pathlib.Path, name: str, report: Report) -> None:
    COMMANDS[name].run(folder, report)
    _write(folder / "report.txt", report.to_text())


def _packed(folder: pathlib.Path) -> tuple[pathlib.Path | None, str | None]:
    """The zip file of a folder, beside it, or why there is none."""
    try:
        archive = shutil.make_archive(str(folder.absolute()), "zip", folder)
    except OSError as error:  # as in a folder that may only be read
        return None, str(error)
    return pathlib.Path(archive), None


def _environment(folder: pathlib.Path, report: Report) -> None:
    with _logged(folder / "env_log.txt"):
        _write(folder / "packages.txt", installed_packages())
        report_environment(report)


def _example(function: str) -> Callable[[pathlib.Path, Report], None]:
    """The command that runs a function of the module that serves."""

    def run(folder: pathlib.Path, report: Report) -> None:
        with _logged(folder / f"{function}_log.txt"):
            try:
                # Late, as packages that are broken or missing must not hide the other findings.
                serving = importlib.import_module("pytriton.check.serving")
            except ImportError as error:
                logger.exception("Error occurred in command: %s", function)
                report.begin("Checking whether servers and clients can be imported")
                report.add(Finding.of_error(function, error))
            else:
                getattr(serving, function)(folder, report)

    return run


def _examples(folder: pathlib.Path, report: Report) -> None:
    for function in ("example_add_sub", "example_add_sub_script", "example_repository"):
        _example(function)(_made(folder / function), report)


def _check(folder: pathlib.Path, report: Report) -> None:
    _environment(_made(folder / "env"), report)
    _examples(_made(folder / "examples"), report)


def _write(path: pathlib.Path, text: str) -> None:
    # Names of files may be in any encoding.
    path.write_text(text + "\n", encoding="utf-8", errors="backslashreplace")


def _made(folder: pathlib.Path) -> pathlib.Path:
    folder.mkdir()
    return folder


class _LogFile(logging.FileHandler):
    """A file that says when it is closed, and not with every line, that it could not be written."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  the name is logging's
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


@contextlib.contextmanager
def _logged(path: pathlib.Path) -> Iterator[None]:
    """Write everything that is logged meanwhile to a file."""
    handler = _LogFile(path, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(logging.Formatter(DEFAULT_LOG_FORMAT))
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        root.setLevel(level)
        root.removeHandler(handler)
        handler.close()


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """What a name on the command line stands for."""

    help: str
    run: Callable[[pathlib.Path, Report], None]


COMMANDS = {
    "check": Command("env, then examples; what is done without a name", _check),
    "env": Command("report on this machine, its Python and its packages", _environment),
    "example-add-sub": Command(
        "serve a model from this process and ask it", _example("example_add_sub")
    ),
    "example-add-sub-script": Command(
        "the same with the server in a script", _example("example_add_sub_script")
    ),
    "example-repository": Command(
        "the same with tritonserver and a model.py", _example("example_repository")
    ),
    "examples": Command("all examples", _examples),
}
