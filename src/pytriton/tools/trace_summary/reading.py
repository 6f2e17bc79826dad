# SPDX-License-Identifier: Apache-2.0
"""Reads files of traces, this server's and Triton's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

_GAP = re.compile(r"[\s,]*")


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
    """Read the text of a file.

    Args:
        text: The text.
        name: The file's name, for errors.

    Raises:
        TraceFileError: it is no file of traces.
    """
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
