# SPDX-License-Identifier: Apache-2.0
"""The times of a request, from its time stamps: how long each of its parts took."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytriton.tools.trace_summary.reading import TracedRequest

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
_PROTOCOLS = {"HTTP": ("HTTP_RECV_START", "HTTP_RECV_END"), "GRPC": ("", "GRPC_WAITREAD_END")}


def protocol_of(request: TracedRequest) -> str:
    """Returns HTTP or GRPC; empty for calls of models, and where only tensors were traced."""
    for name, _ in request.stamps:
        protocol = name.partition("_")[0]
        if protocol in _PROTOCOLS:
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
        begin, received = _PROTOCOLS[protocol]
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
