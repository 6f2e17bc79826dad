# SPDX-License-Identifier: Apache-2.0
"""What a model prints: each line that a request caused begins with the request's id."""

from __future__ import annotations

import io
import json
import os
import sys
from datetime import datetime, timezone
from typing import ClassVar

from pytriton.request_ids import current_prefix, current_request_ids

# Characters of a line that has no end yet. Progress bars may never end theirs.
_MAX_PART = 8192


class LabelledStream(io.TextIOWrapper):
    """Standard output or standard error of a worker. Lines without a request stay as they are.

    If the log has JSON lines, what is printed becomes such lines, too.
    """

    is_json: ClassVar[bool] = False

    _is_line_start = True
    _part = ""  # of a line that is not complete, for JSON

    def write(self, text: str) -> int:
        """Write text; see `io.TextIOBase`."""
        if self.is_json or self._part:
            self._write_json(text)
            return len(text)
        if text:
            prefix = current_prefix()
            is_line_start, self._is_line_start = self._is_line_start, text[-1] == "\n"
            super().write(_labelled(text, prefix, is_line_start) if prefix else text)
        return len(text)

    def end_line(self) -> None:
        """Write what waits for the end of its line, because nothing more comes."""
        if self._part:
            self.write("\n")

    def _write_json(self, text: str) -> None:
        *lines, part = (self._part + text).split("\n")
        if len(part) > _MAX_PART:
            lines.append(part)
            part = ""
        self._part = part
        for line in lines:
            super().write(_json_line(line, self.name) + "\n")


def _labelled(text: str, prefix: str, is_line_start: bool) -> str:
    first, *rest = text.split("\n")
    labelled = [prefix + first if is_line_start and first else first]
    labelled += [prefix + line if line else line for line in rest]
    return "\n".join(labelled)


def _json_line(text: str, name: str) -> str:
    now = datetime.now(timezone.utc)
    entry = {
        "time": f"{now:%Y-%m-%dT%H:%M:%S.%f}Z",
        "level": "INFO",
        "pid": os.getpid(),
        "file": name.strip("<>"),
        "message": text,
    }
    if ids := current_request_ids():
        entry["request_ids"] = ids
    return json.dumps(entry)


def label_output() -> None:
    """Replace this process's standard streams by those that label lines."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.flush()
            labelled = LabelledStream(
                stream.buffer, stream.encoding, stream.errors, line_buffering=True
            )
            setattr(sys, name, labelled)


def end_output() -> None:
    """Write all that was printed before the process ends."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, LabelledStream):
            stream.end_line()
