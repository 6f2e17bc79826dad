# SPDX-License-Identifier: Apache-2.0
"""Files of our own pages, as browsers get them: packed, with an ETag and a strict policy."""

from __future__ import annotations

import functools
import gzip
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pytriton.protocol.compression import choose_encoding

if TYPE_CHECKING:
    from pytriton.serving.server.http.connection import HttpConnection
    from pytriton.serving.server.http.request import RequestHead

HTML_TYPE = b"text/html; charset=utf-8"
_TYPES = {
    ".html": HTML_TYPE,
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}
NO_SNIFFING = b"X-Content-Type-Options: nosniff\r\n"
# Scripts and styles are files of this server, and a page of another site cannot show it in a frame.
PAGE_POLICY = (
    b"Content-Security-Policy: default-src 'self'; base-uri 'none'; form-action 'none'; "
    b"frame-ancestors 'none'; object-src 'none'\r\n"
    b"Referrer-Policy: no-referrer\r\n"
    b"X-Frame-Options: DENY\r\n" + NO_SNIFFING
)
_FILE_HEADERS = b"Cache-Control: no-cache\r\n" + PAGE_POLICY  # a copy is compared by its ETag


class StaticFile(NamedTuple):
    """A file as it is sent."""

    content: bytes
    packed: bytes  # with gzip: a third of it
    content_type: bytes
    etag: bytes  # a browser sends it to ask whether its copy is still good


@functools.cache
def files_in(folder: Path) -> dict[str, StaticFile]:
    """Returns the files of a folder by name; they are read once, when a page is opened first."""
    files = {}
    for path in sorted(folder.iterdir()):
        if path.suffix in _TYPES:
            content = path.read_bytes()
            packed = gzip.compress(content, mtime=0)
            etag = b'"%b"' % hashlib.sha256(content).hexdigest()[:20].encode()
            files[path.name] = StaticFile(content, packed, _TYPES[path.suffix], etag)
    return files


def send_file(
    connection: HttpConnection, head: RequestHead, file: StaticFile, vary: bytes = b""
) -> None:
    """Answer with a file; `vary` are further headers on which the answer depends."""
    names = b"Accept-Encoding" + (b", " + vary if vary else b"")
    headers = b"ETag: %b\r\nVary: %b\r\n%b" % (file.etag, names, _FILE_HEADERS)
    asked = head.headers
    if asked.get(b"if-none-match") == file.etag:
        connection.respond(304, (), file.content_type, headers)
    elif choose_encoding(asked.get(b"accept-encoding", b"").decode("latin-1")) == "gzip":
        headers += b"Content-Encoding: gzip\r\n"
        connection.respond(200, (file.packed,), file.content_type, headers)
    else:
        connection.respond(200, (file.content,), file.content_type, headers)
