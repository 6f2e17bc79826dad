# SPDX-License-Identifier: Apache-2.0
"""`pytriton` and `python -m pytriton`: runs the command that is named first."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytriton
from pytriton.tools.commands.output import OutputError, accept_any_name, complain, show
from pytriton.tools.commands.table import help_text, module_of, row_of, unknown_text

_FAILED, _WRONG_OPTIONS = 1, 2
# With these alone, NVIDIA PyTriton's command checks the machine.
_OPTIONS_OF_CHECK = ("-w", "--workspace", "--zip", "--no-zip", "--json")
_INTERRUPTED = 130  # the exit code in a shell of a program that Ctrl-C ended


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: command line without the program's name; by default that of this process.

    Returns:
        The exit code: 0 if it worked, 1 if it did not, 2 if the command line is wrong, 130 after
        Ctrl-C. Commands may have others, which their help names.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    accept_any_name()
    try:
        return _run(given)
    except KeyboardInterrupt:
        complain("Interrupted")
        return _INTERRUPTED
    except OutputError as error:
        complain(f"The output cannot be written: {error}")
        return _FAILED


def _run(given: list[str]) -> int:
    if given[:1] == ["help"] and len(given) > 1:
        given = [given[1], "--help"]
    if given[:1] in ([], ["-h"], ["--help"], ["help"]):
        show(help_text())
        return 0
    if given[:1] == ["--version"]:
        show(f"pytriton {pytriton.__version__}")
        return 0
    if given[0].partition("=")[0] in _OPTIONS_OF_CHECK:
        given = ["check", *given]
    name = given[0]
    row = row_of(name)
    if row is None:
        complain(unknown_text(name))
        return _WRONG_OPTIONS
    return module_of(row).run(given if row.passes_name else given[1:], show, complain)


if __name__ == "__main__":
    sys.exit(main())
