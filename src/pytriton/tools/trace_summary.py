# SPDX-License-Identifier: Apache-2.0
"""`pytriton trace`: shows what the requests in files of traces took, as tables and timelines."""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytriton.utils.option_parser import OptionParser

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


# The parts in the order in which they are shown, with how deep they lie in others.
PARTS = (
    ("request", 0),  # of a client; over gRPC without the time that the server waited for it
    ("wait/read", 1),  # before the request, over gRPC
    ("receive", 1),
    ("send", 1),
    ("overhead", 1),
    ("handler", 1),
    ("handler overhead", 2),
    ("queue", 2),
    ("compute", 2),
    ("compute input", 3),
    ("compute infer", 3),
    ("compute output", 3),
)
_PROTOCOL_EVENTS = {"HTTP": ("HTTP_RECV_START", "HTTP_RECV_END"), "GRPC": ("", "GRPC_WAITREAD_END")}

_GAP = re.compile(r"[\s,]*")


def protocol_of(request: TracedRequest) -> str:
    """Returns HTTP or GRPC; empty for calls of models, and where only tensors were traced."""
    for name, _ in request.stamps:
        protocol = name.partition("_")[0]
        if protocol in _PROTOCOL_EVENTS:
            return protocol
    return ""


def times_of(request: TracedRequest) -> dict[str, int]:
    """Returns the nanoseconds that each part took; without those that cannot be known."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for name, at_ns in request.stamps:
        first.setdefault(name, at_ns)
        last[name] = at_ns
    found: dict[str, int] = {}

    def add(part: str, start: str, end: str) -> None:
        if start in first and end in last:
            found[part] = last[end] - first[start]

    add("handler", "REQUEST_START", "REQUEST_END")
    add("queue", "QUEUE_START", "COMPUTE_START")
    add("compute", "COMPUTE_START", "COMPUTE_END")
    add("compute input", "COMPUTE_START", "COMPUTE_INPUT_END")
    add("compute infer", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START")
    add("compute output", "COMPUTE_OUTPUT_START", "COMPUTE_END")
    protocol = protocol_of(request)
    if protocol:
        begin, received = _PROTOCOL_EVENTS[protocol]
        # Triton's gRPC counts from when a thread was free, long before the request came.
        add("request", begin or received, f"{protocol}_SEND_END")
        if begin:
            add("receive", begin, received)
        else:
            add("wait/read", "GRPC_WAITREAD_START", received)
        _add_sends(found, request, protocol)
    _add_rest(found, "handler overhead", "handler", ("queue", "compute"))
    _add_rest(found, "overhead", "request", ("receive", "send", "handler"))
    return found


def _add_sends(found: dict[str, int], request: TracedRequest, protocol: str) -> None:
    """Add the time of all responses, of which streams have several."""
    starts = sum(at for name, at in request.stamps if name == f"{protocol}_SEND_START")
    ends = sum(at for name, at in request.stamps if name == f"{protocol}_SEND_END")
    counts = [name for name, _ in request.stamps]
    is_whole = counts.count(f"{protocol}_SEND_START") == counts.count(f"{protocol}_SEND_END")
    if starts and is_whole:
        found["send"] = ends - starts


def _add_rest(found: dict[str, int], part: str, whole: str, parts: tuple[str, ...]) -> None:
    if whole in found and any(each in found for each in parts):
        # Parts may overlap by some microseconds, or by more in streams.
        found[part] = max(0, found[whole] - sum(found.get(each, 0) for each in parts))


@dataclass(frozen=True)
class PartTimes:
    """The times that one part of all requests took, in microseconds."""

    avg: float
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True)
class ModelSummary:
    """The requests for one version of a model, over one protocol or as calls."""

    model: str
    version: int
    protocol: str  # empty for calls of models
    count: int
    parts: dict[str, PartTimes]
    composing: tuple[ModelSummary, ...] = ()  # of steps and calls that were made for them

    def to_json(self) -> dict[str, Any]:
        """Returns it as plain values."""
        return {
            "model": self.model,
            "version": self.version,
            "protocol": self.protocol.lower(),
            "count": self.count,
            "times_us": {
                part: {name: round(value, 3) for name, value in vars(times).items()}
                for part, times in self.parts.items()
            },
            "composing": [each.to_json() for each in self.composing],
        }


def summarise(requests: Iterable[TracedRequest], model: str = "") -> list[ModelSummary]:
    """Summarise requests of clients, with the calls that were made for them.

    Args:
        requests: All requests and calls.
        model: Only those for this model, whoever made them.
    """
    known = {request.number: request for request in requests}
    roots = {number: _root(request, known) for number, request in known.items()}
    if model:
        return _grouped([each for each in known.values() if each.model == model])
    callers: dict[tuple[str, int, str], list[TracedRequest]] = {}
    calls: dict[tuple[str, int, str], list[TracedRequest]] = {}
    for number, request in known.items():
        key = _key(roots[number])
        (callers if roots[number] is request else calls).setdefault(key, []).append(request)
    return [
        _summary(key, callers[key], tuple(_grouped(calls.get(key, ())))) for key in sorted(callers)
    ]


def _root(request: TracedRequest, known: dict[int, TracedRequest]) -> TracedRequest:
    """Returns the request of a client for which a call was made, as far as that is known."""
    seen = set()
    while request.parent in known and request.number not in seen:
        seen.add(request.number)
        request = known[request.parent]
    return request


def _key(request: TracedRequest) -> tuple[str, int, str]:
    return request.model, request.version, protocol_of(request)


def _grouped(requests: Iterable[TracedRequest]) -> list[ModelSummary]:
    groups: dict[tuple[str, int, str], list[TracedRequest]] = {}
    for request in requests:
        groups.setdefault(_key(request), []).append(request)
    return [_summary(key, groups[key]) for key in sorted(groups)]


def _summary(
    key: tuple[str, int, str],
    requests: Sequence[TracedRequest],
    composing: tuple[ModelSummary, ...] = (),
) -> ModelSummary:
    times = [times_of(request) for request in requests]
    parts = {}
    for part, _ in PARTS:
        values = sorted(each[part] / _NS_PER_US for each in times if part in each)
        if values:
            parts[part] = _part_times(values)
    return ModelSummary(*key, len(requests), parts, composing)


def _part_times(values: list[float]) -> PartTimes:
    return PartTimes(
        sum(values) / len(values),
        percentile(values, 50),
        percentile(values, 90),
        percentile(values, 99),
        values[-1],
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """Returns the value below which so many percent of sorted values lie, between neighbours."""
    at = (len(values) - 1) * percent / 100
    low = int(at)
    high = min(low + 1, len(values) - 1)
    return min(values[high], values[low] + (values[high] - values[low]) * (at - low))


class TraceFileError(Exception):
    """A file has no traces that can be read."""


@dataclass
class TracedRequest:
    """A request, or a call that was made for one."""

    number: int
    model: str = ""
    version: int = 0
    request_id: str = ""
    parent: int = 0  # the number of the request that made this call; 0: it is of a client
    stamps: list[tuple[str, int]] = field(default_factory=list)  # names and ns, in order


@dataclass
class TraceFile:
    """What a file has."""

    requests: list[TracedRequest]
    is_cut: bool = False  # it ends in the middle


def read_traces(text: str, name: str) -> TraceFile:
    """Read the text of a file, whose name is for errors; TraceFileError if it has no traces."""
    objects, is_cut = _objects(text, name)
    requests: dict[int, TracedRequest] = {}
    for each in objects:
        if not isinstance(each, dict) or type(each.get("id")) is not int:
            raise TraceFileError(
                f"{name} is not a file of traces: expected objects with an id, got "
                f"{json.dumps(each)[:80]}"
            )
        number: int = each["id"]
        _add(requests.setdefault(number, TracedRequest(number)), each, name)
    return TraceFile(list(requests.values()), is_cut)


def _objects(text: str, name: str) -> tuple[list[Any], bool]:
    """Returns the elements of the array, and whether it ends in the middle."""
    if not text.strip():
        raise TraceFileError(f"{name} is empty")
    try:
        document = json.loads(text)
    except ValueError as error:
        found = list(_whole_elements(text))
        if not found:
            raise TraceFileError(
                f"{name} is not a file of traces: expected JSON, {error}"
            ) from error
        return found, True
    if not isinstance(document, list):
        raise TraceFileError(
            f"{name} is not a file of traces: expected an array, got {type(document).__name__}"
        )
    return document, False


def _whole_elements(text: str) -> Iterable[Any]:
    """Returns the elements of an array before the place where it was cut."""
    decoder = json.JSONDecoder()
    at = len(text) - len(text.lstrip())
    if text[at] != "[":
        return
    at += 1
    while True:
        gap = _GAP.match(text, at)
        assert gap is not None, "it matches the empty text, too"
        try:
            element, at = decoder.raw_decode(text, gap.end())
        except ValueError:
            return
        yield element


def _add(request: TracedRequest, each: dict[str, Any], name: str) -> None:
    try:
        for stamp in each.get("timestamps", ()):
            if stamp["ns"]:  # Triton writes 0 for some times that it does not know
                request.stamps.append((str(stamp["name"]), int(stamp["ns"])))
        if "model_name" in each:
            request.model = str(each["model_name"])
            request.version = int(each.get("model_version", 0))
            request.request_id = str(each.get("request_id", ""))
            request.parent = int(each.get("parent_id", 0))
    except (KeyError, TypeError, ValueError) as error:
        raise TraceFileError(
            f"{name} is not a file of traces: {json.dumps(each)[:80]} cannot be read ({error!r})"
        ) from error


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
