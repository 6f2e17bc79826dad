# SPDX-License-Identifier: Apache-2.0
"""The `tritonserver` command in a process that is forked from a template, where that is safe.

Machines with a GPU import this, which have few packages: no collector of traces belongs here.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytriton import server
from pytriton.binding.template import ForkedProcess, Program, Template
from pytriton.testing.server import is_forking

ROOT = Path(__file__).parents[1]
COMMAND = (sys.executable, "-m", "pytriton.server")
_PROGRAM = "tests.repository_e2e.forked_command"  # the same command


def python_path() -> str:
    """The root, and what tests find by PYTHONPATH: the package itself where it is not installed."""
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


@functools.cache
def _template() -> Template:
    environment = {**os.environ, "PYTHONPATH": python_path()}
    return Template("load_without_threads", [_PROGRAM], environment)


def start(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], out: int, err: int
) -> subprocess.Popen[bytes] | ForkedProcess:
    """Start a command in a session of its own; ours is forked where that is safe."""
    words = len(COMMAND)
    if tuple(command[:words]) == COMMAND and is_forking():
        argv = [server.__file__, *command[words:]]
        program = Program(_PROGRAM, "command", argv, first_path=str(folder.resolve()))
        with Path(os.devnull).open("rb") as nothing:
            forked = _template().fork(
                program,
                streams=(nothing.fileno(), out, err),
                environment=environment,
                folder=str(folder),
                has_own_session=True,
            )
        if forked is not None:
            return forked
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        start_new_session=True,
    )
