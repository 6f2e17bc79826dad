# SPDX-License-Identifier: Apache-2.0
"""`pytriton check`, `env` and the examples: their options, what they check, logs and report."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import logging
import pathlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from pytriton.base.lazy_module import LazyModule
from pytriton.tools.check import CHECKS
from pytriton.tools.check.environment import (
    PACKAGE,
    installed_packages,
    report_environment,
    version_of,
)
from pytriton.tools.check.report import CheckReport, Finding, State
from pytriton.tools.check.utils import DEFAULT_LOG_FORMAT
from pytriton.utils.option_parser import OptionParser

if TYPE_CHECKING:
    from pytriton.tools.check import openness, serving
else:  # broken or missing packages must not hide the other findings
    openness = LazyModule("pytriton.tools.check.openness")
    serving = LazyModule("pytriton.tools.check.serving")

logger = logging.getLogger(__name__)

TEMPORARY_PREFIX = "pytriton_workspace_"
_SCHEMA = 1  # of the JSON; increased if an existing member changes

_WARNING = (
    "The report shows paths, versions and settings of this machine: look at it before you pass it "
    "on, as it may contain sensitive information."
)


def run(
    arguments: Sequence[str], show: Callable[[str], None], complain: Callable[[str], None]
) -> int:
    """Run a check, whose name is the first argument; 1 unless everything works."""
    parser = _parser(arguments[0])
    options = parser.parse_args(arguments[1:])
    if options.secure:
        return _check_openness(options, parser, show)
    try:
        if not options.json:
            show(_WARNING)
        with _ended_in_order():
            outcome = run_command(
                arguments[0],
                options.workspace,
                packs=options.zip,
                show=_show_nothing if options.json else show,
            )
        show(json.dumps(outcome.to_json(), indent=2) if options.json else outcome.to_text())
    except FileExistsError as error:
        complain(f"Workspace {error.filename} exists, expected a new folder")
        return 1
    except OSError as error:
        complain(f"The report cannot be written: {error}")
        return 1
    return 0 if outcome.is_ok else 1


def _check_openness(
    options: argparse.Namespace, parser: OptionParser, show: Callable[[str], None]
) -> int:
    """Report what a running server lets strangers do; 1 if that is too much."""
    try:
        targets = openness.find_targets(
            options.url, options.grpc_url, options.metrics_url, options.ca_file
        )
    except ValueError as error:
        parser.error(str(error))
    report = CheckReport(_show_nothing if options.json else show)
    openness.check_openness(targets, report)
    outcome = CheckOutcome("check", report, None, None, None)
    if options.json:
        show(json.dumps(outcome.to_json(), indent=2))
    else:
        count, notes = report.count(State.FAILED), report.count(State.NOTE)
        verdict = f"{count} things are open, see [FAILED]" if count else "Nothing is open"
        show(f"{verdict}; worth a look: {notes}." if notes else f"{verdict}.")
    return 0 if outcome.is_ok else 1


@dataclasses.dataclass(frozen=True, slots=True)
class CheckOutcome:
    """What a command found, and where its files are."""

    command: str
    report: CheckReport
    workspace: pathlib.Path | None  # None if it was temporary and is not needed any more
    archive: pathlib.Path | None
    archive_error: str | None  # why it could not be made

    @property
    def is_ok(self) -> bool:
        """Whether nothing failed."""
        return not self.report.count(State.FAILED)

    def to_text(self) -> str:
        """Returns the last lines of the output."""
        failed, notes = self.report.count(State.FAILED), self.report.count(State.NOTE)
        verdict = "Everything works" if self.is_ok else f"{failed} of the checks failed, see above"
        lines = [f"{verdict}; worth a look, see above: {notes}." if notes else f"{verdict}."]
        lines += [f"Report and logs: {path}" for path in (self.workspace, self.archive) if path]
        if self.archive_error:
            lines.append(f"No zip file could be written: {self.archive_error}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Returns the whole outcome as a JSON document, which docs/check.md describes."""
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
    name: str, workspace: pathlib.Path | None, *, packs: bool | None, show: Callable[[str], None]
) -> CheckOutcome:
    """Run a command and keep its logs.

    Args:
        name: name of the command.
        workspace: folder to make for the logs; None makes a temporary one.
        packs: whether to make a zip file beside the folder; None makes one of a folder that was
            asked for, and of a temporary one if something failed.
        show: called with each line of the report when it is known.

    Returns:
        What was found.

    Raises:
        FileExistsError: The workspace exists already.
        OSError: The logs cannot be written.
    """
    report = CheckReport(show)
    if workspace is not None:
        folder = workspace.resolve()
        folder.mkdir(parents=True)
        _run_into(folder, name, report)
        archive, error = _zip_folder(folder) if packs is not False else (None, None)
        return CheckOutcome(name, report, folder, archive, error)
    folder = pathlib.Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX))
    try:
        _run_into(folder, name, report)
    except BaseException:  # such as Ctrl-C; the user does not know of the folder yet
        shutil.rmtree(folder, ignore_errors=True)
        raise
    archive, error = None, None
    is_needed = packs or report.count(State.FAILED) > 0
    if is_needed and packs is not False:
        archive, error = _zip_folder(folder)
    if is_needed and archive is None:
        return CheckOutcome(name, report, folder, None, error)
    shutil.rmtree(folder)
    return CheckOutcome(name, report, None, archive, None)


