# SPDX-License-Identifier: Apache-2.0
"""Compiles the library and the programs of these tests, once for each version of their sources."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pytriton.inprocess.c_library.command import (
    LIBRARY_NAME,
    BuildError,
    compile_library,
    find_python_library,
    library_text,
)
from tests import peers

FOLDER = Path(__file__).parent
PROGRAMS = FOLDER / "programs"
MODELS = FOLDER / "model_repository"
SECOND_MODELS = FOLDER / "second_repository"
INCLUDE = Path(sys.modules["pytriton"].__path__[0]) / "include"
NAMES = ("endings", "requests", "servers", "traces", "version")
TIMEOUT_S = 120


def missing() -> str:
    """Why nothing can be compiled here; empty where it can."""
    if shutil.which("cc") is None:
        return "there is no C compiler"
    if platform.system() != "Linux":
        return "the library is for Linux"
    try:
        find_python_library()
    except BuildError as error:
        return str(error)
    return ""


@functools.cache
def built() -> Path:
    """The folder with the library and the programs."""
    ready = Path(tempfile.gettempdir(), f"pytriton-test-c-library-{os.getuid()}-{_digest()}")
    if not ready.is_dir():
        folder = Path(tempfile.mkdtemp(prefix="pytriton-test-c-library-"))
        compile_library(folder)
        for name in NAMES:
            _compile(name, folder)
        try:
            folder.rename(ready)
        except OSError:  # another process of the tests was faster
            shutil.rmtree(folder)
    return ready


def _digest() -> str:
    digest = hashlib.sha256(f"{sys.executable} {platform.machine()} {library_text()}".encode())
    for file in [*sorted(PROGRAMS.iterdir()), INCLUDE / "triton/core/tritonserver.h"]:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _compile(name: str, folder: Path) -> None:
    sources = [PROGRAMS / f"{name}.c", PROGRAMS / "harness.c"]
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-I{INCLUDE}", f"-L{folder}"]
    command = ["cc", *flags, *sources, "-ltritonserver", "-pthread", "-o", folder / name]
    subprocess.run(command, check=True)


def run(name: str, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program with our library. This ends when its workers have ended, too."""
    return subprocess.run(
        [str(built() / name), *map(str, arguments)],
        env=os.environ | {"LD_LIBRARY_PATH": str(built())} | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )


def printed_by_real(name: str, *arguments: object) -> str:
    """What a program prints with the real library of the peers."""
    command = peers.triton_command()
    place = next(i for i, each in enumerate(command) if each.endswith("bin/tritonserver"))
    site = Path(command[place]).parents[3]
    (real,) = (site / "nvidia_pytriton.libs").glob("libtritonserver-*.so")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / LIBRARY_NAME).symlink_to(real)
        # `env` and what it sets come before the program.
        before = [
            each.replace("LD_LIBRARY_PATH=", f"LD_LIBRARY_PATH={folder}:")
            for each in command[:place]
        ]
        started = [*before, str(built() / name), *map(str, arguments)]
        # A file, as Triton's processes for models may hold a pipe for longer.
        with (folder / "printed").open("w+") as printed:
            subprocess.run(
                started, stdout=printed, stderr=subprocess.DEVNULL, check=False, timeout=TIMEOUT_S
            )
        return (folder / "printed").read_text()


def real_backends() -> Path:
    """The folder of the real Triton's backends."""
    return Path(os.environ["PEERS_DIR"], "backends")
