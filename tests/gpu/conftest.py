# SPDX-License-Identifier: Apache-2.0
"""Tests with a real GPU: skipped where there is none, or where torch cannot use it."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest


@cache
def has_gpu() -> bool:
    """Whether torch finds a GPU, asked in another process: this one must not have a context."""
    program = "import torch, sys; sys.exit(0 if torch.cuda.is_available() else 1)"
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def pytest_collection_modifyitems(items):
    folder = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(folder):
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(autouse=True, scope="session")  # before the servers of modules
def _needs_gpu():
    if not has_gpu():
        pytest.skip("there is no GPU that torch can use")