def _run_into(folder: pathlib.Path, name: str, report: CheckReport) -> None:
    COMMANDS[name](folder, report)
    _write(folder / "report.txt", report.to_text())


def _zip_folder(folder: pathlib.Path) -> tuple[pathlib.Path | None, str | None]:
    """Make a zip file beside a folder; returns its path, or why it could not be made."""
    try:
        archive = shutil.make_archive(str(folder.absolute()), "zip", folder)
    except OSError as error:  # such as a read-only folder
        return None, str(error)
    return pathlib.Path(archive), None


def _environment(folder: pathlib.Path, report: CheckReport) -> None:
    with _log_to_file(folder / "env_log.txt"):
        _write(folder / "packages.txt", installed_packages())
        report_environment(report)


def _example(function: str) -> Callable[[pathlib.Path, CheckReport], None]:
    """Returns the command that runs a function of `pytriton.tools.check.serving`."""

    def run(folder: pathlib.Path, report: CheckReport) -> None:
        with _log_to_file(folder / f"{function}_log.txt"):
            try:
                check = getattr(serving, function)
            except ImportError as error:
                logger.exception("Error occurred in command: %s", function)
                report.begin("Checking whether servers and clients can be imported")
                report.add(Finding.of_error(function, error))
            else:
                check(folder, report)

    return run


def _examples(folder: pathlib.Path, report: CheckReport) -> None:
    for function in ("example_add_sub", "example_add_sub_script", "example_repository"):
        _example(function)(_new_folder(folder / function), report)


def _check(folder: pathlib.Path, report: CheckReport) -> None:
    _environment(_new_folder(folder / "env"), report)
    _examples(_new_folder(folder / "examples"), report)


def _write(path: pathlib.Path, text: str) -> None:
    # File names may have any encoding.
    path.write_text(text + "\n", encoding="utf-8", errors="backslashreplace")


def _new_folder(folder: pathlib.Path) -> pathlib.Path:
    folder.mkdir()
    return folder


class _LogFile(logging.FileHandler):
    """A log file that reports a failure to write when it is closed, not with every line."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  the name is logging's
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


@contextlib.contextmanager
def _log_to_file(path: pathlib.Path) -> Iterator[None]:
    """Write everything that is logged in this context to a file."""
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


COMMANDS: dict[str, Callable[[pathlib.Path, CheckReport], None]] = {
    "check": _check,
    "env": _environment,
    "example-add-sub": _example("example_add_sub"),
    "example-add-sub-script": _example("example_add_sub_script"),
    "example-repository": _example("example_repository"),
    "examples": _examples,
}


@contextlib.contextmanager
def _ended_in_order() -> Iterator[None]:
    """Let SIGTERM also stop running servers, as Ctrl-C does, and not only this process."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)  # the exit code in a shell after a signal

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _parser(name: str) -> OptionParser:
    checks = "\n".join(f"  {check:<24}{text}" for check, text in CHECKS.items())
    parser = OptionParser(
        prog=f"pytriton {name}",
        usage="%(prog)s [-w FOLDER] [--no-zip] [--json]"
        + (" | --secure [-u ADDRESS]" if name == "check" else ""),
        description="Find out whether serving models works on this machine.",
        epilog=f"checks:\n{checks}\n\nexit code: 0 where everything works, 1 otherwise, "
        "130 after Ctrl-C",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "-w",
        "--workspace",
        type=pathlib.Path,
        metavar="FOLDER",
        help="folder for report and logs, which must not exist; default is a temporary one",
    )
    parser.add_argument(
        "--zip",
        action=argparse.BooleanOptionalAction,
        help="pack the workspace, beside it; a temporary one is only packed if something failed "
        "or if this is given, and is removed",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    if name != "check":
        parser.set_defaults(secure=False)
        return parser
    group = parser.add_argument_group("what a running server lets strangers do")
    group.add_argument(
        "--secure",
        action="store_true",
        help="ask a server, without a credential, what is open; exit code 1 if too much is",
    )
    group.add_argument(
        "-u", "--url", default="localhost", metavar="ADDRESS", help="of HTTP (localhost:8000)"
    )
    for port in ("grpc", "metrics"):
        group.add_argument(
            f"--{port}-url",
            metavar="ADDRESS",
            help=f"of {port}; default is what your own server tells, or a port after that of HTTP",
        )
    group.add_argument("--ca-file", metavar="FILE", help="certificates to trust")
    return parser


def _show_nothing(text: str) -> None:
    """Print nothing: with JSON, everything is printed at the end."""
