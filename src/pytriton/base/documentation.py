# SPDX-License-Identifier: Apache-2.0
"""What the author of a model wrote about it: docstrings, read in Google's style, and examples.

It is shown to people only: on pages and in the OpenAPI document. Everything has a bounded size.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

MAX_TEXT = 1000  # characters of the description of a model
MAX_NOTE = 300  # and of that of an input or an output
MAX_EXAMPLE = 500  # of an example as JSON
_MAX_DOCSTRING = 100_000  # a longer one is not read
_MAX_INTEGER = 2**63 - 1

_SECTION = re.compile(r"([A-Z][A-Za-z ]*):\s*")
_ITEM = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)", re.DOTALL)
_INPUTS = ("Args", "Arguments", "Parameters", "Attributes")
_OUTPUTS = ("Returns", "Yields")


class Documentation(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a model beside its tensors.

    Attributes:
        text: What it does.
        inputs: Descriptions of inputs, by name.
        output: The description of its result.
        examples: Values for inputs that it certainly takes, by name: defaults, mostly.
    """

    text: str = ""
    inputs: dict[str, str] = {}
    output: str = ""
    examples: dict[str, Any] = {}


def read_docstring(docstring: str | None) -> Documentation:
    """Read the first paragraph of a docstring, and its sections for arguments and results."""
    if not docstring or len(docstring) > _MAX_DOCSTRING:
        return Documentation()
    lines = inspect.cleandoc(docstring).splitlines()
    summary, sections = _split(lines)
    inputs: dict[str, str] = {}
    for name in _INPUTS:
        inputs |= _items(sections.get(name, ()))
    result = next((sections[name] for name in _OUTPUTS if name in sections), ())
    return Documentation(
        text=_shortened(summary, MAX_TEXT), inputs=inputs, output=_shortened(result, MAX_NOTE)
    )


def _split(lines: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Returns the lines of the first paragraph, and those of each section."""
    summary: list[str] = []
    sections: dict[str, list[str]] = {}
    current: list[str] | None = summary
    for line in lines:
        heading = _SECTION.fullmatch(line)
        if heading is not None:
            current = sections.setdefault(heading[1], [])
        elif not line.strip() and current is summary and summary:
            current = None  # further paragraphs are for readers of the code
        elif current is not None and not (current is not summary and line[:1].strip()):
            current.append(line)
        elif current is not summary:
            current = None  # a section ends where lines are not indented any more
    return summary, sections


def _items(lines: Iterable[str]) -> dict[str, str]:
    """Returns the descriptions of a section by name; lines that are indented further continue."""
    block = textwrap.dedent("\n".join(lines))
    items = re.split(r"\n(?=\S)", block.strip("\n"))
    found = {}
    for item in items:
        match = _ITEM.fullmatch(item)
        if match is not None:
            found[match[1]] = _shortened(match[2].splitlines(), MAX_NOTE)
    return found


def _shortened(lines: Iterable[str], most: int) -> str:
    text = " ".join(" ".join(lines).split())
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= most else f"{text[: most - 1]}…"


def docstring_of(function: Any) -> str | None:
    """Returns what is written about a callable itself, and not about the class that it inherits."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function):
        written: str | None = inspect.unwrap(function).__doc__
        return written
    kind = function if inspect.isclass(function) else type(function)
    own = vars(kind).get("__doc__")
    # A dataclass without a docstring gets its signature as one.
    if isinstance(own, str) and not own.startswith(f"{kind.__name__}("):
        return own
    called: str | None = getattr(vars(kind).get("__call__"), "__doc__", None)
    return called


def examples_to_show(examples: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the examples that are small enough to be shown."""
    return {name: value for name, value in examples.items() if _is_small(value)}


def _is_small(value: Any) -> bool:
    if type(value) is int and abs(value) > _MAX_INTEGER:
        return False
    if isinstance(value, list) and (len(value) > MAX_EXAMPLE or not all(map(_is_small, value))):
        return False
    if isinstance(value, str) and value != value.encode("utf-8", "replace").decode():
        return False
    return len(json.dumps(value)) <= MAX_EXAMPLE
