# SPDX-License-Identifier: Apache-2.0
"""`pytriton replay`: sends recorded requests again, and compares the answers."""

from __future__ import annotations

import argparse
import json
import pathlib
from collections.abc import Callable, Sequence

from pytriton.client.kserve.address import AddressError, parse_address
from pytriton.client.kserve.errors import AskError
from pytriton.client.kserve.metrics import metrics_port_hint
from pytriton.protocol.recording import Exchange, RecordingError
from pytriton.tools.commands.option_values import number_from_0, positive_number, whole_number
from pytriton.tools.commands.own_server import ask_own_server
from pytriton.tools.commands.server_options import add_address_options, headers_for, tls_of
from pytriton.tools.perf.data.recorded import RecordingFile, read_recording
from pytriton.tools.perf.errors import GeneratorError
from pytriton.tools.plots.page import page_html
from pytriton.tools.plots.pictures import PlotError, check_available, draw
from pytriton.tools.replay import report
from pytriton.tools.replay.comparing import Tolerance
from pytriton.tools.replay.replaying import ReplayPlan, ReplayResult, replay
from pytriton.utils.option_parser import OptionParser

_EPILOG = """\
Floats may differ by the tolerances; integers, booleans and strings have to be equal, and NaN is
equal to NaN. Requests to decoupled models need a gRPC address.

exit code: 0 if all answers are equal, 1 if one differs or the file cannot be sent, 2 for wrong
options, 130 after Ctrl-C
"""


def run(
    arguments: Sequence[str], show: Callable[[str], None], complain: Callable[[str], None]
) -> int:
    """Replay a file; 1 if an answer differs."""
    options = _parser().parse_args(list(arguments))
    try:
        recording = read_recording(pathlib.Path(options.file))
    except OSError as error:
        complain(f"{options.file} cannot be read: {error.strerror}.")
        return 1
    except RecordingError as error:
        complain(f"{options.file}: {error}.")
        return 1
    try:
        if options.page:
            check_available()
        plan = _plan(options)
        chosen = _chosen(recording, options.model)
        result = replay(chosen, plan)
        _check_port(result, plan)
    except AskError as error:
        complain(str(error))
        return 1
    except (GeneratorError, AddressError, PlotError) as error:
        complain(f"{str(error)[0].upper()}{str(error)[1:]}.")
        return 1
    notes = [f"{options.file}: {recording.problem}"] if recording.problem else []
    try:
        _write(options, result, notes)
    except OSError as error:
        complain(f"The report cannot be written: {error}.")
        return 1
    if options.json:
        show(json.dumps(report.document(result, notes), indent=2))
    else:
        show(report.text(result, notes))
    return 1 if result.found else 0


def _chosen(recording: RecordingFile, models: Sequence[str]) -> list[Exchange]:
    return [each for each in recording.exchanges if not models or each.model in models]


def _plan(options: argparse.Namespace) -> ReplayPlan:
    address = parse_address(options.url, options.protocol)
    return ReplayPlan(
        address=address,
        headers=headers_for(options, address, ask_own_server(address)),
        speed=options.speed,
        concurrency=options.concurrency,
        new_sequence_ids=options.new_sequence_ids,
        tolerance=Tolerance(options.rtol, options.atol),
        compares=not options.no_compare,
        tls=tls_of(options) if options.ca_file or options.cert_file else None,
    )


def _check_port(result: ReplayResult, plan: ReplayPlan) -> None:
    """GeneratorError if nothing was answered, as the requests went to the port of the metrics."""
    if plan.address.protocol != "http" or result.failed < len(result.due_s):
        return
    if hint := metrics_port_hint(plan.address.host, plan.address.port):
        raise GeneratorError(f"the address is another port: {hint}")


def _write(options: argparse.Namespace, result: ReplayResult, notes: Sequence[str]) -> None:
    """Write the files that were asked for."""
    if options.json_file:
        text = json.dumps(report.document(result, notes), indent=2)
        pathlib.Path(options.json_file).write_text(f"{text}\n")
    if options.page:
        pictures = [draw([panel]).svg() for panel in report.panels(result)]
        title = f"{options.file} sent to {options.url}"
        page = report.page(result, title, pictures, notes)
        pathlib.Path(options.page).write_text(page_html(page))


def _parser() -> argparse.ArgumentParser:
    parser = OptionParser(
        prog="pytriton replay",
        description="Sends recorded requests again, and compares the answers.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="FILE", help="a file of pytriton record")
    parser.add_argument(
        "-m",
        "--model",
        action="append",
        default=[],
        metavar="NAME",
        help="only requests to this model; may be repeated",
    )
    _add_pace_options(parser)
    _add_comparison_options(parser)
    add_address_options(parser)
    return parser


def _add_pace_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("when requests are sent")
    pace = group.add_mutually_exclusive_group()
    pace.add_argument(
        "--speed",
        type=positive_number,
        default=1.0,
        metavar="FACTOR",
        help="2 halves the times between arrivals (1)",
    )
    pace.add_argument(
        "--concurrency",
        type=whole_number(1),
        metavar="N",
        help="keep so many requests under way, whatever their times",
    )
    group.add_argument(
        "--new-sequence-ids",
        action="store_true",
        help="give sequences other ids than in the file, for a server that also has others",
    )


def _add_comparison_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how answers are compared")
    tolerance = Tolerance()
    group.add_argument(
        "--rtol",
        type=number_from_0,
        default=tolerance.rtol,
        metavar="R",
        help=f"floats may differ by this share of the recorded value ({tolerance.rtol:g})",
    )
    group.add_argument(
        "--atol",
        type=number_from_0,
        default=tolerance.atol,
        metavar="A",
        help=f"and by this much besides ({tolerance.atol:g})",
    )
    group.add_argument("--no-compare", action="store_true", help="only measure")
    group.add_argument("--json", action="store_true", help="print the report as JSON")
    group.add_argument("--json-file", metavar="FILE", help="write the report as JSON, too")
    group.add_argument(
        "--page", metavar="FILE", help="write a page with plots, too; needs matplotlib"
    )
