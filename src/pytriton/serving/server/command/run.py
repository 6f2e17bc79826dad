# SPDX-License-Identifier: Apache-2.0
"""Runs the `tritonserver` command: reads its options, serves until a signal, prints errors."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pytriton.base.errors import InvalidArgumentError, ServerError, UnavailableError
from pytriton.base.lazy_module import LazyModule
from pytriton.base.log_switches import JSON_FORMAT
from pytriton.exceptions import PyTritonValidationError
from pytriton.runtime.transport.loop_spinner import allow_spinning
from pytriton.runtime.transport.zygote import set_process_title
from pytriton.serving.server.api.documents import TRITON_VERSION
from pytriton.serving.server.command.arguments import CommandLine, help_page, parse
from pytriton.serving.server.command.lifecycle import (
    Exit,
    exit_signals,
    reload_signal,
    shut_down,
)
from pytriton.serving.server.command.startup import (
    ProgressLine,
    StartError,
    creation_error,
    start_up,
)
from pytriton.serving.server.options.endpoints import Surroundings, default_repository
from pytriton.serving.server.options.flags import FlagError, Flags
from pytriton.serving.server.options.server_options import LogOptions, ServerOptions
from pytriton.serving.server.process.event_loop import freeze_memory, new_event_loop
from pytriton.serving.server.process.kept_lines import LogRing
from pytriton.serving.server.process.logs import ConsoleHandler, keep_lines, set_up_logging
from pytriton.serving.server.process.resources import (
    discard_unwritable_output,
    open_missing_streams,
    usable_cores,
)
from pytriton.utils.terminal import has_colours, width_of

if TYPE_CHECKING:
    from pytriton.serving.server.access import in_force
    from pytriton.serving.server.command.lifecycle import Build, ExitSignals, ServerLifecycle
else:
    in_force = LazyModule("pytriton.serving.server.access.in_force")

logger = logging.getLogger(__name__)

_SECRET_OPTION = "--page-token"  # noqa: S105  the name of an option
_HIDDEN = "..."


def run_command(arguments: Sequence[str], prepare: Callable[[ServerOptions], Build]) -> int:
    """Run the command.

    Args:
        arguments: the command line without the program's name.
        prepare: called before the event loop is there; returns the function that makes the server.

    Returns:
        The exit code: 0 after an orderly shutdown, 1 if the server could not start. If the server
        does not stop in time, this process exits at once, with code 1.
    """
    open_missing_streams()
    try:
        return _run(arguments, prepare)
    finally:
        discard_unwritable_output()


def _run(arguments: Sequence[str], prepare: Callable[[ServerOptions], Build]) -> int:
    progress = ProgressLine(sys.stderr)
    try:
        command_line = parse(arguments)
        if command_line.wants_help or command_line.wants_version:
            print(_answer(command_line), end="")  # noqa: T201  the output of the command
            return 0
        options = _options(command_line, progress)
    except PyTritonValidationError as error:
        _print_error(_refusal(error))
        return 1
    if not options.repository.paths:
        _print_error(creation_error(InvalidArgumentError("--model-repository must be specified")))
        return 1
    _hide_secrets(arguments)
    outcome = _serve(options, prepare(options), progress)
    if outcome is Exit.AT_ONCE:
        _exit_at_once()
    return outcome.value


def _hide_secrets(arguments: Sequence[str]) -> None:
    """Show the command without the page's token in lists of processes."""
    shown = without_secrets(arguments)
    if shown != list(arguments):
        set_process_title(" ".join(["tritonserver", *shown]))


