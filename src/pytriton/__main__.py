# SPDX-License-Identifier: Apache-2.0
"""`pytriton` and `python -m pytriton`: checks of this machine, and summaries of traces."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import pathlib
import signal
import sys
from collections.abc import Iterator, Sequence
from types import FrameType

from pytriton.check.command import COMMANDS, run_command
from pytriton.check.packages import PACKAGE, version_of
from pytriton.trace_summary import command as trace_command

_WARNING = (
    "The report shows paths, versions and settings of this machine: look at it before you pass it "
    "on, as it may contain sensitive information."
)
_INTERRUPTED = 130  # the exit code in a shell of a program that Ctrl-C ended


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: command line without the program's name; by default that of this process.

    Returns:
        The exit code: 0 if everything works, 1 if something does not, 130 after Ctrl-C.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files may be in any encoding
    if given[:1] == [trace_command.NAME]:
        return trace_command.run(given[1:], _show, _complain)
    options = _parser().parse_args(given)
    try:
        if not options.json:
            _show(_WARNING)
        with _ended_in_order():
            outcome = run_command(
                options.command,
                options.workspace,
                packs=options.zip,
                show=_show_nothing if options.json else _show,
            )
        _show(json.dumps(outcome.to_json(), indent=2) if options.json else outcome.to_text())
    except KeyboardInterrupt:
        print("Interrupted", file=sys.stderr)  # noqa: T201
        return _INTERRUPTED
    except FileExistsError as error:
        print(f"Workspace {error.filename} exists, expected a new folder", file=sys.stderr)  # noqa: T201
        return 1
    except OSError as error:
        print(f"The report cannot be written: {error}", file=sys.stderr)  # noqa: T201
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


def _parser() -> argparse.ArgumentParser:
    helps = {name: command.help for name, command in COMMANDS.items()}
    helps[f"{trace_command.NAME} FILE"] = trace_command.HELP
    commands = "\n".join(f"  {name:<24}{text}" for name, text in helps.items())
    parser = argparse.ArgumentParser(
        prog="pytriton",
        description="Find out whether serving models works on this machine.",
        epilog=f"commands:\n{commands}\n\nexit code: 0 where everything works, 1 otherwise, "
        "130 after Ctrl-C",
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
        help="pack the workspace, beside it; of a temporary one only that stays",
    )
    parser.add_argument("--version", action="version", version=f"{PACKAGE} {version_of(PACKAGE)}")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    return parser


def _show(text: str) -> None:
    try:
        print(text, flush=True)  # noqa: T201  the output of the command
    except OSError as error:
        # Otherwise Python would try to write the rest at its exit, and print an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # A reader such as `head` may stop early; the report file and the exit code are complete.
        if not isinstance(error, BrokenPipeError):  # the disk is full
            raise


def _complain(text: str) -> None:
    print(text, file=sys.stderr)  # noqa: T201


def _show_nothing(text: str) -> None:
    """Print nothing: with JSON, everything is printed at the end."""


if __name__ == "__main__":
    sys.exit(main())
