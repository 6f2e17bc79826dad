# SPDX-License-Identifier: Apache-2.0
"""`tritonserver` as a template forks it: all of the server is imported when the command begins.

As a program, the command forks the process from which workers come before it imports the server.
Here that process forgets the server's modules, so that workers import what they do elsewhere.
"""

from __future__ import annotations

import importlib
import os
import sys

from pytriton.runtime.executor import python_process

# What the command has imported when it forks the process from which workers come.
from pytriton.serving.server import tritonserver, worker_zygote  # noqa: F401

_OF_WORKERS = frozenset(name for name in sys.modules if name.split(".")[0] != "tests")
_OF_SERVERS = (
    "encodings.idna",
    "pytriton.serving.server.command.run",
    "pytriton.serving.server.serving",
    "uvloop",
)
for _name in _OF_SERVERS:
    importlib.import_module(_name)


def command() -> None:
    """Run the command of this process, and end the process."""
    if python_process.can_fork_workers():
        forgetting = _Forgetting()
        os.register_at_fork(after_in_child=forgetting.forget, after_in_parent=forgetting.end)
    tritonserver.command()


class _Forgetting:
    """Lets the first process that is forked forget the server: workers come from it."""

    def __init__(self) -> None:
        self._is_due = True

    def end(self) -> None:
        self._is_due = False

    def forget(self) -> None:
        if not self._is_due:
            return
        self._is_due = False
        for name in sys.modules.keys() - _OF_WORKERS:
            module = sys.modules.pop(name)
            package, _, attribute = name.rpartition(".")
            known = vars(sys.modules[package]) if package in sys.modules else {}
            if known.get(attribute) is module:
                del known[attribute]
