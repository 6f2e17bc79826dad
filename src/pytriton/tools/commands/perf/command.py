# SPDX-License-Identifier: Apache-2.0
"""The command `pytriton perf`: measures a model under load."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Sequence

from pytriton.tools.commands.perf.arguments import make_parser
from pytriton.tools.commands.perf.options import options_of
from pytriton.tools.commands.perf.results import check_outputs, compared_runs, write_results
from pytriton.tools.commands.perf.session import Interrupts, MakeLoad, Measured, PerfSession
from pytriton.tools.perf.errors import FAILED, SUCCESS, UNSTABLE, OptionError, PerfError
from pytriton.tools.perf.load.interface import GeneratorError
from pytriton.tools.perf.load.process_load import ProcessLoad
from pytriton.tools.perf.measuring.stability import LevelStatus
from pytriton.utils.option_parser import closed


def run(
    arguments: Sequence[str],
    show: Callable[[str], None],
    complain: Callable[[str], None],
    make_load: MakeLoad = ProcessLoad,
) -> int:
    """Run the command.

    Args:
        arguments: The command line after `perf`.
        show: Prints a text.
        complain: Prints an error.
        make_load: Makes the load generator.

    Returns:
        The exit code, one of perf_analyzer's.
    """
    interrupts = Interrupts()
    try:
        given = make_parser().parse_args(arguments)
        if given.wants_version:
            show(f"pytriton {importlib.metadata.version('pytriton')}")
            return SUCCESS
        options = options_of(given)
        check_outputs(options)
        compared = compared_runs(options)
        with interrupts.caught():
            measured = PerfSession(options, make_load, show, complain).run(interrupts)
        write_results(measured, options, compared, arguments, show, complain)
    except OptionError as error:
        complain(f"Error: {closed(str(error))} 'pytriton perf --help' lists all options.")
        return error.code
    except (PerfError, GeneratorError) as error:
        complain(f"error: {error}")
        return getattr(error, "code", FAILED)
    except KeyboardInterrupt:
        return SUCCESS  # as perf_analyzer, whose second interrupt ends it at once
    code = exit_code(measured, allow_unstable=options.measurement.allow_unstable)
    if code == UNSTABLE:
        complain("Failed to obtain stable measurement.")
    return code


def exit_code(measured: Measured, *, allow_unstable: bool) -> int:
    """2 if the first level was not stable and has to be, 99 if one had no answer."""
    every = [result for results in measured.results for result in results]
    if any(result.status is LevelStatus.FAILED for result in every):
        return FAILED
    firsts = [results[0] for results in measured.results if results]
    if not allow_unstable and any(result.status is LevelStatus.UNSTABLE for result in firsts):
        return UNSTABLE
    return SUCCESS
