# SPDX-License-Identifier: Apache-2.0
"""`pytriton perf`: measures a model under load, then writes files, pictures and comparisons."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import os
import pathlib
import platform
import shlex
from collections.abc import Callable, Sequence

from pytriton.tools.commands.perf.arguments import make_parser
from pytriton.tools.commands.perf.options import PerfOptions, options_of
from pytriton.tools.commands.perf.session import (
    Interrupts,
    MakeLoad,
    Measured,
    PerfSession,
    PerfTarget,
    label_of,
)
from pytriton.tools.perf.errors import (
    FAILED,
    SUCCESS,
    UNSTABLE,
    GeneratorError,
    OptionError,
    PerfError,
)
from pytriton.tools.perf.load.process_load import ProcessLoad
from pytriton.tools.perf.measuring.results import LevelResult, LevelStatus
from pytriton.tools.perf.output.exports import (
    composing_texts,
    csv_text,
    unaccounted_us,
    write_export,
)
from pytriton.tools.perf.output.panels import panels_of
from pytriton.tools.perf.output.run_document import (
    RunDocument,
    ServerRun,
    comparison_text,
    level_record,
    read_run,
)
from pytriton.tools.perf.output.run_page import run_page
from pytriton.tools.perf.output.text import SMALL_SAMPLE, comparison_lines
from pytriton.tools.plots.page import page_html
from pytriton.tools.plots.pictures import PlotError, check_available, draw
from pytriton.utils.option_parser import closed

_SECRETS = ("--token", "-H")


def run(
    arguments: Sequence[str],
    show: Callable[[str], None],
    complain: Callable[[str], None],
    make_load: MakeLoad = ProcessLoad,
) -> int:
    """Measure; the exit codes are those of perf_analyzer."""
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


def reported(results: Sequence[LevelResult], options: PerfOptions) -> list[LevelResult]:
    """The levels that have a row."""
    allow = options.measurement.allow_unstable
    return [
        result
        for result in results
        if result.summary.latency is not None
        and (result.status.has_numbers or (allow and result.status is LevelStatus.UNSTABLE))
    ]


def write_results(
    measured: Measured,
    options: PerfOptions,
    compared: Sequence[ServerRun],
    command_line: Sequence[str],
    show: Callable[[str], None],
    complain: Callable[[str], None],
) -> None:
    """Print the last part of the report, and write the files that were asked for.

    Raises:
        PerfError: A file cannot be written.
    """
    document = document_of(measured, options, command_line)
    _show_levels(measured, options, show, complain)
    for other in [*document.runs[1:], *compared]:
        show("")
        show(comparison_text(document.runs[0], other))
    try:
        _write_tables(measured, options)
        _write_documents(document, measured, options)
        _write_pictures(document, compared, options, show)
    except PlotError as error:
        raise PerfError(str(error)) from error
    except OSError as error:
        raise PerfError(f"{error.filename} cannot be written: {error.strerror}") from error


def _show_levels(
    measured: Measured,
    options: PerfOptions,
    show: Callable[[str], None],
    complain: Callable[[str], None],
) -> None:
    for target, results in zip(measured.targets, measured.results, strict=True):
        rows = reported(results, options)
        if not rows:
            continue
        if len(measured.targets) > 1:
            show(label_of(target, measured.targets))
        show(comparison_lines(rows, measured.settings))
        if target.statistics is not None and any(
            unaccounted_us(row, measured.settings) < 0 for row in rows
        ):
            complain(SMALL_SAMPLE)


def check_outputs(options: PerfOptions) -> None:
    """Find out before the load whether its results can be written.

    Raises:
        PerfError: matplotlib or a folder is missing.
    """
    given = options.given
    for name in (given.csv, given.json, given.html, given.plot, given.profile_export_file):
        if name and not pathlib.Path(name).parent.is_dir():
            raise PerfError(f"{name} cannot be written: there is no folder for it")
    if given.html or given.plot or given.plots:
        try:
            check_available()
        except PlotError as error:
            raise PerfError(str(error)) from error


def compared_runs(options: PerfOptions) -> list[ServerRun]:
    """The saved runs that this one is compared with.

    Raises:
        PerfError: The file cannot be read.
    """
    if not options.given.compare:
        return []
    path = pathlib.Path(options.given.compare)
    saved = read_run(path)
    return [
        ServerRun(f"{path.stem}" + (f" {run.label}" if len(saved.runs) > 1 else ""), run.url,
                  run.protocol, run.server, run.model, run.levels)
        for run in saved.runs
    ]  # fmt: skip


def _write_tables(measured: Measured, options: PerfOptions) -> None:
    given = options.given
    if not given.csv:
        return
    for number, (target, results) in enumerate(
        zip(measured.targets, measured.results, strict=True)
    ):
        path = pathlib.Path(given.csv)
        if number:
            path = path.with_stem(f"{path.stem}_against")
        rows = reported(results, options)
        if not rows:
            continue
        path.write_text(
            csv_text(
                rows,
                measured.settings,
                verbose=given.verbose_csv,
                with_gpu=given.verbose_csv and given.collect_metrics,
            ),
            "utf-8",
        )
        if target.model.composing:
            for place, text in composing_texts(rows, path).items():
                place.write_text(text, "utf-8")


def _write_documents(document: RunDocument, measured: Measured, options: PerfOptions) -> None:
    given = options.given
    if given.json:
        pathlib.Path(given.json).write_text(document.to_json(), "utf-8")
    if given.profile_export_file:
        sets = [each for stream in measured.targets[0].inputs.streams for each in stream]
        version = importlib.metadata.version("pytriton")
        path = pathlib.Path(given.profile_export_file)
        write_export(path, measured.results[0], sets, version)


def _write_pictures(
    document: RunDocument,
    compared: Sequence[ServerRun],
    options: PerfOptions,
    show: Callable[[str], None],
) -> None:
    given = options.given
    if not (given.html or given.plot or given.plots):
        return
    panels = panels_of(document, compared)
    if not panels:
        raise PerfError("there is nothing to plot: no level has numbers")
    if given.html:
        drawn = [draw([panel]).svg() for panel in panels.values()]
        page = page_html(run_page(document, drawn, compared))
        pathlib.Path(given.html).write_text(page, "utf-8")
        show(f"\nThe page is {given.html}")
    if given.plot:
        title = f"{document.runs[0].model}: {' and '.join(run.label for run in document.runs)}"
        pathlib.Path(given.plot).write_bytes(draw(list(panels.values()), title=title).png())
        show(f"\nThe plots are in {given.plot}")
    if given.plots:
        folder = pathlib.Path(given.plots)
        folder.mkdir(parents=True, exist_ok=True)
        for name, panel in panels.items():
            (folder / f"{name}.png").write_bytes(draw([panel]).png())
        show(f"\nThe plots are in {given.plots}: {', '.join(f'{name}.png' for name in panels)}")


def document_of(
    measured: Measured, options: PerfOptions, command_line: Sequence[str]
) -> RunDocument:
    """The whole run; levels that are not stable are in it, and marked."""
    load, measurement = options.load, options.measurement
    return RunDocument(
        when=dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        mode=load.mode.value,
        percentile=measurement.percentile,
        is_decoupled=measured.settings.is_decoupled,
        latency_limit_ms=measurement.latency_limit_ms,
        runs=[
            _server_run(target, measured.targets, results)
            for target, results in zip(measured.targets, measured.results, strict=True)
        ],
        settings={
            "command": shlex.join(["pytriton", "perf", *without_secrets(command_line)]),
            "window": f"{measurement.window_requests} requests"
            if measurement.window_requests
            else f"{measurement.window_ms} ms",
            "stable within": f"{measurement.stability_percentage:g} %",
            "batch size": str(options.data.batch_size),
            "inputs": ", ".join(options.data.sources),
            "model's max_batch_size": str(measured.targets[0].model.max_batch_size),
        },
        environment={
            "pytriton": importlib.metadata.version("pytriton"),
            "Python": platform.python_version(),
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            "processors": str(os.cpu_count()),
        },
    )


def _server_run(
    target: PerfTarget, targets: Sequence[PerfTarget], results: Sequence[LevelResult]
) -> ServerRun:
    return ServerRun(
        label=label_of(target, targets),
        url=target.address.host_and_port,
        protocol="gRPC" if target.address.is_grpc else "HTTP",
        server=target.server,
        model=target.model.name,
        levels=[level_record(result) for result in results],
    )


def without_secrets(arguments: Sequence[str]) -> list[str]:
    """A command line to show: the values of tokens and headers are left out."""
    shown: list[str] = []
    is_secret = False
    for argument in arguments:
        if is_secret:
            shown.append("…")
            is_secret = False
        elif _is_secret(argument):
            shown.append(argument)
            is_secret = True
        elif argument.startswith("-H"):  # with its value, as -HNAME:VALUE
            shown.append("-H…")
        else:
            name, equals, _ = argument.partition("=")
            shown.append(f"{name}=…" if equals and _is_secret(name) else argument)
    return shown


def _is_secret(option: str) -> bool:
    """Whether the value of an option is a secret; options may be cut after their beginning."""
    return option in _SECRETS or (len(option) > len("--t") and "--token".startswith(option))


def exit_code(measured: Measured, *, allow_unstable: bool) -> int:
    """2 if the first level was not stable and has to be, 99 if one had no answer."""
    every = [result for results in measured.results for result in results]
    if any(result.status is LevelStatus.FAILED for result in every):
        return FAILED
    firsts = [results[0] for results in measured.results if results]
    if not allow_unstable and any(result.status is LevelStatus.UNSTABLE for result in firsts):
        return UNSTABLE
    return SUCCESS
