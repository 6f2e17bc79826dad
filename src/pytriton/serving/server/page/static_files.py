# SPDX-License-Identifier: Apache-2.0
"""The files that a browser loads: HTML, style, scripts and the icon, all from this package."""

from __future__ import annotations

import functools
import gzip
import hashlib
from pathlib import Path
from typing import NamedTuple

_TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}
_FOLDER = Path(__file__).parent / "static"


class StaticFile(NamedTuple):
    """A file as it is sent."""

    content: bytes
    packed: bytes  # with gzip: a third of it
    content_type: bytes
    etag: bytes  # a browser sends it to ask whether its copy is still good


@functools.cache
def static_files() -> dict[str, StaticFile]:
    """Returns the files by name; they are read once, when the page is opened first."""
    files = {}
    for path in _FOLDER.iterdir():
        if path.suffix in _TYPES:
            content = path.read_bytes()
            packed = gzip.compress(content, mtime=0)
            etag = b'"%b"' % hashlib.sha256(content).hexdigest()[:20].encode()
            files[path.name] = StaticFile(content, packed, _TYPES[path.suffix], etag)
    return files