def without_secrets(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments with the value of the page's token replaced."""
    shown = []
    is_secret = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if is_secret:
            shown.append(_HIDDEN)
        elif name == _SECRET_OPTION and equals:
            shown.append(f"{name}={_HIDDEN}")
        else:
            shown.append(argument)
        is_secret = argument == _SECRET_OPTION
    return shown


def _answer(command_line: CommandLine) -> str:
    if command_line.wants_help:
        return help_page(width_of(sys.stdout), is_coloured=has_colours(sys.stdout))
    from importlib import metadata  # noqa: PLC0415  takes 50 ms, and a server does not need it

    version = metadata.version("pytriton")
    return f"pytriton {version}, speaks the protocols of Triton {TRITON_VERSION}\n"


def _options(command_line: CommandLine, progress: ProgressLine) -> ServerOptions:
    """Set up logging and return the settings."""
    around = Surroundings.read(usable_cores())
    values = {**default_repository(around.variables), **command_line.values}
    log = LogOptions(**Flags(values).record("log"))
    try:
        set_up_logging(log, ConsoleHandler(sys.stdout, sys.stderr, progress))
    except OSError as error:
        raise FlagError("log-file", f"the log cannot be written: {error}") from error
    options = ServerOptions.from_triton_config(
        values,
        is_command=True,
        surroundings=around,
    )
    if options.access.config is not None:  # before models are loaded, which may take long
        try:
            in_force.read_first(options.access.config)
        except UnavailableError as error:
            raise FlagError("auth-config", f"--auth-config: {error.message}") from None
    if options.has_page:
        keep_lines(LogRing(), log.switches)
    for warning in command_line.warnings:
        logger.warning("%s", warning)
    return options


def _refusal(error: PyTritonValidationError) -> str:
    """Returns the message for a bad command line, without the long list of options."""
    option = f'Bad option: "{error.flag}".\n' if isinstance(error, FlagError) else ""
    return f"{option}{error.message}\n'tritonserver --help' lists all options."


def _serve(options: ServerOptions, build: Build, progress: ProgressLine) -> Exit:
    allow_spinning(usable_cores())
    loop = new_event_loop()
    try:
        return loop.run_until_complete(run(options, build, progress))
    finally:
        loop.close()


async def run(options: ServerOptions, build: Build, progress: ProgressLine) -> Exit:
    """Serve until a signal comes; returns how the process has to end."""
    loop = asyncio.get_running_loop()
    # A reader of JSON lines expects nothing else between them.
    is_json = options.log.format == JSON_FORMAT
    with exit_signals(loop, is_logged=is_json) as signals:
        try:
            serving = await build(options, loop)
        except ServerError as error:
            _print_error(creation_error(error))
            return Exit.FAILED
        reloading: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if any(options.uses_tls):
            reloading = reload_signal(loop, serving.reload_certificates, signals.on_signal)
        with reloading:
            return await _run_started(serving, options, progress, signals)


async def _run_started(
    serving: ServerLifecycle, options: ServerOptions, progress: ProgressLine, signals: ExitSignals
) -> Exit:
    width = None if options.log.file else width_of(sys.stdout)
    starting = asyncio.ensure_future(start_up(serving, options, progress, width))
    try:
        await _until(starting, signals.first)
    except StartError as error:
        await serving.stop(0)
        _print_error(error)
        return Exit.FAILED
    freeze_memory()
    await signals.first
    return await shut_down(serving, options, signals)


async def _until(starting: asyncio.Task[Any], signal_received: asyncio.Future[None]) -> None:
    """Wait until the server has started; cancel that if a signal comes."""
    ends: set[asyncio.Future[Any]] = {starting, signal_received}
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait({starting})
    if not starting.cancelled():
        starting.result()


def _print_error(text: object) -> None:
    if str(text):
        with contextlib.suppress(OSError):  # the reader of the output may have ended
            print(text, file=sys.stderr, flush=True)  # noqa: T201  the output of the command


def _exit_at_once() -> None:
    """Exit without waiting for threads and children; children end when their sockets close."""
    logging.shutdown()
    with contextlib.suppress(OSError):  # the reader of the output may have ended
        sys.stdout.flush()
    os._exit(Exit.FAILED.value)
