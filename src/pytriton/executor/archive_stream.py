# SPDX-License-Identifier: Apache-2.0
"""The bytes of an archive, decompressed, read only forwards and never more than was allowed.

`tarfile` reads whatever an archive's headers ask for, gigabytes at once and the same place again
and again. An archive that was compressed by a thousand costs its sender nothing.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
from typing import IO, cast

from pytriton.errors import InternalError

_CHUNK_BYTES = 1 << 20


class ArchiveStream:
    """As much of a file object as `tarfile` uses."""

    def __init__(self, file: IO[bytes], refusal: str) -> None:
        self._file = _decompressed(file)
        self._is_compressed = self._file is not file
        self._refusal = refusal
        self._allowed = 0
        self._position = 0

    def allow(self, size: int) -> None:
        """Let so many bytes be read from now on."""
        self._allowed = size

    def read(self, size: int) -> bytes:
        """Read up to so many bytes, fewer only at the end.

        Raises:
            InternalError: That is more than was allowed.
        """
        self._count(size)
        data = self._file.read(size)
        self._position += len(data)
        return data

    def tell(self) -> int:
        """How many bytes were read or passed over."""
        return self._position

    def seek(self, position: int) -> None:
        """Pass over what is not wanted.

        Raises:
            InternalError: It is behind, or further away than was allowed.
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
        """Do nothing: who opened the file closes it."""

    def _count(self, size: int) -> None:
        if not 0 <= size <= self._allowed:
            raise InternalError(self._refusal)
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
