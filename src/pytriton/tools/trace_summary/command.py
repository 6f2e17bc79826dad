# SPDX-License-Identifier: Apache-2.0
"""`pytriton trace`: shows what the requests in files of traces took, as tables and timelines."""

from __future__ import annotations

import json
import pathlib
from typing import TYPE_CHECKING

from pytriton.tools.trace_summary.summary import (
    PARTS,
    TracedRequest,
    TraceFile,
    TraceFileError,
    read_traces,
    summarise,
)
from pytriton.utils.option_parser import OptionParser

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pytriton.tools.trace_summary.summary import ModelSummary

_PROTOCOLS = {"HTTP": "HTTP infer request", "GRPC": "gRPC infer request"}
_COLUMNS = ("avg", "p50", "p90", "p99", "max")
_NAME_WIDTH = 30
_NS_PER_US = 1000.0

_CUT = (
    "{} is incomplete: the server still writes it, or it was cut. Its last request may lack some "
    "of its times."
)


def run(
    arguments: Sequence[str], show: Callable[[str], None], complain: Callable[[str], None]
) -> int:
    """Show the traces; 1 if a file cannot be read or has nothing of the model."""
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


def summary_text(summaries: Iterable[ModelSummary]) -> str:
    """Returns a table for each model."""
    return "\n\n".join("\n".join(_lines(summary)) for summary in summaries)


def _lines(summary: ModelSummary, indent: str = "") -> Iterator[str]:
    name = _name(summary.model, summary.version)
    how = "" if summary.protocol or not summary.parts else ", called by models"
    title = f"{indent}{name}{how}: trace count = {summary.count}"
    if summary.parts:
        heads = "".join(f"{name:>11}" for name in _COLUMNS)
        yield title
        yield f"{indent + '  microseconds':<{_NAME_WIDTH}}{heads}"
    else:
        yield f"{title} (without times)"
    for part, depth in PARTS:
        times = summary.parts.get(part)
        if times is None:
            continue
        name = _PROTOCOLS.get(summary.protocol, part) if part == "request" else _short(part)
        values = "".join(f"{getattr(times, column):>11.1f}" for column in _COLUMNS)
        yield f"{indent + '  ' + '  ' * depth + name:<{_NAME_WIDTH}}{values}"
    if summary.composing:
        yield f"{indent}  composing models:"
        for each in summary.composing:
            yield from _lines(each, indent + "    ")


def _short(part: str) -> str:
    """Returns the name of a part below its whole: `compute input` is the input of computing."""
    return part.rpartition(" ")[2]


def _name(model: str, version: int) -> str:
    return f"{model} (version {version})" if model else "unknown model"


def timeline_text(requests: Iterable[TracedRequest], model: str = "") -> str:
    """Returns what happened in each request of a client, in order, with the calls it made."""
    known = {request.number: request for request in requests}
    calls: dict[int, list[TracedRequest]] = {}
    for request in known.values():
        if request.parent in known:
            calls.setdefault(request.parent, []).append(request)
    roots = [request for request in known.values() if request.parent not in known]
    parts = [
        "\n".join(_timeline(root, calls))
        for root in sorted(roots, key=lambda request: request.number)
        if model in ("", root.model)
    ]
    return "\n\n".join(parts)


def _timeline(root: TracedRequest, calls: dict[int, list[TracedRequest]]) -> Iterator[str]:
    title = f"trace {root.number}: {_name(root.model, root.version)}"
    yield f"{title}, request id {root.request_id}" if root.request_id else title
    stamps = sorted(_stamps(root, calls, ""), key=lambda stamp: stamp[0])
    for at_ns, text in stamps:
        yield f"{(at_ns - stamps[0][0]) / _NS_PER_US:>14.1f}  {text}"


def _stamps(
    request: TracedRequest, calls: dict[int, list[TracedRequest]], prefix: str
) -> Iterator[tuple[int, str]]:
    for name, at_ns in request.stamps:
        yield at_ns, prefix + name
    for call in calls.get(request.number, ()):
        yield from _stamps(call, calls, f"{prefix}  {call.model} {call.number}: ")


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
