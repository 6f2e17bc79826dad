# SPDX-License-Identifier: Apache-2.0
"""Reports which packages are installed, and whether their versions are sufficient."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator
from importlib import metadata

import pytriton
from pytriton.tools.check.report import Finding, State

PACKAGE = "pytriton"
_INTERFACE = "nvidia-pytriton"
_INTERFACE_VERSION = "0.7.0"
_INDIRECT_PACKAGES = ("grpcio", "protobuf")  # required by tritonclient; their versions are useful
_OPTIONAL = ("torch",)
_OPTIONAL_EXTRA = "extra == 'telemetry'"
_REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)(\[[^\]]*\])?\s*(>=\s*(?P<least>[\d.]+))?[^;]*(;(?P<marker>.*))?"
)


def version_of(name: str) -> str | None:
    """Returns the version of a distribution; None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def installed_packages() -> str:
    """Returns one line for each installed distribution, with its version and path."""
    found = {
        f"{package.metadata['Name']}=={package.version} ({package.locate_file('')})"
        for package in metadata.distributions()
    }
    return "\n".join(sorted(found, key=str.lower))


def package_findings() -> Iterator[Finding]:
    """Yields the relevant packages, and whether their versions are sufficient."""
    yield Finding("place", str(pathlib.Path(pytriton.__file__).parent))
    yield _package_finding(PACKAGE)
    yield from _interface()
    optional = list(_OPTIONAL)
    for name, least, marker in _requirements():
        if _OPTIONAL_EXTRA in marker.replace('"', "'"):
            optional.append(name)
        elif "extra ==" not in marker:
            yield _package_finding(name, least)
    for name in _INDIRECT_PACKAGES:
        yield _package_finding(name)
    for name in optional:
        version = version_of(name)
        text = "not installed, which is fine: it is optional"
        yield Finding(name, text) if version is None else Finding(f"{name}=={version}", "")


def _interface() -> Iterator[Finding]:
    yield Finding("interface", f"that of {_INTERFACE}=={_INTERFACE_VERSION}")
    version = version_of(_INTERFACE)
    if version is not None:
        text = "installed as well: both provide the module `pytriton`, and one hides the other"
        yield Finding(f"{_INTERFACE}=={version}", text, State.FAILED)


def _requirements() -> Iterator[tuple[str, str, str]]:
    """Yields name, minimum version and condition of each package that ours requires."""
    if version_of(PACKAGE) is None:  # it runs from its source tree and is not installed
        return
    for text in metadata.requires(PACKAGE) or ():
        match = _REQUIREMENT.match(text)
        if match is not None:
            yield match["name"], match["least"] or "0", match["marker"] or ""


def _package_finding(name: str, least: str = "0") -> Finding:
    version = version_of(name)
    if version is None:
        return Finding(name, "not installed", State.FAILED)
    if _numbers(version) < _numbers(least):
        return Finding(f"{name}=={version}", f"expected {least} or newer", State.FAILED)
    return Finding(f"{name}=={version}", "")


def _numbers(version: str) -> tuple[int, ...]:
    """Returns the release without its suffix, so that 2.0.0rc1 counts as 2.0.0."""
    release = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(number) for number in release[0].split(".")] if release else []
    while numbers and numbers[-1] == 0:  # 1.0 and 1 are the same release
        numbers.pop()
    return tuple(numbers)
