# SPDX-License-Identifier: Apache-2.0
"""Notices that files have changed, by their times and sizes."""

from __future__ import annotations

import os
from collections.abc import Iterable

_Stamp = tuple[int, int, int] | None  # of a file that does not exist


class WatchedFiles:
    """Files and their state when they were last looked at.

    Looking at a hundred files takes about a tenth of a millisecond, so it needs no service of the
    operating system, and works on every file system.
    """

    def __init__(self) -> None:
        self._stamps: dict[str, _Stamp] = {}

    def watch(self, paths: Iterable[str]) -> None:
        """Watch these files instead; those that were watched before keep their state."""
        self._stamps = {
            path: self._stamps[path] if path in self._stamps else _stamp(path) for path in paths
        }

    def changed(self) -> list[str]:
        """Returns the files that have changed since the last call, or appeared, or are gone."""
        changed = []
        for path, before in self._stamps.items():
            now = _stamp(path)
            if now != before:
                self._stamps[path] = now
                changed.append(path)
        return changed


def _stamp(path: str) -> _Stamp:
    try:
        status = os.stat(path)  # noqa: PTH116  three times as fast as with a Path
    except OSError:
        return None
    # The inode, because editors write a new file and give it the name of the old one.
    return status.st_mtime_ns, status.st_size, status.st_ino
