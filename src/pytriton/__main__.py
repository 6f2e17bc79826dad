# SPDX-License-Identifier: Apache-2.0
"""`pytriton` and `python -m pytriton`: whether serving works on this machine."""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Sequence

from pytriton.check.command import COMMANDS, run_command
from pytriton.check.report import Section

_WARNING = (
    "The report shows paths, versions and settings of this machine: look at it before you pass it "
    "on, as it may contain sensitive information."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: command line without the program's name; default is that of this process.

    Returns:
        The exit code: 0 where everything works, 1 where something does not.
    """
    options = _parser().parse_args(arguments)
    if not options.json:
        print(_WARNING)  # noqa: T201  this module talks to a person
    try:
        outcome = run_command(
            options.command,
            options.workspace,
            packs=options.zip,
            show=_show_nothing if options.json else _show,
        )
    except FileExistsError as error:
        print(f"Workspace {error.filename} exists, expected a new folder", file=sys.stderr)  # noqa: T201
        return 1
    except OSError as error:
        print(f"The report cannot be kept: {error}", file=sys.stderr)  # noqa: T201
        return 1
    print(json.dumps(outcome.to_json(), indent=2) if options.json else outcome.to_text())  # noqa: T201
    return 0 if outcome.is_ok else 1


def _parser() -> argparse.ArgumentParser:
    commands = "\n".join(f"  {name:<24}{command.help}" for name, command in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="pytriton",
        description="Find out whether serving models works on this machine.",
        epilog=f"commands:\n{commands}\n\nexit code: 0 where everything works, 1 otherwise",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "command", nargs="?", choices=COMMANDS, default="check", metavar="COMMAND", help="see below"
    )
    parser.add_argument(
        "-w",
        "--workspace",
        type=pathlib.Path,
        help="folder for report and logs, which must not exist; default is a temporary one",
    )
    parser.add_argument(
        "--zip",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="pack the workspace: beside it, or into the current folder where it is temporary",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    return parser


def _show(section: Section) -> None:
    print(section.to_text(), flush=True)  # noqa: T201


def _show_nothing(section: Section) -> None:
    """Who reads JSON gets everything at the end."""


if __name__ == "__main__":
    sys.exit(main())
