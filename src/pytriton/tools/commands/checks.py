# SPDX-License-Identifier: Apache-2.0
"""`pytriton check`, `env` and the examples: whether serving works on this machine."""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import signal
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from pytriton.tools.check.command import COMMANDS, run_command
from pytriton.utils.option_parser import OptionParser

_WARNING = (
    "The report shows paths, versions and settings of this machine: look at it before you pass it "
    "on, as it may contain sensitive information."
)


def run(
    arguments: Sequence[str], show: Callable[[str], None], complain: Callable[[str], None]
) -> int:
    """Run a check.

    Args:
        arguments: the command line, with the name of the check.
        show: prints a line of the report.
        complain: prints why there is no report.

    Returns:
        The exit code: 0 if everything works, 1 otherwise.
    """
    options = _parser(arguments[0]).parse_args(arguments[1:])
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
    checks = "\n".join(f"  {name:<24}{check.help}" for name, check in COMMANDS.items())
    parser = OptionParser(
        prog=f"pytriton {name}",
        usage="%(prog)s [-w FOLDER] [--no-zip] [--json]",
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
    return parser


def _show_nothing(text: str) -> None:
    """Print nothing: with JSON, everything is printed at the end."""
