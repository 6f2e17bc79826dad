# SPDX-License-Identifier: Apache-2.0
"""Servers whose workers have sandboxes, and what the kernel of this machine has for them."""

from __future__ import annotations

import functools
import platform

import pytest

from pytriton.base.sandbox import SandboxMachine
from pytriton.runtime.sandbox.probe import probe
from tests.repository_e2e.server_process import starter


@functools.cache
def this_machine() -> SandboxMachine:
    return probe()


def require(*parts: str) -> None:
    """Skip a test for which this machine lacks a part, and name the part."""
    if platform.system() != "Linux":
        pytest.skip("sandboxes need Linux")
    machine = this_machine()
    has = {
        "landlock": machine.landlock >= 3,
        "seccomp": machine.has_filters,
        "mounts": machine.has_mounts,
        "processes": "pids" in machine.groups or not machine.is_root,
    }
    for part in parts:
        if not has[part]:
            pytest.skip(f"this machine lacks {part} for sandboxes")


@pytest.fixture(scope="module")
def start_module_server(tmp_path_factory):
    """Starts servers that the tests of a file share."""
    with starter(tmp_path_factory.mktemp("servers")) as start:
        yield start


@pytest.fixture
def start_server(tmp_path):
    """Starts servers of one test."""
    with starter(tmp_path) as start:
        yield start
