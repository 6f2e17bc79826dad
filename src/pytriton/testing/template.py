# SPDX-License-Identifier: Apache-2.0
"""Servers of tests, forked from processes that have imported what servers import.

See `pytriton.binding.template` for what that changes, and when servers are started as usual.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytriton.binding.server_process import (
    FOR_BOUND_MODELS,
    FOR_REPOSITORIES,
    LOAD_OF,
    ChildProcess,
    ServerProcess,
    start_process,
)
from pytriton.binding.template import Program, Template

START_SETTING = "PYTRITON_TEST_SERVER_START"  # "spawn": servers are not forked
# What servers import until they are ready. One of repositories first forks the process from which
# its workers come, which have to be without the server's modules.
_MODULES = {
    FOR_BOUND_MODELS: ("pytriton.serving.server.main", "encodings.idna", "uvloop"),
    FOR_REPOSITORIES: (
        "pytriton.serving.server.repository_main",
        "pytriton.serving.server.worker_zygote",
    ),
}


def is_forking() -> bool:
    """Whether servers are forked where it is safe."""
    return os.environ.get(START_SETTING) != "spawn"


class ServerTemplates:
    """The templates of servers, each started when the first server needs it."""

    def __init__(self) -> None:
        self._templates = {
            entry: Template(LOAD_OF[entry], modules) for entry, modules in _MODULES.items()
        }

    def start_process(self, entry: str, arguments: Sequence[str], descriptor: int) -> ChildProcess:
        """Fork a server where that is safe, or start it as usual; see `StartProcess`."""
        if not is_forking():
            return start_process(entry, arguments, descriptor)
        program = Program(f"pytriton.serving.server.{entry}", "main", ("-c", *arguments))
        with Path(os.devnull).open("rb") as nothing:
            forked = self._templates[entry].fork(
                program, streams=(nothing.fileno(), 1, 2), inherited=(descriptor,)
            )
        return forked or start_process(entry, arguments, descriptor)


_lock = threading.Lock()
_templates: list[ServerTemplates] = []
_users = 0


@contextlib.contextmanager
def forked_servers() -> Iterator[None]:
    """Let each `Triton` of this process fork its server while this is entered.

    The first one takes as long as usual, each other one a tenth of that. Where forking is not safe,
    and with `PYTRITON_TEST_SERVER_START=spawn` in the environment, servers are started as usual.
    """
    global _users  # noqa: PLW0603
    with _lock:
        if not _templates:
            _templates.append(ServerTemplates())
        _users += 1
        ServerProcess.start_process = _templates[0].start_process
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                ServerProcess.start_process = staticmethod(start_process)
