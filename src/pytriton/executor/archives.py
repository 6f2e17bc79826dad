# SPDX-License-Identifier: Apache-2.0
"""Unpacks a packed Python environment, and refuses what would be written anywhere else."""

from __future__ import annotations

import os
import pathlib
import shutil
import tarfile

from pytriton.errors import InternalError

MAX_UNPACKED_BYTES = 64 << 30


def unpack(archive_path: pathlib.Path, folder: pathlib.Path) -> None:
    """Unpack a tar archive, compressed or not, into an empty folder.

    Raises:
        InternalError: It is broken, too large, or has an entry that would leave the folder.
    """
    root = os.path.realpath(folder)
    room = min(MAX_UNPACKED_BYTES, shutil.disk_usage(root).free)
    try:
        with tarfile.open(archive_path) as archive:
            # Newer interpreters change or refuse entries unless told not to; ours are checked.
            archive.extraction_filter = lambda member, _: member
            _unpack_members(archive, root, room)
    except InternalError as error:
        raise InternalError(f"Failed to extract '{archive_path}': {error.message}") from error
    except (tarfile.TarError, OSError, EOFError) as error:
        raise InternalError(f"Failed to extract '{archive_path}': {error}") from error


def _unpack_members(archive: tarfile.TarFile, root: str, room: int) -> None:
    safe_folders: set[str] = set()
    for member in archive:
        room -= member.size
        if room < 0:
            raise InternalError("It is larger than the room on the disk, or than 64 GiB")
        _check(member, root)
        parent = os.path.dirname(os.path.join(root, member.name))  # noqa: PTH118, PTH120  30,000 files
        if parent not in safe_folders:
            _require_inside(parent, root, member.name)
            safe_folders.add(parent)
        member.uid, member.gid = os.getuid(), os.getgid()
        # Nobody else may change it, it gives no rights to anybody, and it can be removed.
        member.mode = member.mode & 0o755 | (0o700 if member.isdir() else 0o600)
        archive.extract(member, root, set_attrs=not member.issym())
        if member.issym():
            safe_folders.clear()  # a link may have changed where a path leads


def _check(member: tarfile.TarInfo, root: str) -> None:
    name = pathlib.PurePosixPath(member.name)
    if name.is_absolute():
        raise InternalError(f"Path is absolute: '{member.name}'")
    if ".." in name.parts:
        raise InternalError(f"Path contains '..': '{member.name}'")
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        raise InternalError(f"'{member.name}' is neither a file nor a folder nor a link")
    if member.issym():
        _require_inside(str(pathlib.Path(root, name).parent / member.linkname), root, member.name)
    elif member.islnk():
        _require_inside(str(pathlib.Path(root, member.linkname)), root, member.name)


def _require_inside(path: str, root: str, name: str) -> None:
    real = os.path.realpath(path)
    if real != root and not real.startswith(root + os.sep):
        raise InternalError(f"'{name}' leads out of the environment, to '{real}'")
