# SPDX-License-Identifier: Apache-2.0
"""`pytriton record`: records requests and answers of a running server into a file."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import pathlib
import stat
from collections.abc import Callable, Sequence
from typing import Any

from pytriton.client.kserve.errors import AskError, UnansweredError
from pytriton.client.kserve.http_client import KserveHttpClient
from pytriton.protocol.recording import Exchange, RecordingEnd, RecordingError, RecordReader
from pytriton.tools.commands.option_values import (
    positive_number,
    share,
    size_in_bytes,
    whole_number,
)
from pytriton.tools.commands.server_options import add_server_options, connect
from pytriton.utils.option_parser import OptionParser

_PATH = "/v2/recording"
_MODE = 0o600  # of the file
_EPILOG = """\
Your own server on this machine needs nothing more. For another one, give its token with --token or
in the variable TRITON_ACCESS_TOKEN. Ctrl-C ends the recording; the file is whole then, too.
`pytriton replay FILE` sends the requests again, `pytriton perf MODEL --input-data FILE` uses them.

exit code: 0 if it was recorded, 1 if not or the file is not whole, 2 for wrong options
"""


def run(
    arguments: Sequence[str], show: Callable[[str], None], complain: Callable[[str], None]
) -> int:
    """Record until a limit; 1 if that failed."""
    options = _parser().parse_args(list(arguments))
    path = pathlib.Path(options.file)
    if path.exists() and not options.overwrite:
        complain(f"{path} exists already; --overwrite replaces it.")
        return 1
    try:
        connection = connect(options)
        with contextlib.closing(connection):
            server = connection.server
            if not isinstance(server, KserveHttpClient):
                complain("Recordings are fetched over HTTP; give the address of the HTTP port.")
                return 1
            return _record(options, server, path, show, complain)
    except AskError as error:
        complain(str(error))
        return 1


def _record(
    options: argparse.Namespace,
    server: KserveHttpClient,
    path: pathlib.Path,
    show: Callable[[str], None],
    complain: Callable[[str], None],
) -> int:
    started = json.loads(server.post(_PATH, json.dumps(_wanted(options)).encode()).body)
    fetching = RecordingFetch(server, started["id"])
    try:
        descriptor = _open(path)
    except OSError as error:
        fetching.stop("disk")
        complain(f"{path} cannot be written: {error.strerror}.")
        return 1
    show(f"Recording to {path} for up to {options.seconds:g} s; Ctrl-C ends it.")
    with io.FileIO(descriptor, "wb") as file:
        try:
            end = _fetch_all(fetching, file)
        except OSError as error:
            fetching.stop("disk")
            _cut(file, fetching.whole_bytes)
            complain(
                f"{path} cannot be written any more: {error.strerror}. The recording has ended; "
                f"the file has the first {fetching.count:,} requests."
            )
            return 1
    if end is None:
        complain(
            f"The server was lost. {path} has the first {fetching.count:,} requests and no end."
        )
        return 1
    lost = f"; {end.dropped:,} more were dropped, as the server had no room" if end.dropped else ""
    show(f"{path}: {end.exchanges:,} requests, {fetching.offset:,} bytes; {end.reason}{lost}")
    return 0


def _open(path: pathlib.Path) -> int:
    """Open the file, also one that exists, so that nobody else reads it: it may hold secrets."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _MODE)
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.fchmod(descriptor, _MODE)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class RecordingFetch:
    """Fetches the parts of a recording, and follows where its records end.

    Attributes:
        offset: The bytes that were fetched.
        whole_bytes: The bytes up to the end of the last whole record.
        count: Requests in these.
        end: The last record, once it came.
    """

    def __init__(self, server: KserveHttpClient, recording_id: str) -> None:
        self._server = server
        self._id = recording_id
        self._reader = RecordReader()
        self.offset = 0
        self.whole_bytes = 0
        self.count = 0
        self.end: RecordingEnd | None = None

    def next_part(self) -> bytes:
        """Returns the next bytes; none if nothing came for a while."""
        body = json.dumps({"id": self._id, "offset": self.offset}).encode()
        return self._server.post(f"{_PATH}/fetch", body).body

    def accept(self, part: bytes) -> None:
        """Note that a part was written."""
        self.offset += len(part)
        for record in self._reader.feed(part):
            if isinstance(record, Exchange):
                self.count += 1
            elif isinstance(record, RecordingEnd):
                self.end = record
        self.whole_bytes = self._reader.position

    def stop(self, reason: str = "stopped") -> None:
        """Ask the server to end the recording; one that is gone has ended it."""
        with contextlib.suppress(AskError):
            body = json.dumps({"id": self._id, "reason": reason}).encode()
            self._server.post(f"{_PATH}/stop", body)


def _fetch_all(fetching: RecordingFetch, file: io.FileIO) -> RecordingEnd | None:
    """Fetch and write until the end; None if the server was lost. OSError if writing fails."""
    is_interrupted = False
    while fetching.end is None:
        try:
            part = fetching.next_part()
            file.seek(fetching.offset)  # an interrupt may have come in the middle of a part
            view = memoryview(part)
            while view:  # a file without a buffer may take less
                view = view[file.write(view) :]
            fetching.accept(part)
        except KeyboardInterrupt:  # noqa: PERF203  the end is fetched after it
            if is_interrupted:
                raise
            is_interrupted = True
            fetching.stop()
        except UnansweredError:
            return None
        except RecordingError as error:
            raise AskError(f"The server sent something else than a recording: {error}.") from error
    return fetching.end


def _cut(file: io.FileIO, size: int) -> None:
    """Leave only whole records in a file that could not be written to its end."""
    with contextlib.suppress(OSError):  # a reader finds the cut, too
        file.truncate(size)


def _wanted(options: argparse.Namespace) -> dict[str, Any]:
    wanted: dict[str, Any] = {
        "models": options.model,
        "share": options.share,
        "seconds": options.seconds,
        "bytes": options.max_size,
        "redact": options.redact,
        "buffer_bytes": options.buffer,
    }
    if options.requests is not None:
        wanted["requests"] = options.requests
    return wanted


def _parser() -> argparse.ArgumentParser:
    parser = OptionParser(
        prog="pytriton record",
        description="Records requests and answers of a running server into a file.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="FILE", help="the file to write, such as day.rec")
    what = parser.add_argument_group("what is recorded")
    what.add_argument(
        "-m",
        "--model",
        action="append",
        default=[],
        metavar="NAME",
        help="only requests to this model; may be repeated",
    )
    what.add_argument(
        "--share",
        type=share,
        default=1.0,
        metavar="SHARE",
        help="of the requests, such as 0.1 or 10%% (all); sequences are taken whole",
    )
    what.add_argument(
        "--redact",
        action="append",
        default=[],
        metavar="NAME",
        help="leave out the values of tensors and parameters of this name; may be repeated",
    )
    limits = parser.add_argument_group("when it ends")
    limits.add_argument(
        "--seconds", type=positive_number, default=60.0, metavar="S", help="after this time (60)"
    )
    limits.add_argument(
        "--requests", type=whole_number(1), metavar="N", help="after so many requests"
    )
    limits.add_argument(
        "--max-size",
        type=size_in_bytes,
        default=1 << 30,
        metavar="SIZE",
        help="before the file is larger, such as 500M (1G)",
    )
    limits.add_argument(
        "--buffer",
        type=size_in_bytes,
        default=64 << 20,
        metavar="SIZE",
        help="memory of the server for what was not fetched yet (64M); more is dropped and counted",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a file that exists")
    add_server_options(parser)
    return parser
