# SPDX-License-Identifier: Apache-2.0
"""Reads metrics in the text format of Prometheus."""

from __future__ import annotations

import re
from collections.abc import Iterator

_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


def series(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yields name, labels and value of each line; lines that are no series are skipped."""
    for line in text.splitlines():
        match = None if line.startswith("#") else _LINE.match(line)
        if match is None:
            continue
        labels = {
            label: re.sub(r"\\.", lambda each: _ESCAPES.get(each[0], each[0]), value)
            for label, value in _LABEL.findall(match[2] or "")
        }
        try:
            yield match[1], labels, float(match[3])
        except ValueError:
            continue
