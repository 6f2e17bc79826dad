# SPDX-License-Identifier: Apache-2.0
"""The output of a model: each line that a request caused begins with the request's id."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import socket
import sys
import threading
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, ClassVar

from pytriton.base.log_capture import LineSource
from pytriton.base.log_lines import LogOutbox
from pytriton.base.request_ids import current_prefix, current_request_ids
from pytriton.runtime.transport.frames import STANDARD_ERROR

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.base.log_lines import SentLines

# Characters of a line that has no end yet. Progress bars may never end theirs.
_MAX_PART = 8192
_STDERR = 2
_NUMBERED = {"1": "stdout", "2": "stderr"}
_END_TIMEOUT_S = 1.0  # for the last lines to be sent


@dataclasses.dataclass(slots=True)
class _Line:
    """A line that has no end yet.

    `print` writes a text and the end of its line apart. What waits here is written with its end, so
    that no line of another thread or process comes between.
    """

    prefix: str
    text: str = ""  # what waits
    is_begun: bool = False  # something of it was written, with the prefix
    is_json: bool = False

    def labelled(self) -> str:
        return self.text if self.is_begun or not self.text else self.prefix + self.text


class LabelledStream(io.TextIOWrapper):
    """Standard output or standard error of a worker. Lines without a request stay as they are.

    If the log has JSON lines, so has the output.
    """

    is_json: ClassVar[bool] = False
    is_returned: ClassVar[bool] = False  # lines go to the server's log, which formats them
    source: ClassVar[LineSource | None] = None  # takes lines for the page of the server

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._lines: dict[int, _Line] = {}  # by thread
        self.is_piped = False  # the server reads all of it

    def write(self, text: str) -> int:
        """Write whole lines; what follows them waits for its end. See `io.TextIOBase`."""
        if text:
            thread = threading.get_ident()
            line = self._lines.pop(thread, None) or _Line(current_prefix())
            if line.is_json or (self.is_json and not self.is_returned):
                ready = self._add_json(line, text)
            else:
                ready = _add_text(line, text)
            if line.text or line.is_begun:
                self._lines[thread] = line
            if ready:
                super().write(ready)
            if self.source is not None and not self.is_piped:
                self.source.add_printed(self._stream_name(), text)
        return len(text)

    def flush(self) -> None:
        """Write the output of this thread; JSON still waits for the end of the line."""
        line = self._lines.get(threading.get_ident())
        if line is not None and not line.is_json:
            super().write(_taken(line))
        super().flush()

    def end_line(self) -> None:
        """Write what waits for the end of its line, because nothing more comes."""
        lines, self._lines = self._lines, {}
        for line in lines.values():
            if line.is_json:
                super().write(_json_line(line.text, self._stream_name()) + "\n")
            else:
                super().write(_taken(line))

    def _stream_name(self) -> str:
        """Returns stdout or stderr; a stream that was opened again has the number of its file."""
        name = str(self.name).strip("<>")
        return _NUMBERED.get(name, name)

    def _add_json(self, line: _Line, text: str) -> str:
        """Add text to a line; returns what can be written."""
        *lines, part = (line.text + text).split("\n")
        if len(part) > _MAX_PART:
            lines.append(part)
            part = ""
        line.text, line.is_json = part, bool(part)
        return "".join(_json_line(each, self._stream_name()) + "\n" for each in lines)


def _add_text(line: _Line, text: str) -> str:
    """Adds text to a line; returns what can be written."""
    first, end, rest = text.partition("\n")
    line.text += first
    ready = ""
    if end:
        *between, part = rest.split("\n")
        prefix = current_prefix()
        whole = [line.labelled(), *(prefix + each if each else each for each in between)]
        ready = "\n".join(whole) + "\n"
        line.prefix, line.text, line.is_begun = prefix, part, False
    if "\r" in line.text or len(line.text) > _MAX_PART:
        ready += _taken(line)
    return ready


def _taken(line: _Line) -> str:
    """Returns what waits, which counts as written then."""
    ready = line.labelled()
    line.is_begun = line.is_begun or bool(line.text)
    line.text = ""
    return ready


def _json_line(text: str, name: str) -> str:
    now = datetime.now(timezone.utc)
    entry = {
        "time": f"{now:%Y-%m-%dT%H:%M:%S.%f}Z",
        "level": "INFO",
        "pid": os.getpid(),
        "file": name,
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


def send_printed_lines(model: str, send: Callable[[SentLines], None]) -> None:
    """Send what this process prints to the server, too, unless it goes nowhere else anyway."""
    if not LabelledStream.is_returned:
        LabelledStream.source = LineSource(model, LogOutbox(send))


def return_standard_error(fork_socket: socket.socket, model: str) -> None:
    """Let the server read all that this process writes to standard error, also code in C.

    Not standard output: C would collect it in a buffer, as that is then no terminal.
    """
    reader, writer = os.pipe()
    try:
        socket.send_fds(fork_socket, [STANDARD_ERROR + model.encode()], [reader])
        os.dup2(writer, _STDERR)
    finally:
        os.close(reader)
        os.close(writer)
    if isinstance(sys.stderr, LabelledStream):
        sys.stderr.is_piped = True


def end_printed_lines() -> None:
    """Send what was printed before the connection to the server ends."""
    source, LabelledStream.source = LabelledStream.source, None
    if source is not None:
        source.outbox.close(_END_TIMEOUT_S)
