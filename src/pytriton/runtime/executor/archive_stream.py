# SPDX-License-Identifier: Apache-2.0
"""A forward-only, size-limited reader of an archive's decompressed bytes.

`tarfile` reads as much as the headers of an archive request: gigabytes at once, and the same bytes
repeatedly. With compression by a factor of 1000, such an archive is cheap to send.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
from typing import IO, cast

from pytriton.base.errors import InternalError

_CHUNK_BYTES = 1 << 20


class ArchiveStream:
    """The methods of a file object that `tarfile` uses."""

    def __init__(self, file: IO[bytes], limit_message: str) -> None:
        self._file = _decompressed(file)
        self._is_compressed = self._file is not file
        self._limit_message = limit_message
        self._allowed = 0
        self._position = 0

    def allow(self, size: int) -> None:
        """Set how many bytes may be read from now on."""
        self._allowed = size

    def read(self, size: int) -> bytes:
        """Read up to `size` bytes; returns fewer only at the end of the archive.

        Raises:
            InternalError: `size` is more than what is still allowed.
        """
        self._count(size)
        data = self._file.read(size)
        self._position += len(data)
        return data

    def tell(self) -> int:
        """Returns how many bytes were read or skipped."""
        return self._position

    def seek(self, position: int) -> None:
        """Skip bytes up to a position.

        Raises:
            InternalError: The position was passed already, or is further away than is allowed.
        """
        if position < self._position:
            raise InternalError("Its entries overlap")
        if not self._is_compressed:
            self._file.seek(position)
            self._position = position
            return
        while position > self._position and self.read(min(position - self._position, _CHUNK_BYTES)):
            pass

    def close(self) -> None:
        """Do nothing: the caller closes the file that it opened."""

    def _count(self, size: int) -> None:
        if not 0 <= size <= self._allowed:
            raise InternalError(self._limit_message)
        self._allowed -= size


def _decompressed(file: IO[bytes]) -> IO[bytes]:
    start = file.read(6)
    file.seek(0)
    if start.startswith(b"\x1f\x8b"):
        return cast("IO[bytes]", gzip.GzipFile(fileobj=file))
    if start.startswith(b"BZh"):
        return bz2.BZ2File(file)
    if start.startswith((b"\xfd7zXZ\0", b"\x5d\0\0")):
        return lzma.LZMAFile(file)
    return file
