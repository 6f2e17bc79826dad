# SPDX-License-Identifier: Apache-2.0
"""Finds models, versions, files that configurations name, and changes in model repositories.

It only reads directories. Links may point from one place in the repositories to another, but not
outside, unless a setting allows that. Files that a configuration names may never be outside.

Each repository may be a namespace; identifiers of models then have both names.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import logging
import os
import re
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from pytriton.base.errors import InternalError, InvalidArgumentError, UnsupportedError
from pytriton.base.model_spec import identifier_of

logger = logging.getLogger(__name__)

_VERSION = re.compile(r"0|[1-9][0-9]{0,18}")
_MAX_VERSION = 2**63 - 1
# Importing a model writes there; that does not count as a change.
_IGNORED = frozenset({"__pycache__"})


# Called with a directory that has the configuration, and the versions that exist; returns those
# that are needed.
ChooseVersions = Callable[[Path, Collection[int]], Collection[int]]


class FetchError(InternalError):
    """A model's files could not be brought here; trying again may help, also without a change."""


class FileHolder(Protocol):
    """Keeps files as long as they are used."""

    def retain(self) -> None:
        """Count a user more."""

    def release(self) -> None:
        """Count a user less."""


class ModelPlace(msgspec.Struct, frozen=True):
    """The directory of a model and the repository that contains it.

    The methods are what a place must do whose files are not here yet; see `repository.remote`.
    """

    repository: Path
    directory: Path

    def listed(self) -> ModelPlace:
        """Returns the place with the list of its files. It may wait for the network.

        Raises FetchError if they cannot be listed.
        """
        return self

    def snapshot(self) -> Snapshot:
        """Returns the times and sizes of the files of a listed place."""
        return take_snapshot(self.directory)

    def begin_config(self) -> Callable[[], ModelPlace]:
        """Begin to bring the configuration here; returns what waits for a place that has it."""
        return lambda: self

    async def fetch(self, choose: ChooseVersions) -> ModelPlace:
        """Returns a place with all files that are needed.

        Raises FetchError if a file cannot be brought here.
        """
        return self

    def holder(self) -> FileHolder | None:
        """Returns the counter of the files' users, if they are removed after use."""
        return None

    def abandon(self) -> None:
        """Give up a fetched place, which was not loaded."""

    @property
    def is_private(self) -> bool:
        """Whether it is a copy that nobody but this server can change."""
        return False

    @property
    def is_renamed(self) -> bool:
        """Whether the model has another name than its directory and its configuration."""
        return False

    @property
    def sharing(self) -> str:
        """How the files can be on all nodes of a cluster, for people who see that they are not."""
        return (
            "the files of a model that runs on Ray have to be in a folder that all nodes share, "
            "under the same path"
        )

    def explain(self, text: str) -> str:
        """Returns a text about the files of a fetched place in which users find their own."""
        return text


class RenamedPlace(ModelPlace, frozen=True):
    """The directory of a model that has another name than its directory and its configuration."""

    @property
    def is_renamed(self) -> bool:
        return True


class Snapshot(msgspec.Struct, frozen=True):
    """The times and sizes of a model's files at one moment, as texts to compare."""

    config: str  # of the configurations
    shared: str  # of files that all versions share: labels, warm-up data, modules
    versions: dict[int, str]


def find_models(
    repositories: Sequence[Path], namespaces: Sequence[str] = ()
) -> dict[str, list[ModelPlace]]:
    """Returns the directories of all repositories by identifier; several may have the same one.

    Hidden directories are not models: version control and mounted volumes use such names. Nor are
    those whose names are not UTF-8: no answer could name them.
    """
    models: dict[str, list[ModelPlace]] = {}
    for repository, namespace in zip(repositories, namespaces or itertools.repeat("")):  # noqa: B905  the second may be endless
        if not repository.is_dir():
            raise InternalError(f"failed to stat file {repository}")
        for name in subdirectories(repository):
            if not name.startswith(".") and _is_utf8(repository, name):
                place = ModelPlace(repository, repository / name)
                models.setdefault(identifier_of(namespace, name), []).append(place)
    return dict(sorted(models.items()))


