# SPDX-License-Identifier: Apache-2.0
"""Decides what a listing of an object store means: models, versions, changes, what to download.

It does no I/O. The names in a listing may be anything, as an object store has no folders: whatever
would not be a file inside its model's folder is left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping

import msgspec

from pytriton.serving.repository.reading.layout import Snapshot, parse_version

_CONFIG_NAMES = frozenset({"config.pbtxt", "configs"})
_IGNORED = frozenset({"__pycache__"})
_MAX_NAME_BYTES = 255  # of one name in Linux's file systems


class RemoteFile(msgspec.Struct, frozen=True):
    """A file in an object store. A path with a slash at the end is a folder without a file."""

    path: str
    size: int
    tag: str  # changes with the content

    @property
    def is_folder(self) -> bool:
        """Whether it only marks a folder."""
        return self.path.endswith("/")


class StoreListing(msgspec.Struct, frozen=True):
    """The models of a repository with their files, whose paths are relative to the model."""

    models: dict[str, tuple[RemoteFile, ...]]
    refused: tuple[str, ...]  # paths that cannot be files of a model


def read_listing(root: str, entries: Iterable[RemoteFile]) -> StoreListing:
    """Sort the files below a root by model."""
    found: dict[str, list[RemoteFile]] = {}
    refused = []
    for entry in entries:
        inner = entry.path.removeprefix(f"{root}/")
        if inner in ("", entry.path) or "/" not in inner:
            continue  # a file beside the models, or the folder itself
        name, _, path = inner.partition("/")
        if not is_safe(inner.removesuffix("/")):
            refused.append(entry.path)
        elif not name.startswith(".") and not _IGNORED & set(path.split("/")):
            found.setdefault(name, []).append(RemoteFile(path, entry.size, entry.tag))
    models = {}
    for name, files in sorted(found.items()):
        models[name], hidden = _without_hidden(files)
        refused += [f"{root}/{name}/{path}" for path in hidden]
    return StoreListing(models, tuple(refused))


def is_safe(path: str) -> bool:
    """Returns whether a relative path is one of a file below its folder, on every system."""
    return all(
        part not in ("", ".", "..")
        and not any(char in part for char in "\0\\")
        and len(part.encode(errors="surrogateescape")) <= _MAX_NAME_BYTES
        for part in path.split("/")
    )


def _without_hidden(files: Iterable[RemoteFile]) -> tuple[tuple[RemoteFile, ...], list[str]]:
    """Leave out what a local folder cannot have: a file where other files need a folder."""
    by_path = {file.path: file for file in sorted(files, key=lambda file: file.path) if file.path}
    folders = {folder for path in by_path for folder in _folders(path)}
    hidden = [path for path in by_path if path in folders]
    return tuple(file for path, file in by_path.items() if path not in folders), hidden


def _folders(path: str) -> Iterable[str]:
    parts = path.split("/")
    return ("/".join(parts[:count]) for count in range(1, len(parts)))


def model_names(root: str, folders: Iterable[str]) -> list[str]:
    """Returns the names of models among the folders of a repository, which are full paths."""
    inner = (folder.removeprefix(f"{root}/").rstrip("/") for folder in folders)
    return sorted(
        {name for name in inner if is_safe(name) and "/" not in name and not name.startswith(".")}
    )


def snapshot_of(files: Iterable[RemoteFile]) -> Snapshot:
    """Returns the state of a model's files, to be compared with later ones."""
    config: list[RemoteFile] = []
    shared: list[RemoteFile] = []
    versions: dict[int, list[RemoteFile]] = {}
    for file in sorted(files, key=lambda file: file.path):
        top = file.path.partition("/")[0]
        version = version_of(file)
        if version is not None:
            versions.setdefault(version, []).append(file)
        else:
            (config if top in _CONFIG_NAMES else shared).append(file)
    return Snapshot(
        _fingerprint(config),
        _fingerprint(shared),
        {version: _fingerprint(versions[version]) for version in sorted(versions)},
    )


def _fingerprint(files: Iterable[RemoteFile]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        digest.update(msgspec.json.encode((file.path, file.size, file.tag)))
    return digest.hexdigest()


def version_of(file: RemoteFile) -> int | None:
    """Returns the version that a file belongs to; None if all versions share it."""
    top, slash, _ = file.path.partition("/")
    return parse_version(top) if slash else None


def config_files(files: Iterable[RemoteFile]) -> list[RemoteFile]:
    """Returns the configurations among a model's files."""
    return [
        file
        for file in files
        if not file.is_folder and file.path.partition("/")[0] in _CONFIG_NAMES
    ]


def shared_files(files: Iterable[RemoteFile]) -> list[RemoteFile]:
    """Returns the files that belong to no version."""
    return [file for file in files if version_of(file) is None]


def files_of_versions(files: Iterable[RemoteFile], versions: Collection[int]) -> list[RemoteFile]:
    return [file for file in files if version_of(file) in versions]


def version_folders(files: Iterable[RemoteFile]) -> dict[int, str]:
    folders = {file.path.partition("/")[0] for file in files if version_of(file) is not None}
    return {int(name): name for name in sorted(folders, key=int)}


def split_reusable(
    files: Iterable[RemoteFile], present: Mapping[str, RemoteFile]
) -> tuple[list[RemoteFile], list[RemoteFile]]:
    """Returns the files that an earlier copy has unchanged, and those to download."""
    reusable: list[RemoteFile] = []
    missing: list[RemoteFile] = []
    for file in files:
        (reusable if present.get(file.path) == file else missing).append(file)
    return reusable, missing
