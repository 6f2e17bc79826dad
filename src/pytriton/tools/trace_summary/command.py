# SPDX-License-Identifier: Apache-2.0
"""The command `pytriton trace`: says what the requests in files of traces took."""

from __future__ import annotations

import json
import pathlib
from typing import TYPE_CHECKING

from pytriton.tools.trace_summary.summary import (
    TracedRequest,
    TraceFile,
    TraceFileError,
    read_traces,
    summarise,
)
from pytriton.tools.trace_summary.text import summary_text, timeline_text
from pytriton.utils.option_parser import OptionParser

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_CUT = (
    "{} is incomplete: the server still writes it, or it was cut. Its last request may lack some "
    "of its times."
)


def run(
    arguments: Sequence[str], show: Callable[[str], None], complain: Callable[[str], None]
) -> int:
    """Run the command.

    Args:
        arguments: The command line after `trace`.
        show: Prints a text.
        complain: Prints an error.

    Returns:
        The exit code: 0, or 1 if a file cannot be read or has nothing of the model.
    """
    options = _parser().parse_args(arguments)
    requests: list[TracedRequest] = []
    for path in options.file:
        try:
            file = _read(path)
        except TraceFileError as error:
            complain(str(error))
            return 1
        if file.is_cut:
            complain(_CUT.format(path))
        requests += file.requests
    summaries = summarise(requests, options.model)
    if not summaries:
        what = f"requests for model '{options.model}'" if options.model else "traces"
        complain(f"expected {what} in {', '.join(map(str, options.file))}, found none")
        return 1
    if options.json:
        show(json.dumps({"models": [each.to_json() for each in summaries]}, indent=2))
        return 0
    show(summary_text(summaries))
    if options.timelines:
        show("")
        show(timeline_text(requests, options.model))
    return 0


def _read(path: pathlib.Path) -> TraceFile:
    try:
        text = path.read_text(errors="backslashreplace")
    except OSError as error:
        raise TraceFileError(f"{path} cannot be read: {error.strerror}") from error
    return read_traces(text, str(path))


def _parser() -> OptionParser:
    parser = OptionParser(
        prog="pytriton trace",
        description="Say how long the requests in files of traces took, and where. The files are "
        "those of this server or of Triton, in mode 'triton'.",
    )
    parser.add_argument("file", nargs="+", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--model", "-m", default="", help="only requests for this model")
    parser.add_argument(
        "--timelines", "-t", action="store_true", help="also show the times of each request"
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    return parser
