# SPDX-License-Identifier: Apache-2.0
"""Parses a command line by the table of settings, and makes the page of `tritonserver --help`."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pytriton.base.settings import BY_NAME, SETTINGS, ServerSetting, Takes
from pytriton.exceptions import PyTritonValidationError
from pytriton.serving.server.options.flags import FlagError, Flags
from pytriton.utils.option_parser import unknown_option
from pytriton.utils.terminal import Colour, paint

_PROGRAM = "tritonserver"
_SHORT = {"-h": "--help"}
_PAIR = re.compile(r"-?\d+:\d+(\.\d*)?")
_FORMS = {  # of options that have no effect, so that a mistake does not wait for another server
    "<device>:<bytes>": _PAIR,
    "<device>:<fraction>": _PAIR,
    "<policy name>,<setting>=<value>": re.compile(r"[^,=]+,(numa-node|cpu-cores)=.+"),
}
_VERBOSE = {"true": "1", "false": "0"}  # its level was a boolean once, and both are taken
USAGE = "Usage: tritonserver --model-repository=<path> [options]"
_INTRODUCTION = (
    "Serves the models of a repository over Triton's HTTP and gRPC protocols. A value follows its "
    "option after a space or '='. Booleans are true, on, 1, false, off or 0."
)
_EXAMPLES = (
    "tritonserver --model-repository=/models",
    "tritonserver --model-repository=/models --http-port=9000 --allow-grpc=false",
    "tritonserver --model-repository=/models --model-control-mode=explicit --load-model=resnet",
)
_INDENT = " " * 6
_WIDEST = 100


@dataclass(slots=True)
class CommandLine:
    """The parsed options: values by name with underscores, as `ServerOptions` reads them."""

    values: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    wants_help: bool = False
    wants_version: bool = False


def parse(arguments: Iterable[str]) -> CommandLine:
    """Read the command line without the program's name; the last value of an option counts.

    Raises:
        PyTritonValidationError: for an unknown option, a missing value, or another argument.
    """
    command_line = CommandLine()
    for option, value in _pairs(iter(arguments)):
        if option.name == "help":
            command_line.wants_help = True
            break
        if option.name == "version":
            command_line.wants_version = True
            break
        if option.name == "log-verbose":
            value = _VERBOSE.get(value.lower(), value)  # noqa: PLW2901 - it is the value
        _warn(command_line, option, value)
        if option.becomes or not option.has_effect:
            _check(option, value)
        name, prefix = option.becomes or (option.name, "")
        setting = BY_NAME[name]
        if setting.is_repeatable:
            command_line.values.setdefault(setting.key, []).append(prefix + value)
        else:
            command_line.values[setting.key] = prefix + value
    return command_line


def _pairs(arguments: Iterator[str]) -> Iterator[tuple[ServerSetting, str]]:
    for given in arguments:
        argument = _SHORT.get(given, given)
        if argument == "--":  # what follows is no option, and other arguments are not taken
            argument = next(arguments, "")
            if not argument:
                return
            raise PyTritonValidationError(f"Unexpected argument: {argument}")
        if not argument.startswith("--"):
            raise PyTritonValidationError(f"Unexpected argument: {argument}")
        name, equals, value = argument[2:].partition("=")
        option = _find(argument, name)
        name = option.name
        if option.takes is Takes.NOTHING:
            if equals:
                raise PyTritonValidationError(
                    f"{_PROGRAM}: option '--{name}' doesn't allow an argument"
                )
            value = "true"
        elif not equals:
            try:
                value = next(arguments)
            except StopIteration:
                raise PyTritonValidationError(
                    f"{_PROGRAM}: option '--{name}' requires an argument"
                ) from None
        yield option, value


def _find(argument: str, name: str) -> ServerSetting:
    """Returns the option of this name, or the only one that begins with it, as in Triton."""
    if name in BY_NAME:
        return BY_NAME[name]
    begun = [option for known, option in BY_NAME.items() if name and known.startswith(name)]
    if len(begun) > 1:
        names = " ".join(f"'--{option.name}'" for option in begun)
        raise PyTritonValidationError(
            f"{_PROGRAM}: option '{argument}' is ambiguous; possibilities: {names}"
        )
    if not begun:
        message = unknown_option(argument, (f"--{known}" for known in BY_NAME))
        raise PyTritonValidationError(f"{_PROGRAM}: {message}")
    return begun[0]


def _warn(command_line: CommandLine, option: ServerSetting, value: str) -> None:
    if option.instead:
        instead = option.instead.replace("...", value)
        command_line.warnings.append(
            f"'--{option.name}' has been deprecated, please use '{instead}' instead"
        )
    if not option.has_effect:
        command_line.warnings.append(f"--{option.name} has no effect on this server")


def _check(option: ServerSetting, value: str) -> None:
    """Refuse a value of the wrong kind; `ServerOptions` checks the other options."""
    form = _FORMS.get(option.form)
    if form is not None and not form.fullmatch(value):
        raise FlagError(
            option.name, f"--{option.name} option format is '{option.form}'. Got {value}"
        )
    flags = Flags({option.key: value})
    if option.is_repeatable:
        flags.text(option.key)
    else:
        flags.value(option.key)


def help_page(width: int | None = None, *, is_coloured: bool = False) -> str:
    """Returns the help page: all options by group, at most as wide as is easy to read."""
    width = max(40, min(width or _WIDEST, _WIDEST))
    return "\n".join(_lines(width, is_coloured)) + "\n"


def _lines(width: int, is_coloured: bool) -> Iterator[str]:
    def heading(text: str) -> str:
        return paint(text, Colour.BOLD) if is_coloured else text

    yield heading(USAGE)
    yield ""
    yield from textwrap.wrap(_INTRODUCTION, width)
    yield ""
    yield heading("Examples:")
    yield from (f"  {example}" for example in _EXAMPLES)
    for group, options in SETTINGS.items():
        yield ""
        yield heading(f"{group}:")
        for option in options:
            yield _title(option, is_coloured)
            yield from textwrap.wrap(
                _description(option),
                width,
                initial_indent=_INDENT,
                subsequent_indent=_INDENT,
                break_long_words=False,
                break_on_hyphens=False,
            )


def _title(option: ServerSetting, is_coloured: bool) -> str:
    name = f"--{option.name}"
    rest = f" {option.value}" if option.value else ""
    rest += f"  (default {option.default})" if option.default else ""
    if is_coloured:
        name, rest = paint(name, Colour.CYAN), paint(rest, Colour.DIM)
    return f"  {name}{rest}"


def _description(option: ServerSetting) -> str:
    sentences = [option.help]
    if option.instead:
        sentences.append(f"Use {option.instead} instead.")
    if not option.has_effect:
        sentences.append("Taken for compatibility, without effect here.")
    return " ".join(sentences)
