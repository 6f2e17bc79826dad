# SPDX-License-Identifier: Apache-2.0
"""The packages that a project needs, pinned to the versions of this environment.

Nothing is downloaded: the metadata of installed packages say what each of them needs. A package
that did not come from an index, such as one from a folder, is packed as a wheel again, and so is
this one.
"""

from __future__ import annotations

import base64
import csv
import dataclasses
import hashlib
import importlib.metadata
import io
import json
import pathlib
import sys
import sysconfig
import zipfile
from collections.abc import Iterable, Iterator, Sequence

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from pytriton.base.package import PACKAGE_FOLDER

OURS = "pytriton"
# The Helm chart: where it is in the repository, and where a wheel has it.
CHART_IN_REPOSITORY = PACKAGE_FOLDER.parents[1] / "deploy/helm/pytriton"
CHART_IN_PACKAGE = pathlib.Path(__file__).with_name("chart")
# Images are Linux; the rest of the environment is that of this interpreter.
_TARGET = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
# What an installer wrote about the installation, and what it writes again.
_OF_INSTALLERS = frozenset(
    {"INSTALLER", "RECORD", "REQUESTED", "direct_url.json", "uv_build.json", "uv_cache.json"}
)
_COMPILED = (".pyc", ".so")
_FIRST_DATE = (1980, 1, 1, 0, 0, 0)  # the same bytes for the same files: layers of images stay
_PROGRAM = 0o755 << 16
_FILE = 0o644 << 16


class LockError(Exception):
    """A package cannot be pinned; the text says which, and what to do."""


@dataclasses.dataclass(frozen=True, slots=True)
class Pin:
    """A package at a version, from an index or as a wheel beside the list."""

    name: str
    version: str
    is_local: bool

    @property
    def is_of_special_index(self) -> bool:
        """Whether the version has a local part such as `+cpu`, which the usual index lacks."""
        return not self.is_local and "+" in self.version


def pins_of(requirements: Iterable[str]) -> list[Pin]:
    """Returns what these requirements need, with the needs of the needs, sorted by name.

    Raises:
        LockError: A requirement is wrong, or a package is missing or too old or too new.
    """
    waiting = [(each, "The project") for each in _needed(requirements, "The project")]
    done: set[tuple[str, str]] = set()
    pins: dict[str, Pin] = {}
    while waiting:
        requirement, needed_by = waiting.pop()
        installed = _installed(requirement, needed_by)
        name = canonicalize_name(requirement.name)
        pins[name] = Pin(name, installed.version, _is_local(installed))
        for extra in ("", *sorted(requirement.extras)):
            if (name, extra) not in done:
                done.add((name, extra))
                needs = _needed(installed.requires or (), name, extra)
                waiting += [(each, name) for each in needs]
    return [pins[name] for name in sorted(pins)]


def _needed(texts: Iterable[str], needed_by: str, extra: str = "") -> Iterator[Requirement]:
    """The requirements among these that apply to the image, and to an extra if one is named."""
    for text in texts:
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            raise LockError(f"{needed_by} has a wrong requirement, {text!r}: {error}") from error
        marker = requirement.marker
        if marker is None or marker.evaluate({**_TARGET, "extra": extra}):
            yield requirement