@functools.cache  # not again with each look for changes
def _is_utf8(repository: Path, name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        logger.warning(
            "the directory %a in %s is no model: expected a name in UTF-8", name, repository
        )
        return False
    return True


def subdirectories(directory: Path) -> list[str]:
    """Returns the names of the directories in a directory, in the order of strings."""
    try:
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())
    except OSError as error:
        raise InternalError(f"failed to open directory {directory}: {error.strerror}") from error


def check_model_name(name: str) -> None:
    """Refuse an empty name, and one that could point out of a repository."""
    if not name.strip():
        raise InvalidArgumentError(
            "Model name cannot be empty. Please enter a valid name to deploy."
        )
    if "/" in name or "\0" in name or name.strip() in (".", ".."):
        raise InvalidArgumentError(
            f"invalid model name '{name}', model name must not contain path traversal characters"
        )


def parse_version(name: str) -> int | None:
    """Returns the version of a directory; None if it is not a version directory."""
    if not _VERSION.fullmatch(name) or int(name) > _MAX_VERSION:
        return None
    return int(name)


def version_directories(directory: Path) -> dict[int, Path]:
    """Returns the version directories of a model, in ascending order."""
    found = ((parse_version(name), name) for name in subdirectories(directory))
    return {
        version: directory / name
        for version, name in sorted((v, name) for v, name in found if v is not None)
    }


def mistaken_versions(directory: Path) -> list[str]:
    """Returns the directories that may be meant as versions: numbers with leading zeros."""
    names = subdirectories(directory)
    return [name for name in names if name.isdecimal() and parse_version(name) is None]


def check_links(place: ModelPlace, repositories: Sequence[Path]) -> None:
    """Refuse a model whose directory, configuration or versions are links to outside."""
    roots = [repository.resolve() for repository in (place.repository, *repositories)]
    paths = [place.directory, place.directory / "config.pbtxt", place.directory / "configs"]
    paths += place.directory.glob("*.so")
    for directory in version_directories(place.directory).values():
        paths += [directory, *directory.glob("*.py"), *directory.glob("*.so")]
    for path in paths:
        target = path.resolve()
        if not any(target.is_relative_to(root) for root in roots):
            raise InvalidArgumentError(
                f"'{path}' leads to '{target}', outside of the model repositories; "
                "--allow-repository-links=true allows that"
            )


def contained_file(place: ModelPlace, name: str, *, under: str = "") -> Path:
    """Returns the path of a file in a model's directory that its configuration names.

    `under` is the directory in that of the model. Raises UnsupportedError if the name or a link
    points out of the model's directory; a link to another place in the same repository is allowed.
    """
    directory = place.directory / under
    if is_inside(name):
        path = (directory / name).resolve()
        roots = (place.directory.resolve(), place.repository.resolve())
        if any(path.is_relative_to(root) for root in roots):
            return directory / name
    raise UnsupportedError(f"file '{name}' is outside model directory {directory}")


def is_inside(name: str) -> bool:
    """Returns whether a relative path stays inside its directory, links not considered."""
    normal = os.path.normpath(name)
    is_upward = normal == os.pardir or normal.startswith(os.pardir + os.sep)
    return bool(name) and "\0" not in name and not Path(name).is_absolute() and not is_upward


def take_snapshot(directory: Path) -> Snapshot:
    """Read times and sizes of all files of a model; files that vanish meanwhile are left out."""
    versions = version_directories(directory)
    version_names = {path.name for path in versions.values()}
    config_names = {"config.pbtxt", "configs"}
    entries = _entries(directory)
    return Snapshot(
        _fingerprint(entry for entry in entries if entry.name in config_names),
        _fingerprint(entry for entry in entries if entry.name not in config_names | version_names),
        {version: _fingerprint(_entries(path)) for version, path in versions.items()},
    )


# The state of a model's files; if several directories have its name, those directories instead.
FilesState = Snapshot | tuple[ModelPlace, ...]


def read_files_state(places: Sequence[ModelPlace]) -> FilesState:
    """Returns the state of a model's files; if it differs from the last one, the model changed."""
    if len(places) == 1:
        return places[0].snapshot()
    return tuple(ModelPlace(place.repository, place.directory) for place in places)


