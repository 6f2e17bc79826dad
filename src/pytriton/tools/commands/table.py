# SPDX-License-Identifier: Apache-2.0
"""All commands of `pytriton`, in the order of its help; a module is imported when it is run."""

from __future__ import annotations

import dataclasses
import difflib
import enum
import importlib
from collections.abc import Callable
from typing import Protocol, cast

from pytriton.base.openblas import load_without_threads
from pytriton.tools.check import CHECKS


class Group(enum.Enum):
    """The headings of the help."""

    SERVE = "Serve models and ask them"
    PROJECT = "Begin a project, and deploy it"
    MEASURE = "Measure and tune"
    LOOK_AFTER = "Look after a server"
    CHECK = "Check this machine"
    COMPILE = "Programs in C"


@dataclasses.dataclass(frozen=True, slots=True)
class CommandRow:
    """A command: how the help shows it, and the module that runs it."""

    group: Group
    name: str
    arguments: str  # as the help shows them
    help: str  # one line without a full stop
    module: str  # the name of a `Module`
    passes_name: bool = False  # whether the name is the first of the arguments for the module


class Module(Protocol):
    """The module of a command.

    `run` gets the command line after the command's name, a function that prints results, and one
    that prints errors. It returns the exit code.
    """

    run: Callable[[list[str], Callable[[str], None], Callable[[str], None]], int]


def _check(name: str, text: str) -> CommandRow:
    """Returns the row of a check; one module runs all of them."""
    return CommandRow(Group.CHECK, name, "", text, "pytriton.tools.check.command", passes_name=True)


ROWS = (
    CommandRow(
        Group.SERVE,
        "serve",
        "FILE.py[:object]",
        "serve functions, with tensors from their type annotations",
        "pytriton.tools.commands.serve.command",
    ),
    CommandRow(
        Group.SERVE,
        "infer",
        "MODEL [name=value]",
        "ask a model of any KServe v2 server and print the answer",
        "pytriton.tools.commands.infer.command",
    ),
    CommandRow(
        Group.SERVE,
        "models",
        "[MODEL]",
        "list the models of a server: states, inputs, outputs",
        "pytriton.tools.commands.models",
    ),
    CommandRow(
        Group.PROJECT,
        "new",
        "NAME --kind KIND",
        "write a small project that runs, with a test and a README",
        "pytriton.tools.commands.project.new",
    ),
    CommandRow(
        Group.PROJECT,
        "package",
        "[PROJECT]",
        "write a Dockerfile, a compose file and Helm values for a project",
        "pytriton.tools.commands.project.package",
    ),
    CommandRow(
        Group.MEASURE,
        "perf",
        "MODEL",
        "measure a model under load, with plots and comparisons",
        "pytriton.tools.commands.perf.command",
    ),
    CommandRow(
        Group.MEASURE,
        "tune",
        "MODEL",
        "find the batch size, delay and instances of a model",
        "pytriton.tools.commands.tune.command",
    ),
    CommandRow(
        Group.MEASURE,
        "record",
        "FILE",
        "record requests and answers of a running server",
        "pytriton.tools.commands.record",
    ),
    CommandRow(
        Group.MEASURE,
        "replay",
        "FILE",
        "send recorded requests again, and compare the answers",
        "pytriton.tools.commands.replay",
    ),
    CommandRow(
        Group.LOOK_AFTER,
        "top",
        "",
        "live view of a server: requests, queues, batches, latencies",
        "pytriton.tools.commands.top.command",
    ),
    CommandRow(
        Group.LOOK_AFTER,
        "key",
        "create|list|revoke",
        "make, list and revoke the keys of a server's clients",
        "pytriton.tools.commands.key",
    ),
    CommandRow(
        Group.LOOK_AFTER,
        "page",
        "",
        "link to the page of your own server, with its token",
        "pytriton.tools.commands.own_server",
    ),
    CommandRow(
        Group.LOOK_AFTER,
        "trace",
        "FILE",
        "summarise files of traces",
        "pytriton.tools.trace_summary",
    ),
    *(_check(name, text) for name, text in CHECKS.items()),
    CommandRow(
        Group.COMPILE,
        "include",
        "",
        "print the folder of the C headers, for -I when compiling a backend",
        "pytriton.tools.commands.include",
    ),
    CommandRow(
        Group.COMPILE,
        "c-library",
        "",
        "compile libtritonserver.so, print the flags to compile and link with it",
        "pytriton.inprocess.c_library.command",
    ),
)
_MAIN_OPTIONS = ("--help", "--version")
_WIDTH = 25  # of the column of names


def row_of(name: str) -> CommandRow | None:
    """Returns the row of a command, or None if there is no such command."""
    return next((row for row in ROWS if row.name == name), None)


def module_of(row: CommandRow) -> Module:
    """Import the module of a command."""
    load_without_threads()  # most of them import numpy
    return cast("Module", importlib.import_module(row.module))


def help_text() -> str:
    """Returns the list of all commands, in groups."""
    lines = [
        "usage: pytriton COMMAND [options]",
        "       pytriton COMMAND --help     what a command does, and its options",
        "       pytriton --version",
    ]
    for group in Group:
        rows = [row for row in ROWS if row.group is group]
        if rows:
            lines += ["", f"{group.value}:"]
            lines += [f"  {f'{row.name} {row.arguments}':<{_WIDTH}} {row.help}" for row in rows]
    lines += [
        "",
        "tritonserver --model-repository=FOLDER serves a repository; see tritonserver --help.",
        "Exit code: 0 if it worked, 1 if not, 2 if the command line is wrong, 130 after Ctrl-C.",
    ]
    return "\n".join(lines)


def unknown_text(name: str) -> str:
    """Returns what to say about a command that does not exist."""
    known = [*(row.name for row in ROWS), *_MAIN_OPTIONS]
    near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.6)
    hint = f"Did you mean {' or '.join(repr(each) for each in near)}?" if near else ""
    return " ".join(
        filter(
            None,
            [f"'{name}' is not a command.", hint, "'pytriton --help' lists all commands."],
        )
    )