def _installed(requirement: Requirement, needed_by: str) -> importlib.metadata.Distribution:
    try:
        found = importlib.metadata.distribution(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        raise LockError(
            f"{needed_by} needs {requirement}, which this environment does not have. "
            f'Run: pip install "{requirement}"'
        ) from None
    if not requirement.specifier.contains(found.version, prereleases=True):
        raise LockError(
            f"{needed_by} needs {requirement}, but this environment has {found.version}. "
            f'Run: pip install "{requirement}"'
        )
    return found


def _is_local(installed: importlib.metadata.Distribution) -> bool:
    """Whether a package came from a folder, a file or a repository, and not from an index.

    Our own is always taken as it is installed: an index may have another one of the same name.
    """
    is_ours = canonicalize_name(installed.name) == OURS
    return is_ours or installed.read_text("direct_url.json") is not None


def lock_text(pins: Sequence[Pin]) -> str:
    """Returns the list of packages for `pip install --no-deps --requirement`."""
    version = ".".join(map(str, sys.version_info[:2]))
    lines = [
        f"# Made by `pytriton package` from an environment of Python {version}: run it again after",
        "# a change of packages. All that the project needs is here, so pip resolves nothing.",
    ]
    lines += [
        f"./{wheel_name(importlib.metadata.distribution(pin.name))}"
        if pin.is_local
        else f"{pin.name}=={pin.version}"
        for pin in pins
    ]
    return "\n".join(lines) + "\n"


def wheel_name(installed: importlib.metadata.Distribution) -> str:
    """Returns the name of the wheel of an installed package."""
    lines = (installed.read_text("WHEEL") or "Tag: py3-none-any").splitlines()
    tags = [line.partition(":")[2].strip().split("-") for line in lines if line.startswith("Tag:")]
    parts = [".".join(dict.fromkeys(part)) for part in zip(*tags, strict=True)]
    name = canonicalize_name(installed.name).replace("-", "_")
    return "-".join([name, installed.version, *parts]) + ".whl"


def wheel_bytes(name: str) -> bytes:
    """Returns an installed package as a wheel; the same files give the same bytes.

    Raises:
        LockError: Its files are not known.
    """
    installed = importlib.metadata.distribution(name)
    inside = f"{canonicalize_name(name).replace('-', '_')}-{installed.version}.dist-info"
    contents = {
        archived: (path.read_bytes(), bool(path.stat().st_mode & 0o100))
        for archived, path in _files(installed, inside)
    }
    if not contents:
        raise LockError(f"{name} does not say which files it has. Install it again with pip.")
    rows = [
        (archived, f"sha256={_digest(content)}", str(len(content)))
        for archived, (content, _) in sorted(contents.items())
    ]
    record = io.StringIO()
    csv.writer(record, lineterminator="\n").writerows([*rows, (f"{inside}/RECORD", "", "")])
    contents[f"{inside}/RECORD"] = (record.getvalue().encode(), False)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for archived, (content, is_program) in sorted(contents.items()):
            entry = zipfile.ZipInfo(archived, _FIRST_DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = _PROGRAM if is_program else _FILE
            archive.writestr(entry, content)
    return packed.getvalue()


def _digest(content: bytes) -> str:
    digest = hashlib.sha256(content).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _files(
    installed: importlib.metadata.Distribution, inside: str
) -> Iterator[tuple[str, pathlib.Path]]:
    """The files of a package, each with its name in a wheel."""
    programs = {entry.name for entry in installed.entry_points if "scripts" in entry.group}
    scripts = pathlib.Path(sysconfig.get_path("scripts"))
    is_editable = _is_editable(installed)
    for entry in installed.files or ():
        path = pathlib.Path(str(installed.locate_file(entry)))
        parts = pathlib.PurePosixPath(entry).parts
        if path.suffix == ".pyc":
            continue
        if parts[0].endswith(".dist-info"):
            if parts[1] not in _OF_INSTALLERS:
                yield "/".join([inside, *parts[1:]]), path
        elif parts[0] == "..":
            place = path.resolve()
            if place.parent == scripts.resolve() and place.name in programs:
                continue  # made anew from the entry points
            prefix = pathlib.Path(sys.prefix).resolve()
            if not place.is_relative_to(prefix):
                raise LockError(f"{installed.name} has a file outside of {prefix}: {place}")
            data = inside.removesuffix(".dist-info") + ".data/data"
            yield f"{data}/{place.relative_to(prefix).as_posix()}", path
        elif not is_editable:
            yield "/".join(parts), path
    if is_editable:
        yield from _source_files(installed)


def _is_editable(installed: importlib.metadata.Distribution) -> bool:
    document = json.loads(installed.read_text("direct_url.json") or "{}")
    return bool(document.get("dir_info", {}).get("editable"))


def _source_files(
    installed: importlib.metadata.Distribution,
) -> Iterator[tuple[str, pathlib.Path]]:
    """The files of our own package where it is used out of its repository."""
    if canonicalize_name(installed.name) != OURS:
        raise LockError(
            f"{installed.name} is installed in editable mode, so its files are not known. "
            "Install it from its folder with `pip install FOLDER`, and run this again."
        )
    source = PACKAGE_FOLDER.parent
    chart = CHART_IN_PACKAGE.relative_to(source).as_posix()
    for folder, place in ((source, ""), (CHART_IN_REPOSITORY, f"{chart}/")):
        for path in sorted(folder.rglob("*")):
            parts = path.relative_to(folder).parts
            if path.is_file() and "__pycache__" not in parts and path.suffix not in _COMPILED:
                yield place + "/".join(parts), path
