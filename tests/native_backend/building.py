# SPDX-License-Identifier: Apache-2.0
"""Compiles the backends of these tests, once for each version of their sources."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.native_backend.header_text import HEADERS, INCLUDE

SOURCES = Path(__file__).parent / "backends"
FLAGS = ("-std=gnu11", "-Wall", "-Wextra", "-shared", "-fPIC", "-pthread")


@dataclasses.dataclass(frozen=True)
class Build:
    pattern: str
    flags: tuple[str, ...] = ()


BUILDS = {
    "identity": Build("identity.c"),
    "repeat": Build("repeat.c"),
    "square": Build("square.c"),
    "failing": Build("failing.c"),
    "failing_initialize": Build("failing.c", ('-DFAIL_AT_START="Initialize"',)),
    "failing_attribute": Build("failing.c", ('-DFAIL_AT_START="GetBackendAttribute"',)),
    "failing_finalize": Build("failing.c", ('-DFAIL_AT_START="Finalize"',)),
    "without_execute": Build("failing.c", ("-DNO_EXECUTE",)),
    "auto_complete": Build("auto_complete.c"),
    "stateful": Build("stateful.c"),
    "crash": Build("crash.c"),
    "facts": Build("facts*.c"),
    "caller": Build("caller.c"),
    "odd": Build("odd.c"),
    "partial": Build("partial.c"),
    "newer": Build("odd.c", ("-DNEWER",)),
}


def missing() -> str:
    """Why nothing can be compiled here; empty where it can."""
    if shutil.which("cc") is None:
        return "there is no C compiler"
    return "" if platform.system() == "Linux" else "backends in C run on Linux only"


@functools.cache
def backend_directory() -> Path:
    """The folder for --backend-directory, with a folder for each backend."""
    ready = Path(tempfile.gettempdir(), f"pytriton-test-backends-{os.getuid()}-{_digest()}")
    if not ready.is_dir():
        folder = Path(tempfile.mkdtemp(prefix="pytriton-test-backends-"))
        for name, build in BUILDS.items():
            _compile(name, build, folder / name)
        (folder / "broken").mkdir()
        (folder / "broken" / "libtriton_broken.so").write_text("this is no library")
        try:
            folder.rename(ready)
        except OSError:  # another process of the tests was faster
            shutil.rmtree(folder)
    return ready


def _digest() -> str:
    files = [*sorted(SOURCES.iterdir()), *(INCLUDE / name for name in HEADERS)]
    digest = hashlib.sha256(repr((BUILDS, FLAGS, platform.machine())).encode())
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _compile(name: str, build: Build, folder: Path) -> None:
    folder.mkdir()
    sources = sorted(SOURCES.glob(build.pattern))
    library = folder / f"libtriton_{name}.so"
    command = ["cc", *FLAGS, *build.flags, f"-I{INCLUDE}", *sources, "-o", library]
    subprocess.run(command, check=True)
