# SPDX-License-Identifier: Apache-2.0
"""Reads the values of options that have a form of their own."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from pytriton.tools.perf.errors import OptionError
from pytriton.tools.perf.load.plan import ParameterValue
from pytriton.tools.perf.measuring.search import LoadRange


def parse_range(option: str, text: str, *, whole: bool) -> LoadRange:
    """`start[:end[:step]]`; the end is the start if it is left out."""
    parts = text.split(":")
    if not 1 <= len(parts) <= 3:
        raise OptionError(f"{option}: expected START:END:STEP, got {text}")
    try:
        numbers = [float(int(part)) if whole else float(part) for part in parts]
    except ValueError:
        kind = "whole numbers" if whole else "numbers"
        raise OptionError(f"{option}: expected {kind} as START:END:STEP, got {text}") from None
    start = numbers[0]
    end = numbers[1] if len(numbers) > 1 else start
    step = numbers[2] if len(numbers) > 2 else 1.0
    if start <= 0 or step <= 0 or end < 0 or 0 < end < start:
        raise OptionError(
            f"{option}: expected a start and a step above 0 and an end that is not below the "
            f"start, got {text}"
        )
    return LoadRange(start, end, step)


def parse_shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """`name:d,d,d`; a name may have colons."""
    shapes = {}
    for text in texts:
        name, _, sizes = text.rpartition(":")
        try:
            shape = tuple(int(size) for size in sizes.split(",")) if sizes else ()
        except ValueError:
            shape = (-1,)
        if not name or any(size < 0 for size in shape):
            raise OptionError(f"--shape: expected NAME:D,D,…, got {text}")
        shapes[name] = shape
    return shapes


def parse_headers(texts: Sequence[str]) -> list[tuple[str, str]]:
    headers = []
    for text in texts:
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise OptionError(f"-H: expected NAME:VALUE, got {text}")
        headers.append((name.strip(), value.strip()))
    return headers


def parse_parameters(texts: Sequence[str]) -> dict[str, ParameterValue]:
    """`name:value:type`; a value may have colons."""
    parameters: dict[str, ParameterValue] = {}
    for text in texts:
        name, _, rest = text.partition(":")
        value, _, kind = rest.rpartition(":")
        try:
            parameters[name] = _parameter(value, kind)
        except ValueError:
            raise OptionError(
                f"--request-parameter: expected NAME:VALUE:TYPE with the type bool, int or string, "
                f"got {text}"
            ) from None
    return parameters


def _parameter(value: str, kind: str) -> ParameterValue:
    if kind == "int":
        return int(value)
    if kind == "string":
        return value
    if kind == "bool" and value.lower() in {"true", "false"}:
        return value.lower() == "true"
    raise ValueError(kind)


def parse_composing(text: str) -> tuple[tuple[str, str], ...]:
    """`model:version,model`."""
    found = []
    for part in filter(None, text.split(",")):
        name, _, version = part.strip().partition(":")
        found.append((name, version))
    return tuple(found)


def parse_ids(text: str | None) -> tuple[int, int | None]:
    """`start[:end]`, the end excluded."""
    if text is None:
        return 1, None
    start, _, end = text.partition(":")
    try:
        first, after = int(start), int(end) if end else None
    except ValueError:
        raise OptionError(f"--sequence-id-range: expected START:END, got {text}") from None
    if first <= 0 or (after is not None and after <= first):
        raise OptionError(
            f"--sequence-id-range: expected a start above 0 and an end above it, got {text}"
        )
    return first, None if after is None else after - 1


def parse_intervals(path: pathlib.Path) -> tuple[int, ...]:
    """A file with microseconds, a line each."""
    try:
        lines = path.read_text().split()
        intervals = tuple(int(line) for line in lines)
    except OSError as error:
        raise OptionError(f"--request-intervals: {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise OptionError(
            f"--request-intervals: expected microseconds in {path}, a line each: {error}"
        ) from None
    if not intervals or min(intervals) < 0 or sum(intervals) == 0:
        raise OptionError(f"--request-intervals: expected at least one number above 0 in {path}")
    return intervals
