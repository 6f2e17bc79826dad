# SPDX-License-Identifier: Apache-2.0
"""The parser of the commands: one line says what is wrong, and which option is the nearest."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn


def unknown_option(argument: str, options: Iterable[str]) -> str:
    """Returns what to say about an option that a command does not have.

    Args:
        argument: what was given, with its value if that is in the same argument.
        options: the options of the command, each with its dashes.
    """
    near = difflib.get_close_matches(argument.partition("=")[0], list(options), n=1)
    return f"unrecognized option '{argument}'" + "".join(f", did you mean {it}?" for it in near)


class OptionParser(argparse.ArgumentParser):
    """A parser that ends the program with one line, where argparse prints the whole usage."""

    def parse_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> Any:
        """Read a command line; a wrong one ends the program with exit code 2."""
        options, rest = self.parse_known_args(args, namespace)
        self.refuse(rest)
        return options

    def parse_intermixed_args(
        self, args: Iterable[str] | None = None, namespace: Any = None
    ) -> Any:
        """Read a command line whose options may stand between the positional arguments."""
        options, rest = self.parse_known_intermixed_args(args, namespace)
        self.refuse(rest)
        return options

    def error(self, message: str) -> NoReturn:
        """End the program."""
        self.exit(2, f"{self.prog}: {closed(message)} '{self.prog} --help' lists all options.\n")

    def refuse(self, rest: Sequence[str], other: OptionParser | None = None) -> None:
        """End the program if arguments are left that no parser knows.

        Args:
            rest: the arguments that are left.
            other: a further parser, one of whose options may be meant.
        """
        for argument in rest:
            if argument.startswith("-"):
                known = [*self.shown_options(), *(other.shown_options() if other else ())]
                self.error(unknown_option(argument, known))
        if rest:
            self.error(f"unexpected argument '{rest[0]}'")

    def shown_options(self) -> list[str]:
        """Returns the options that the help shows."""
        actions = [action for action in self._actions if action.help != argparse.SUPPRESS]
        return [name for action in actions for name in action.option_strings]


def closed(sentence: str) -> str:
    """Returns a sentence with a full stop where it has no other mark at its end."""
    return sentence if sentence.endswith((".", "?", "!")) else f"{sentence}."