def _entries(directory: str | Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as found:
            entries = [entry for entry in found if entry.name not in _IGNORED]
    except OSError:
        return []
    return sorted(entries, key=lambda entry: entry.name)


def _fingerprint(entries: Iterable[os.DirEntry[str]]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for line in _describe(entries):
        digest.update(line.encode(errors="surrogateescape") + b"\0")
    return digest.hexdigest()


def _describe(entries: Iterable[os.DirEntry[str]]) -> Iterator[str]:
    for entry in entries:
        try:
            status = entry.stat()
        except OSError:
            continue
        # Links to directories are not followed, because they might form a cycle.
        if entry.is_dir(follow_symlinks=False):
            yield entry.path
            yield from _describe(_entries(entry.path))
        else:
            yield f"{entry.path} {status.st_mtime_ns} {status.st_size}"


def select_versions(policy: Any, available: Iterable[int]) -> list[int]:
    """Returns the available versions that a policy asks for, in ascending order.

    An empty policy selects the newest version.
    """
    versions = sorted(available)
    choice = policy.WhichOneof("policy_choice")
    if choice == "all":
        return versions
    if choice == "specific":
        return [version for version in versions if version in policy.specific.versions]
    count = policy.latest.num_versions if choice == "latest" else 1
    return versions[-count:] if count else []


def missing_versions(policy: Any, available: Iterable[int]) -> list[int]:
    """Returns the versions that a policy names and that have no directory, in its order."""
    known = set(available)
    return [version for version in policy.specific.versions if version not in known]


class PlaceFinder(Protocol):
    """Finds models."""

    @property
    def problem(self) -> str:
        """Why a repository could never be read so far; an empty text if all were."""

    @property
    def is_far(self) -> bool:
        """Whether `find` waits for a network, so that `known` may be older."""

    def find(self) -> dict[str, list[ModelPlace]]:
        """Returns the places of all models by identifier. It may wait for the network."""

    def known(self) -> dict[str, list[ModelPlace]]:
        """Like `find`, but without waiting: of repositories far away, what was found last."""

    def close(self) -> None:
        """Remove what was made for the models; may be called twice."""


class LocalFinder:
    """Finds models in local folders."""

    problem = ""
    is_far = False

    def __init__(self, repositories: Sequence[Path], namespaces: Sequence[str] = ()) -> None:
        self._repositories = tuple(repositories)
        self._namespaces = tuple(namespaces)

    def find(self) -> dict[str, list[ModelPlace]]:
        return find_models(self._repositories, self._namespaces)

    known = find

    def close(self) -> None:
        """See `PlaceFinder`."""


class ModelNames:
    """Finds what names can mean.

    Args:
        namespaces: Those of all repositories; none if models are told apart by their names.
    """

    def __init__(self, namespaces: Sequence[str] = ()) -> None:
        self._namespaces = tuple(dict.fromkeys(namespaces))

    def split(self, identifier: str) -> tuple[str, str]:
        """Returns the namespace of a model, empty if it has none, and its name."""
        for namespace in self._namespaces:
            start = identifier_of(namespace, "")
            if identifier.startswith(start):
                return namespace, identifier.removeprefix(start)
        return "", identifier

    def identifiers(self, name: str) -> list[str]:
        """Returns all identifiers that models of this name could have."""
        # Models that were bound or whose files were sent have no namespace.
        return [name, *(identifier_of(namespace, name) for namespace in self._namespaces)]

    def among(self, name: str, known: Container[str]) -> list[str]:
        """Returns the identifiers of the known models of this name."""
        return [each for each in self.identifiers(name) if each in known]

    def find(self, name: str, namespace: str, is_known: Callable[[str], bool]) -> str | None:
        """Returns the model that another one means: of its own namespace, or the only one.

        `namespace` is that of the model that names it. None if no model has this name, or several.
        """
        own = identifier_of(namespace, name)
        if is_known(own):
            return own
        found = [each for each in self.identifiers(name) if is_known(each)]
        return found[0] if len(found) == 1 else None
