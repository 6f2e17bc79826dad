# SPDX-License-Identifier: Apache-2.0
"""Shows summaries of traces, and single traces, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.tools.trace_summary.summary import PARTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pytriton.tools.trace_summary.summary import ModelSummary, TracedRequest

_PROTOCOLS = {"HTTP": "HTTP infer request", "GRPC": "gRPC infer request"}
_COLUMNS = ("avg", "p50", "p90", "p99", "max")
_NAME_WIDTH = 30
_NS_PER_US = 1000.0


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
