# SPDX-License-Identifier: Apache-2.0
"""The access log: its lines, the file they go to, and the thread that writes them.

The event loop only appends to a list. What it has gathered for some milliseconds is formatted and
written together, so that a slow disk delays no request. Texts of clients are escaped, so that they
cannot fake lines or fields. A line has no query, no header but the name of the client's program,
and no body: these may contain secrets.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pytriton.base.request_ids import visible
from pytriton.base.threads import start_thread
from pytriton.protocol.grpc import GrpcStatus
from pytriton.serving.server.options.server_options import COST_FIELDS, JSON
from pytriton.serving.server.process.appended_file import AppendedFile
from pytriton.serving.server.process.logs import SecondTexts

if TYPE_CHECKING:
    from pytriton.base.messages import RequestCost
    from pytriton.serving.server.options.server_options import AccessLogOptions

logger = logging.getLogger(__name__)

HTTP, GRPC = "HTTP", "gRPC"
# The client disconnected before the response: nginx's status, as HTTP has none.
CLIENT_CLOSED = 499
MAX_CHARACTERS = 1024  # of a text that a client chose

_GRPC_NAMES = {int(status): status.name for status in GrpcStatus}
_PLAIN = re.compile(r"[!#-&(-\[\]-~]+")  # visible, and neither a quote nor a backslash
_STREAMS = {"-": 1, "/dev/stdout": 1, "/dev/stderr": 2}
_PATIENCE_S = 1.0  # with a pipe whose reader is slow
_PIPE_BYTES = 4096  # the system writes this much to a pipe in one piece
_FILE_BYTES = 1 << 20
_GATHERING_S = 0.05
# Entries that wait because the disk is slow; those beyond are lost and counted.
_MAX_WAITING = 100_000
_END_S = 2.0  # for the last lines to be written
_KNOWN_TEXTS = 256  # of which the form in a line is known
_json_text = json.encoder.encode_basestring_ascii  # a text as `json.dumps` writes it


class AccessEntry(NamedTuple):
    """A request that has ended."""

    ended_s: float  # since the epoch
    client: str  # its address and port
    protocol: str
    method: bytes  # of HTTP; empty for gRPC
    target: bytes
    status: int  # of HTTP, or of gRPC
    bytes_in: int  # of the body, or of the messages with their prefixes
    bytes_out: int
    duration_ns: int
    model: str = ""
    version: str = ""
    request_id: str = ""
    user_agent: bytes = b""
    cost: RequestCost | None = None  # None: nobody wants to know it
    principal: str = ""  # of a policy


Format = Callable[[AccessEntry], str]

# The fields that a log has only if they are asked for, in the order of its settings.
_COST_FIELDS: Mapping[str, Callable[[RequestCost], str]] = {
    "worker_s": lambda cost: f"{cost.worker_ns / 1e9:.6f}",
    "server_s": lambda cost: f"{cost.server_ns / 1e9:.6f}",
    "queue_s": lambda cost: f"{cost.queue_ns / 1e9:.6f}",
    "tensor_bytes_in": lambda cost: str(cost.bytes_in),
    "tensor_bytes_out": lambda cost: str(cost.bytes_out),
    "tokens_in": lambda cost: str(cost.tokens_in),
    "tokens_out": lambda cost: str(cost.tokens_out),
}
assert tuple(_COST_FIELDS) == COST_FIELDS


def with_costs(line: Format, fields: Sequence[str], *, is_json: bool) -> Format:
    """Returns a format with these fields at the end of each line."""
    readers = [(name, _COST_FIELDS[name]) for name in fields]

    def plain(entry: AccessEntry) -> str:
        cost = entry.cost
        texts = [read(cost) if cost is not None and cost.executions else "-" for _, read in readers]
        return " ".join([line(entry), *texts])

    def as_json(entry: AccessEntry) -> str:
        text, cost = line(entry), entry.cost
        if cost is None or not cost.executions:
            return text
        members = "".join([f', "{name}": {read(cost)}' for name, read in readers])
        return f"{text[:-1]}{members}}}"

    return as_json if is_json else plain


def with_principal(line: Format) -> Format:
    """Returns a plain format with the principal at the end of each line."""
    return lambda entry: f"{line(entry)} {_known_field(entry.principal)}"


def plain_line(entry: AccessEntry) -> str:
    """Returns the fields in a fixed order, separated by spaces; a dash is an empty one."""
    status = str(entry.status) if entry.protocol == HTTP else _grpc_name(entry.status)
    return (
        f"{_time(entry.ended_s)} {entry.client or '-'} {entry.protocol} "
        f"{_quoted_request(entry.method, entry.target)} {status} {entry.bytes_in} "
        f"{entry.bytes_out} {entry.duration_ns / 1e9:.6f} {_known_field(entry.model)} "
        f"{_known_field(entry.version)} {_field(entry.request_id)} {_quoted_text(entry.user_agent)}"
    )


def json_line(entry: AccessEntry) -> str:
    """Returns a JSON object; members without a value are left out."""
    begin = f'{{"time": "{_time(entry.ended_s)}"'
    client = f', "client": {_json_text(entry.client)}' if entry.client else ""
    end = f', "request_id": {_json_text(_shortened(entry.request_id))}' if entry.request_id else ""
    status = f', "status": {entry.status}'
    if entry.protocol == GRPC:
        status += f', "grpc_status": "{_grpc_name(entry.status)}"'
    return (
        f"{begin}{client}{_json_request(entry.protocol, entry.method, entry.target)}{status}, "
        f'"bytes_in": {entry.bytes_in}, "bytes_out": {entry.bytes_out}, '
        f'"duration_s": {entry.duration_ns / 1e9!r}{_json_member("model", entry.model)}'
        f"{_json_member('version', entry.version)}{end}{_json_agent(entry.user_agent)}"
        f"{_json_member('principal', entry.principal)}}}"
    )


# The texts below are mostly those of the last lines: together, a line takes a third of the time.
# Clients choose them, so each table is bounded: it takes 0.5 MiB if all of them are long.


@functools.lru_cache(_KNOWN_TEXTS)
def _quoted_request(method: bytes, target: bytes) -> str:
    path = _path(target)
    return _quoted(f"{method.decode('latin-1')} {path}" if method else path)


@functools.lru_cache(_KNOWN_TEXTS)
def _quoted_text(value: bytes) -> str:
    return _quoted(_text(value))


@functools.lru_cache(_KNOWN_TEXTS)
def _known_field(text: str) -> str:
    return _field(text)


@functools.lru_cache(_KNOWN_TEXTS)
def _json_request(protocol: str, method: bytes, target: bytes) -> str:
    return (
        f', "protocol": "{protocol}"'
        + _json_member("method", method.decode("latin-1"))
        + _json_member("path", _path(target))
    )


@functools.lru_cache(_KNOWN_TEXTS)
def _json_agent(value: bytes) -> str:
    return _json_member("user_agent", _text(value))


@functools.lru_cache(_KNOWN_TEXTS)
def _json_member(name: str, text: str) -> str:
    return f', "{name}": {_json_text(_shortened(text))}' if text else ""


_times = threading.local()  # lines are written in one thread for each log


def _time(moment_s: float) -> str:
    texts: SecondTexts | None = getattr(_times, "texts", None)
    if texts is None:
        texts = _times.texts = SecondTexts("%Y-%m-%dT%H:%M:%S")
    second, microsecond = texts.read(moment_s)
    return f"{second}.{microsecond:06}Z"


def _path(target: bytes) -> str:
    """Returns the target without its query, which may contain a token."""
    return _text(target.partition(b"?")[0])


def _grpc_name(status: int) -> str:
    return _GRPC_NAMES.get(status, str(status))


def _text(value: bytes) -> str:
    return _shortened(value.decode("latin-1"))


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}..."


def _field(text: str) -> str:
    if not text:
        return "-"
    text = _shortened(text)
    return text if _PLAIN.fullmatch(text) and text != "-" else _quoted(text)


def _quoted(text: str) -> str:
    if not text:
        return "-"
    escaped = text.replace("\\", r"\\").replace('"', r"\"")
    return f'"{visible(escaped)}"'


class Destination(AppendedFile):
    """A file whose lines are each written in one piece; `-` is standard output."""

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(path, clock, stream=_STREAMS.get(path), patience_s=_PATIENCE_S)

    def write_lines(self, lines: list[bytes]) -> None:
        """Write whole lines; raises OSError if that is impossible."""
        self.open()
        for part in grouped(lines, _PIPE_BYTES if self.is_pipe else _FILE_BYTES):
            self.write(part)


def grouped(lines: list[bytes], max_bytes: int) -> Iterator[bytes]:
    """Join lines to parts of up to `max_bytes`; a longer line is a part of its own."""
    part: list[bytes] = []
    size = 0
    for line in lines:
        if part and size + len(line) > max_bytes:
            yield b"".join(part)
            part, size = [], 0
        part.append(line)
        size += len(line)
    if part:
        yield b"".join(part)


class AccessLog:
    """The access log of one process, whose event loop adds entries."""

    def __init__(
        self,
        options: AccessLogOptions,
        loop: asyncio.AbstractEventLoop,
        destination: Destination | None = None,
    ) -> None:
        self._loop = loop
        is_json = options.format == JSON
        self._format: Format = json_line if is_json else plain_line
        if options.principal and not is_json:
            self._format = with_principal(self._format)
        if options.fields:
            self._format = with_costs(self._format, options.fields, is_json=is_json)
        self._path = options.file or "-"
        self._destination = destination or Destination(self._path)
        self._gathered: list[AccessEntry] = []
        self._is_due = False
        self._waiting_count = 0
        self._lost_count = 0
        self._is_reported = False
        self._queue: queue.SimpleQueue[list[AccessEntry] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None  # until there is something to write

    def add(self, entry: AccessEntry) -> None:
        """Add a request that has ended."""
        self._gathered.append(entry)
        if not self._is_due:
            self._is_due = True
            self._loop.call_later(_GATHERING_S, self._pass_on)

    def close(self) -> None:
        """Write what was added; nothing may be added any more."""
        self._pass_on()
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            thread.join(_END_S)

    def _pass_on(self) -> None:
        self._is_due = False
        entries, self._gathered = self._gathered, []
        if not entries:
            return
        if self._thread is None:
            self._thread = start_thread(self._run, "pytriton-access-log")
        if self._thread is None or self._waiting_count >= _MAX_WAITING:
            self._lost_count += len(entries)
            return
        self._waiting_count += len(entries)
        self._queue.put(entries)

    # In the thread

    def _run(self) -> None:
        while (entries := self._queue.get()) is not None:
            self._write(entries)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._on_written, len(entries))
        self._destination.close()

    def _on_written(self, count: int) -> None:
        self._waiting_count -= count

    def _write(self, entries: list[AccessEntry]) -> None:
        try:
            lines = [f"{self._format(entry)}\n".encode() for entry in entries]
            self._destination.write_lines(lines)
        except Exception as error:
            self._lost_count += len(entries)
            if not self._is_reported:
                self._is_reported = True
                is_expected = isinstance(error, OSError)
                logger.warning(
                    "the access log cannot be written to '%s': %s; its lines are lost until it "
                    "can be written again",
                    self._path,
                    error,
                    exc_info=None if is_expected else error,
                )
            return
        if self._lost_count:
            logger.warning("%d lines of the access log were lost", self._lost_count)
            self._lost_count, self._is_reported = 0, False
