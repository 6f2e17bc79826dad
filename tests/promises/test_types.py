# SPDX-License-Identifier: Apache-2.0
"""The package tells type checkers what its users work with."""

from __future__ import annotations

import importlib.util
import pathlib
import subprocess
import sys

import pytest

import pytriton

HERE = pathlib.Path(__file__).parent


def test_package_says_that_it_is_typed():
    assert pathlib.Path(pytriton.__file__).with_name("py.typed").is_file()


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")
def test_users_code_passes_the_strict_checker():
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary"]
    checker = subprocess.run(
        [*command, str(HERE / "typed_user.py")],
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (checker.returncode, checker.stdout) == (0, ""), checker.stdout + checker.stderr
