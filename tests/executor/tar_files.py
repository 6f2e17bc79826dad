# SPDX-License-Identifier: Apache-2.0
"""Archives for tests, entry by entry: also those that no program would write."""

from __future__ import annotations

import io
import tarfile


def file_entry(name, content=b"", mode=0o644, **fields):
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    for field, value in fields.items():
        setattr(entry, field, value)
    return entry, content


def link_entry(name, target, kind=tarfile.SYMTYPE):
    return file_entry(name, type=kind, linkname=target)


def folder_entry(name, mode=0o755):
    return file_entry(name, type=tarfile.DIRTYPE, mode=mode)


def pack(path, entries, kind="w:gz"):
    with tarfile.open(path, kind) as archive:
        for entry, content in entries:
            archive.addfile(entry, io.BytesIO(content))
    return str(path)
